"""Random Avro schemas with values of them, and what a path finds in a value, by a reader of another make."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import fastavro
import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from millrace.pipelines.formats.shared.arrow_columns import Show
from millrace.pipelines.formats.shared.paths import PathStep

Json: TypeAlias = Any

_INTS = st.integers(-(2**31), 2**31 - 1) | st.integers(-70, 70)
_LONGS = st.integers(-(2**63), 2**63 - 1) | st.integers(-70, 70) | st.sampled_from([2**56, -(2**56), 2**55 - 1, 2**62])
_FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
_DOUBLES = st.floats(allow_nan=False, allow_infinity=False)
_TEXTS = st.text(max_size=6)
_KEYS = st.sampled_from(["k", "kk", "é", ""])
PLAIN = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": _INTS,
    "long": _LONGS,
    "float": _FLOATS,
    "double": _DOUBLES,
    "string": _TEXTS,
    "bytes": st.binary(max_size=6),
}


@dataclass
class Made:
    """A schema, and a strategy of its values as fastavro takes them."""

    schema: Json
    values: st.SearchStrategy[Any]
    branch: str
    """Its name as a branch of a union."""
    paths: list[tuple[tuple[PathStep, ...], int]]
    """The paths of leaves, each with the number of lists around it."""


@dataclass
class _Names:
    count: int = 0
    kept: list[Made] = field(default_factory=list)

    def new(self, what: str) -> str:
        self.count += 1
        return f"{what}{self.count}"


@st.composite
def records(draw: st.DrawFn) -> Made:
    """A record with fields of any types."""
    return _record(draw, _Names(), 3)


def _record(draw: st.DrawFn, names: _Names, depth: int) -> Made:
    name = names.new("R")
    fields = [(f"f{at}", _any(draw, names, depth - 1)) for at in range(draw(st.integers(1, 4)))]
    paths = [
        ((PathStep(key, lists_at_once), *rest), lists)
        for key, made in fields
        for (lists_at_once, rest, lists) in map(_below, made.paths)
    ]
    schema = {"type": "record", "name": name, "fields": [{"name": key, "type": made.schema} for key, made in fields]}
    return Made(schema, st.fixed_dictionaries({key: made.values for key, made in fields}), name, paths)


def _below(path: tuple[tuple[PathStep, ...], int]) -> tuple[int, tuple[PathStep, ...], int]:
    """Split off the lists that belong to the name above: those before the first name of a path."""
    steps, lists = path
    if steps and steps[0].name == "":
        return steps[0].lists, steps[1:], lists
    return 0, steps, lists


def _any(draw: st.DrawFn, names: _Names, depth: int) -> Made:
    kinds = ["plain"] * 3 + ["enum", "fixed"] + (["record", "array", "map", "union", "union"] if depth > 0 else [])
    kind = draw(st.sampled_from(kinds))
    if kind == "plain":
        name = draw(st.sampled_from(sorted(PLAIN)))
        return Made(name, PLAIN[name], name, [((), 0)])
    if kind in {"enum", "fixed"}:
        return _named(draw, names, kind)
    if kind == "record":
        return _record(draw, names, depth)
    if kind == "union":
        return _union(draw, names, depth)
    inner = _any(draw, names, depth - 1)
    if kind == "map":
        paths = [((PathStep("k", at_once), *rest), lists) for at_once, rest, lists in map(_below, inner.paths)]
        return Made(
            {"type": "map", "values": inner.schema}, st.dictionaries(_KEYS, inner.values, max_size=3), kind, paths
        )
    if inner.schema == "null" or (isinstance(inner.schema, dict) and _no_bytes(inner.schema)):
        inner = Made("long", _LONGS, "long", [((), 0)])
    paths = []
    for at_once, rest, lists in map(_below, inner.paths):
        paths.append(((PathStep("", at_once + 1), *rest), lists + 1))
    return Made({"type": "array", "items": inner.schema}, st.lists(inner.values, max_size=4), kind, paths)


def _no_bytes(schema: Json) -> bool:
    if schema == "null":
        return True
    if not isinstance(schema, dict):
        return False
    if schema["type"] == "fixed":
        return bool(schema["size"] == 0)
    return schema["type"] == "record" and all(_no_bytes(each["type"]) for each in schema["fields"])


def _named(draw: st.DrawFn, names: _Names, kind: str) -> Made:
    if kind == "enum":
        schema: Json = {"type": "enum", "name": names.new("E"), "symbols": ["A", "B", "C"]}
        return Made(schema, st.sampled_from(["A", "B", "C"]), schema["name"], [((), 0)])
    size = draw(st.integers(1, 9))
    schema = {"type": "fixed", "name": names.new("F"), "size": size}
    return Made(schema, st.binary(min_size=size, max_size=size), schema["name"], [((), 0)])


def _union(draw: st.DrawFn, names: _Names, depth: int) -> Made:
    branches: dict[str, Made] = {}
    for _ in range(draw(st.integers(1, 3))):
        made = _any(draw, names, depth - 1)
        if not isinstance(made.schema, list):
            branches.setdefault(made.branch, made)
    if draw(st.booleans()) or not branches:
        branches.setdefault("null", Made("null", st.none(), "null", [((), 0)]))
    chosen = list(branches.values())
    values = st.one_of(*(st.tuples(st.just(made.branch), made.values) for made in chosen))
    paths = [path for made in chosen for path in made.paths]
    return Made([made.schema for made in chosen], values, "union", paths)


def written(schema: Json, value: Any) -> bytes:
    """Return the bytes of a value, as fastavro writes them."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def found(  # noqa: PLR0911 - one for each kind of value
    value: Any, steps: Sequence[PathStep], lists: int, type_: pa.DataType
) -> tuple[Any, Show]:
    """Return what a path finds in a value that fastavro read, and how it is not what is asked for."""
    if value is None:
        return None, Show.GOOD
    if isinstance(value, list):
        inside = lists > 0 if steps else pa.types.is_list(type_)
        if not inside or not pa.types.is_list(type_):
            return None, Show.WRONG_SHAPE
        pairs = [found(each, steps, max(0, lists - 1), type_.value_type) for each in value]
        return [each for each, _ in pairs], max([show for _, show in pairs], default=Show.GOOD)
    if isinstance(value, dict):
        if lists and steps:
            return None, Show.WRONG_SHAPE
        if not steps:
            return None, Show.WRONG_TYPE
        step, *rest = steps
        return found(value.get(step.name), rest, step.lists, type_)
    if steps:
        return None, Show.WRONG_TYPE
    if pa.types.is_list(type_):
        return None, Show.WRONG_SHAPE
    return _single(value, type_)


def _single(value: Any, type_: pa.DataType) -> tuple[Any, Show]:
    if pa.types.is_boolean(type_):
        fits = isinstance(value, bool)
    elif pa.types.is_int64(type_):
        fits = isinstance(value, int) and not isinstance(value, bool)
    elif pa.types.is_floating(type_):
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        if fits:
            with np.errstate(over="ignore"):
                value = float(np.float32(value)) if pa.types.is_float32(type_) else float(value)
    else:
        fits = isinstance(value, str | bytes)
        value = value.encode() if isinstance(value, str) else value
    return (value, Show.GOOD) if fits else (None, Show.WRONG_TYPE)


TYPES = (pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.binary())


@st.composite
def wanted(draw: st.DrawFn, made: Made) -> tuple[tuple[PathStep, ...], pa.DataType]:
    """A path, most often one of the schema's, and the type to read it as."""
    steps, lists = draw(st.sampled_from(made.paths)) if made.paths else ((PathStep("f0"),), 0)
    if draw(st.integers(0, 9)) == 0:
        steps = (*steps[:-1], PathStep(draw(st.sampled_from(["f0", "f1", "k", "other"])), draw(st.integers(0, 1))))
    lists = max(0, lists + draw(st.sampled_from([0] * 9 + [-1, 1])))
    type_ = draw(st.sampled_from(TYPES))
    for _ in range(lists):
        type_ = pa.list_(type_)
    return steps, type_


def prefixes(value: bytes) -> Iterator[bytes]:
    """Yield what is left of a value that is cut off anywhere."""
    return (value[:end] for end in range(len(value)))
