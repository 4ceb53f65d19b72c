"""Why a JSON record was refused: a slow, careful look at its own bytes.

Pure functions. The parser of `pipelines.decoders.json` decides alone whether a record is refused; this says why, and
how sure it is that the parser refuses it, so that a flood need not be handed to the parser one by one. It looks only
for what the parser refuses: null, lengths and ranges show in the columns.
"""

import json
import math
import re
from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple, TypeAlias

import numpy as np

from consumers.reasons import Reason
from pipelines.decoders.json_framing import nesting, without_strings
from pipelines.schema import DType, Field

DEEPEST = 200
"""How deep a record may nest to be looked into. The parser itself knows no limit, in memory or on the stack."""

_INT64 = np.iinfo(np.int64)
_INT64_DIGITS = 20
"""More, and it is too large without being read: reading takes the square of the digits."""
_KINDS = {"bool": "bool", "string": "string"}
"""Of JSON values; every other dtype is read from a number."""
_FLOATS = ("float16", "float32", "float64")
_LENIENT = re.compile(rb"Inf|-NaN")
"""Literals that the parser reads and `json` does not."""


class Sure(Enum):
    """How sure it is that the parser refuses the record."""

    CERTAIN = auto()
    LIKELY = auto()
    """Something is wrong; the parser is known to be more lenient, or to have limits of its own."""
    UNKNOWN = auto()
    """Nothing was found."""


class JsonFault(NamedTuple):
    """The verdict on a record, if the parser refuses it."""

    reason: Reason
    field: str | None
    sure: Sure


class _Literal(str):
    """NaN, Infinity, -Infinity."""

    __slots__ = ()


class _Object:
    """Every member, repeated keys included."""

    __slots__ = ("members",)

    def __init__(self, members: "list[tuple[str, _Json]]") -> None:
        self.members = members


_Json: TypeAlias = "str | float | bool | list[_Json] | _Object | None"


def _integer(text: str) -> int:
    return int(text) if len(text) <= _INT64_DIGITS else _INT64.max + 1


_decoder = json.JSONDecoder(parse_int=_integer, parse_constant=_Literal, object_pairs_hook=_Object)


def diagnose(record: bytes, fields: Mapping[str, Field]) -> JsonFault:
    """Why the parser refuses this record, or would if it does. `fields` by source, in the schema's order."""
    try:
        text = record.decode()
    except UnicodeDecodeError:
        return JsonFault(Reason.MALFORMED, None, Sure.CERTAIN)
    if record.count(b"[") + record.count(b"{") > DEEPEST and nesting(record).max() > DEEPEST:
        return JsonFault(Reason.MALFORMED, None, Sure.UNKNOWN)
    try:
        members: list[tuple[str, _Json]] = _decoder.decode(text).members
    except json.JSONDecodeError:
        return JsonFault(Reason.MALFORMED, None, Sure.LIKELY if _LENIENT.search(record) else Sure.CERTAIN)
    return (
        _first_fault(members, fields) or _overflow(members, fields) or JsonFault(Reason.MALFORMED, None, Sure.UNKNOWN)
    )


def infinity_reason(record: bytes) -> Reason:
    """Whether an infinity in a record's columns was written as such, or a finite number too large for its dtype."""
    return Reason.NOT_FINITE if b"Inf" in without_strings(record) else Reason.OUT_OF_RANGE


def _first_fault(members: list[tuple[str, _Json]], fields: Mapping[str, Field]) -> JsonFault | None:
    """Repeated fields first, then by the schema's order."""
    read: dict[str, _Json] = {}
    for key, value in members:
        if key in fields:
            if key in read:
                return JsonFault(Reason.MALFORMED, key, Sure.CERTAIN)
            read[key] = value
    for source, field in fields.items():
        reason = _fault(read.get(source), field.dtype, len(field.shape))
        if reason is not None:
            return JsonFault(reason, source, Sure.CERTAIN)
    return None


def _fault(value: _Json, dtype: DType, rank: int) -> Reason | None:
    """What keeps the parser from reading a value as a tensor of this rank, if anything."""
    if value is None:
        return None
    if isinstance(value, _Object):
        return Reason.WRONG_TYPE
    if isinstance(value, list):
        if not rank:
            return Reason.WRONG_SHAPE
        return next(filter(None, (_fault(element, dtype, rank - 1) for element in value)), None)
    return _scalar_fault(value, dtype) or (Reason.WRONG_SHAPE if rank else None)


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


def _overflow(members: list[tuple[str, _Json]], fields: Mapping[str, Field]) -> JsonFault | None:
    """A number too large for any float; the parser refuses some of them, wherever they stand."""
    for key, value in members:
        if _infinite(value):
            known = key in fields
            return JsonFault(Reason.OUT_OF_RANGE if known else Reason.MALFORMED, key if known else None, Sure.LIKELY)
    return None


def _infinite(value: _Json) -> bool:
    if isinstance(value, _Object):
        return any(_infinite(member) for _, member in value.members)
    if isinstance(value, list):
        return any(map(_infinite, value))
    return isinstance(value, float) and math.isinf(value)
