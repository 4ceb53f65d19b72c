"""Why a JSON record was refused: a slow and careful examination of its own bytes.

Pure functions. The parser of `pipelines.formats.json.decoder` alone decides whether a record is refused. This module
says why, and whether the parser certainly refuses the record, so that a flood of them need not be parsed one by one.
It looks only for what the parser refuses: null, lengths and ranges show in the columns.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from millrace.consumers.reasons import Reason
from millrace.pipelines.formats.json.framing import nesting, without_strings
from millrace.pipelines.formats.shared.paths import AskedField, PathStep, asked_of, steps_of
from millrace.pipelines.schema import DType, Field

DEEPEST = 200
"""The deepest nesting of a record that is diagnosed. The parser itself has no limit, in memory or on the stack."""

_INT64 = np.iinfo(np.int64)
_INT64_DIGITS = 20
"""An integer with more digits is too large without being read: to read it takes time by the square of the digits."""
_FLOAT64_DIGITS = 308
"""An integer with more digits may be beyond float64."""
_STRING_OR_NUMBER = re.compile(rb'"(?:[^"\\]++|\\.)*+"|-?\d[\d.eE+-]*+', re.DOTALL)
_KINDS = {"bool": "bool", "string": "string"}
"""The kind of JSON value for a dtype; every other dtype is read from a number."""
_FLOATS = ("float16", "float32", "float64")
_LENIENT = re.compile(rb"Inf|-NaN")
"""Literals that the parser reads and `json` does not."""


class JsonFault(NamedTuple):
    """The verdict on a record, if the parser refuses it."""

    reason: Reason
    field: str | None = None
    certain: bool = False
    """Whether the parser surely refuses the record; if not, it may take it after all."""
    unread: bool = False
    """Whether its only fault is a number beyond float64 in a field that nobody reads; see `without_large_numbers`."""


class _Literal(str):
    """One of the literals NaN, Infinity, -Infinity."""

    __slots__ = ()


class _Object:
    """The members of an object, with repeated keys."""

    __slots__ = ("members",)

    def __init__(self, members: "list[tuple[str, _Json]]") -> None:
        self.members = members


_Json: TypeAlias = "str | float | bool | list[_Json] | _Object | None"
_Members: TypeAlias = list[tuple[str, _Json]]


class _Enormous(int):
    """An integer that may be beyond float64."""

    __slots__ = ()


def _integer(text: str) -> int:
    if len(text) <= _INT64_DIGITS:
        return int(text)
    return (_Enormous if len(text) > _FLOAT64_DIGITS else int)(_INT64.max + 1)


_decoder = json.JSONDecoder(parse_int=_integer, parse_constant=_Literal, object_pairs_hook=_Object)


class JsonAsked:
    """What the schema asks of a record."""

    def __init__(self, fields: Iterable[Field]) -> None:
        """Raise ConfigError where two fields cannot both be read from a record."""
        fields = tuple(fields)
        self.names = asked_of(fields)
        self.fields = tuple((field.source, field.dtype, steps_of(field)) for field in fields)
        """Each field with the steps to it, in the order of the schema."""


def diagnose(record: bytes, asked: JsonAsked) -> JsonFault:
    """Return why the parser refuses this record, if it does."""
    try:
        text = record.decode()
    except UnicodeDecodeError:
        return JsonFault(Reason.MALFORMED, certain=True)
    if record.count(b"[") + record.count(b"{") > DEEPEST and nesting(record).max() > DEEPEST:
        return JsonFault(Reason.MALFORMED)
    try:
        members: _Members = _decoder.decode(text).members
    except json.JSONDecodeError:
        return JsonFault(Reason.MALFORMED, certain=not _LENIENT.search(record))
    return _first_fault(members, asked) or _overflow(members, asked.names) or JsonFault(Reason.MALFORMED)


def without_large_numbers(record: bytes) -> bytes:
    """Return the record with 0 for each number beyond float64, which is valid JSON and which the parser refuses.

    For a record in which all such numbers are in fields that nobody reads: the parser then skips them.
    """
    return _STRING_OR_NUMBER.sub(_tame, record)


def _tame(found: re.Match[bytes]) -> bytes:
    text = found[0]
    return text if text.startswith(b'"') or not math.isinf(float(text)) else b"0"


def infinity_reason(record: bytes, steps: tuple[PathStep, ...]) -> Reason:
    """Return the reason for an infinity in a field: written as such, or a finite number too large for the dtype."""
    if b"Inf" not in record:
        return Reason.OUT_OF_RANGE
    try:
        written = any(isinstance(value, _Literal) for value in _leaves(_decoder.decode(record.decode()), steps))
    except (ValueError, RecursionError):
        written = True  # a spelling that `json` does not know, as Inf
    return Reason.NOT_FINITE if written and b"Inf" in without_strings(record) else Reason.OUT_OF_RANGE


def _leaves(value: _Json, steps: tuple[PathStep, ...]) -> Iterator[_Json]:
    """Yield what stands at the end of the steps, in however many lists."""
    if isinstance(value, list):
        for element in value:
            yield from _leaves(element, steps)
    elif not isinstance(value, _Object):
        yield value
    elif steps:
        yield from (leaf for name, one in value.members if name == steps[0].name for leaf in _leaves(one, steps[1:]))


def _first_fault(members: _Members, asked: JsonAsked) -> JsonFault | None:
    """Return the first fault: repeated fields first, then in the order of the schema."""
    repeated = _repeated(members, asked.names)
    if repeated is not None:
        return JsonFault(Reason.MALFORMED, repeated, certain=True)
    for source, dtype, steps in asked.fields:
        reason = _fault_of_member(members, steps, dtype)
        if reason is not None:
            return JsonFault(reason, source, certain=True)
    return None


def _repeated(members: _Members, asked: Mapping[str, AskedField]) -> str | None:
    """Return the source of a name that a record has twice, and that is asked for; None where there is none."""
    seen = set[str]()
    for key, value in members:
        node = asked.get(key)
        if node is None:
            continue
        if key in seen:
            return node.source
        seen.add(key)
        for record in _records(value, node):
            if (inside := _repeated(record.members, node.members)) is not None:
                return inside
    return None


def _records(value: _Json, node: AskedField) -> Iterator[_Object]:
    """Yield the records in a value of which members are asked."""
    if node.leaf is not None:
        return
    level: list[_Json] = [value]
    for _ in range(node.lists):
        level = [element for each in level if isinstance(each, list) for element in each]
    yield from (each for each in level if isinstance(each, _Object))


def _fault_of_member(members: _Members, steps: tuple[PathStep, ...], dtype: DType) -> Reason | None:
    """Return why the parser cannot read the field at the end of the steps, or None if it can."""
    value = next((value for key, value in members if key == steps[0].name), None)
    return _fault(value, steps[0].lists, steps[1:], dtype)


def _fault(value: _Json, lists: int, inside: tuple[PathStep, ...], dtype: DType) -> Reason | None:
    """Return why the parser cannot read a value as so many lists of the field, or of the records that it is inside."""
    if value is None:
        return None
    if isinstance(value, list):
        if not lists:
            return Reason.WRONG_SHAPE
        return next(filter(None, (_fault(element, lists - 1, inside, dtype) for element in value)), None)
    if isinstance(value, _Object) and inside:
        return Reason.WRONG_SHAPE if lists else _fault_of_member(value.members, inside, dtype)
    if isinstance(value, _Object) or inside:
        return Reason.WRONG_TYPE
    return _scalar_fault(value, dtype) or (Reason.WRONG_SHAPE if lists else None)


def _scalar_fault(value: str | float | bool, dtype: DType) -> Reason | None:
    if _kind(value) != _KINDS.get(dtype, "number"):
        return Reason.WRONG_TYPE
    if _KINDS.get(dtype) or dtype in _FLOATS:
        return None
    if isinstance(value, int):
        return None if _INT64.min <= value <= _INT64.max else Reason.OUT_OF_RANGE
    return Reason.NOT_FINITE if isinstance(value, _Literal) else Reason.WRONG_TYPE


def _kind(value: str | float | bool) -> str:
    if isinstance(value, bool):
        return "bool"
    return "string" if type(value) is str else "number"


def _overflow(members: _Members, asked: Mapping[str, AskedField]) -> JsonFault | None:
    """Find a number too large for any float; the parser refuses some of these, in any field."""
    large = list(_large(members, asked))
    read = next(filter(None, large), None)
    if read is not None:
        return JsonFault(Reason.OUT_OF_RANGE, read)
    return JsonFault(Reason.MALFORMED, unread=True) if large else None


def _large(members: _Members, asked: Mapping[str, AskedField]) -> Iterator[str | None]:
    """Yield the source of each member that holds such a number, None for one that nobody reads."""
    for key, value in members:
        node = asked.get(key)
        if node is not None and node.leaf is None:
            for record in _records(value, node):
                yield from _large(record.members, node.members)
        elif _infinite(value):
            yield None if node is None else node.source


def _infinite(value: _Json) -> bool:
    if isinstance(value, _Object):
        return any(_infinite(member) for _, member in value.members)
    if isinstance(value, list):
        return any(map(_infinite, value))
    return isinstance(value, _Enormous) or (isinstance(value, float) and math.isinf(value))
