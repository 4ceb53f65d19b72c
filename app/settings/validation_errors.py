"""Turns what pydantic found into lines that a user can act on: where, which setting, what to write.

No line quotes what stands under an unknown key: it may be a secret in the wrong place.
"""

import difflib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from millrace.app.settings.all_settings import matches, settings_of, spelled
from millrace.app.settings.environment import Overrides
from millrace.app.settings.sections.records import LABELS_BY_NAME, ONE_LABEL
from millrace.app.settings.spelling import dotted, flow
from millrace.app.settings.yaml_file import Document, Key
from millrace.consumers.section import SettingError

_LONGEST = 60
_MOST = 50
"""How many problems are described; a name is compared with that of every setting, which takes milliseconds."""
_FORMS = frozenset({ONE_LABEL, LABELS_BY_NAME, "[key]"})
"""Parts of pydantic's locations that are no keys: the form of a value that it tried."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where each value came from."""

    document: Document
    overrides: Overrides

    def origin(self, key: Key) -> str | None:
        """Return where a key, or the nearest one around it, was written; None where none of them was."""
        around = [key[:length] for length in range(len(key), 0, -1)]
        for part in around:  # first, for a variable replaces all that it names
            if name := self.overrides.names.get(part) or self.overrides.unknown.get(part):
                return name
        line = self._line(around)
        return None if line is None else f"{self.document.path}:{line}"

    def order(self, key: Key) -> int:
        """Return the key to sort by: the file's order, then problems without a line."""
        return self._line([key[:length] for length in range(len(key), 0, -1)]) or sys.maxsize

    def _line(self, keys: list[Key]) -> int | None:
        return next((self.document.lines[key] for key in keys if key in self.document.lines), None)


def describe(settings: type[BaseModel], error: ValidationError | None, places: Places) -> list[str]:
    """Return one line for each problem."""
    known = dict(settings_of(settings))
    raised = [] if error is None else error.errors(include_url=False)
    raised = sorted((one for one in raised if not _follows(one, raised)), key=lambda one: places.order(_key(one)))
    described, more = raised[:_MOST], len(raised) - _MOST
    meant = {_meant(_key(problem), known) for problem in described if problem["type"] == "extra_forbidden"}
    found = [
        _text(problem, known) for problem in described if not (problem["type"] == "missing" and _key(problem) in meant)
    ]
    found += [(key, _unknown(key, known)) for key in places.overrides.unknown]
    found.sort(key=lambda problem: places.order(problem[0]))
    lines = [f"{places.origin(key) or places.document.path}: {text}" for key, text in found]
    lines += [
        f"environment {name}: this names no setting; did you mean {right}?"
        for name, right in places.overrides.strays.misspelled.items()
    ]
    if more > 0:
        lines.append(f"{places.document.path}: and {more:,} problems more")
    return list(dict.fromkeys(lines))


def _follows(problem: Any, others: list[Any]) -> bool:
    """Return whether a list counts as too short only because pydantic left its invalid items out."""
    place = problem["loc"]
    return problem["type"] == "too_short" and any(
        len(other["loc"]) > len(place) and other["loc"][: len(place)] == place for other in others
    )


def _key(problem: Any) -> Key:
    """Return the key of the problem, without pydantic's marks for the form of a value that it tried."""
    return tuple(part for part in problem["loc"] if part not in _FORMS)


def _text(problem: Any, known: Mapping[Key, FieldInfo]) -> tuple[Key, str]:
    kind, context, value = problem["type"], problem.get("ctx", {}), problem["input"]
    key = _key(problem)
    if kind == "extra_forbidden":
        return key, _unknown(key, known)
    if kind == "missing":
        return key, _required(key, known)
    if kind == "value_error":
        cause = context["error"]
        key = (*key, cause.key) if isinstance(cause, SettingError) else key
        return key, f"{dotted(key)}: {cause}"
    if kind in _BOUNDS:
        return key, f"{dotted(key)}: {_bound(kind, context, value, _info(key, known))}"
    example = _example(key, known)
    # Pydantic's own sentence, where there is none of ours.
    otherwise = f"{_shown(value)} does not do: {_uncapitalised(str(problem['msg']))}"
    return key, f"{dotted(key)}: {_mismatch(kind, context, value, example) or otherwise}"


def _example(key: Key, known: Mapping[Key, FieldInfo]) -> str:
    """Return what a mapping at this key could be, as a config file has it."""
    info = _info(key, known)
    if info is not None and info.examples:
        return flow(info.examples[0])
    for pattern, inner in known.items():
        if matches(pattern[:-1], key) and (inner.examples or not inner.is_required()):
            value = inner.examples[0] if inner.examples else spelled(inner, inner.default)
            return flow({pattern[-1]: value})
    return "{key: value}"


def _required(key: Key, known: Mapping[Key, FieldInfo]) -> str:
    info = _info(key, known)
    if info is None:
        return f"{dotted(key)} is required"
    example = f" Write for instance {key[-1]}: {flow(info.examples[0])}" if info.examples else ""
    return f"{dotted(key)} is required: {_uncapitalised(info.description or '')}{example}"


def _uncapitalised(text: str) -> str:
    return text[:1].lower() + text[1:]


def _info(key: Key, known: Mapping[Key, FieldInfo]) -> FieldInfo | None:
    return next((info for pattern, info in known.items() if matches(pattern, key)), None)


def _unknown(key: Key, known: Mapping[Key, FieldInfo]) -> str:
    text = f"{dotted(key)} is not a setting"
    if meant := _meant(key, known):
        return f"{text}; did you mean {dotted(meant)}?"
    siblings = _siblings(key, known)
    return f"{text}; here are {', '.join(siblings)}" if siblings else text


def _meant(key: Key, known: Mapping[Key, FieldInfo]) -> Key | None:
    """Return the setting with the nearest name, in the same section or else in any."""
    if nearest := _nearest(str(key[-1]), _siblings(key, known)):
        return (*key[:-1], nearest)
    elsewhere = {str(pattern[-1]): pattern for pattern in reversed(list(known))}
    nearest = _nearest(str(key[-1]), list(elsewhere), cutoff=0.85)
    return elsewhere[nearest] if nearest else None


def _siblings(key: Key, known: Mapping[Key, FieldInfo]) -> list[str]:
    return [str(pattern[-1]) for pattern in known if matches(pattern[:-1], key[:-1])]


def _nearest(name: str, names: list[str], cutoff: float = 0.6) -> str | None:
    return next(iter(difflib.get_close_matches(name.lower(), names, n=1, cutoff=cutoff)), None)


def _shown(value: object) -> str:
    """Quote a value so that it is short and shows no secret."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = flow(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


_WANTED: Mapping[str, str] = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text; put it in quotes if it is meant",
    "tuple": "a list; write it as in [one, two]",
    "list": "a list; write it as in [one, two]",
    "dict": "a mapping; write it as in {example}",
    "mapping": "a mapping; write it as in {example}",
    "model": "a mapping of settings; write it as in {example}",
    "path": "a path",
}
_BOUNDS: Mapping[str, tuple[str, str]] = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


_ALSO_CALLED: Mapping[str, str] = {
    "float": "float32",
    "double": "float64",
    "number": "float32",
    "int": "int64",
    "integer": "int64",
    "long": "int64",
    "str": "string",
    "text": "string",
    "boolean": "bool",
}
"""What other tools call a dtype."""


def _mismatch(kind: str, context: Mapping[str, Any], value: object, example: str) -> str | None:
    if kind == "literal_error":
        return _choice(str(context["expected"]), value)
    if kind in {"too_short", "string_too_short"}:
        return "this is empty; write at least one" if kind == "too_short" else "this is empty; write a name"
    if kind in {"too_long", "string_too_long"}:
        return f"this is too long; at most {context['max_length']} fit"
    if kind in {"tuple_type", "list_type"} and isinstance(value, str | int | float):
        return f"{_shown(value)} is not a list; write [{_shown(value)}]"
    wanted = _WANTED.get(kind.partition("_")[0])
    if wanted is None or kind == "string_pattern_mismatch":
        return None
    return f"{_shown(value)} is not {wanted.replace('{example}', example)}"


def _bound(kind: str, context: Mapping[str, Any], value: object, info: FieldInfo | None) -> str:
    name, words = _BOUNDS[kind]
    bound, given = context[name], value
    if info is not None:
        bound = spelled(info, bound)
        given = spelled(info, value) if isinstance(value, int | float) else value
    return f"{_shown(given)} does not do; it must be {words} {_shown(bound)}"


def _choice(expected: str, value: object) -> str:
    choices = [choice.strip("'") for choice in expected.replace(" or ", ", ").split(", ")]
    also = _ALSO_CALLED.get(str(value).lower())
    nearest = (
        (also if also in choices else None)
        or _nearest(str(value), choices)
        or next((one for one in choices if one.lower() == str(value).lower()), None)
    )
    hint = f"; did you mean {nearest}?" if nearest else ""
    return f"{_shown(value)} is not one of {', '.join(choices)}{hint}"
