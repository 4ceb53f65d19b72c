"""The types of what a record holds, by source, as a look at a whole record gives them. Pure; holds no value."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from millrace.pipelines.formats.shared.paths import Path, PathStep

_DEEPEST, _MOST_NAMES, _ELEMENTS = 8, 50, 8
LONGEST_SOURCE = 100
"""Bytes; what lies at a longer one is left out, as its name may be data."""
_LONGEST_TYPE = 100
_NAMES = {type(None): "null", bool: "bool", int: "integer", float: "number", str: "text", bytes: "bytes"}
OBJECT = "object"


def field_types(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the type of each field, also of nested ones; an object of very many names is one field."""
    found: dict[str, str] = {}
    _note((), record, found)
    return found


def _note(steps: tuple[PathStep, ...], value: Any, found: dict[str, str]) -> None:
    if _is_object(value) and 0 < len(value) <= _MOST_NAMES and len(steps) < _DEEPEST:
        for name, inside in value.items():
            _note((*steps, PathStep(name)), inside, found)
    elif isinstance(value, list) and (objects := [one for one in value[:_ELEMENTS] if _is_object(one)]):
        each = (*steps[:-1], PathStep(steps[-1].name, steps[-1].lists + 1))
        for one in objects:
            _note(each, one, found)
    elif steps and (source := _spelled(steps)) is not None:
        found[source] = _type_of(value)


def _is_object(value: Any) -> bool:
    # Asked first for what is none: whether a type is a Mapping takes ten times as long.
    return type(value) not in _NAMES and isinstance(value, Mapping)


def _type_of(value: Any, within: int = 0) -> str:
    """Return the type of a value that is within so many lists; a list that is too deep, or too mixed, is just one."""
    if isinstance(value, list):
        few = value[:_ELEMENTS] if within < _DEEPEST else ()
        inside = sorted({_NAMES.get(type(one)) or _type_of(one, within + 1) for one in few})
        text = f"list of {' or '.join(inside)}"
        return text if inside and len(text) <= _LONGEST_TYPE else "list"
    return _NAMES.get(type(value), OBJECT)


@lru_cache(4096)
def _spelled(steps: tuple[PathStep, ...]) -> str | None:
    # JSON may spell half of a surrogate pair, for which UTF-8 has no bytes.
    source = str(Path(steps)).encode("utf-8", "replace")
    return source.decode() if len(source) <= LONGEST_SOURCE else None
