"""The kind of each column, inferred from the values in some records. Pure.

Only what a schema needs is kept of the values: dtypes, lengths, the mean and spread of numbers, and the classes of a
label.
"""

import re
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from app.tools.init.topic_sample import Row

_FEW = 64
"""The most distinct integers that count as categories."""
_MANY_ROWS = 50
_MS_FROM, _MS_TO = 10**12, 4 * 10**12
"""Milliseconds since 1970 between 2001 and 2096."""
_GREATEST = 3.4e38
"""What a float32 holds; NaN and what is beyond count for nothing, and are set aside later."""
_NUMERIC = {int, float}
_WRITTEN_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d([.,]\d+)?)?)?(Z|[+-]\d\d(:?\d\d)?)?", re.IGNORECASE)
"""A date, or a date and a time, as ISO 8601 has them."""


class ColumnKind(StrEnum):
    """What a column holds, in words."""

    NUMBER = "a number"
    CATEGORY = "an integer of few values, taken for a category"
    FLAG = "true or false"
    TEXT = "text"
    NUMBERS = "a list of numbers"
    """All of one length."""
    VARYING_NUMBERS = "a list of numbers, of varying length"
    TEXTS = "a list of texts"
    """However many."""
    TIME = "milliseconds since 1970"
    UNFIT = "not to be learnt from"

    @property
    def varies(self) -> bool:
        """Whether it is a list whose length differs between records."""
        return self in {ColumnKind.VARYING_NUMBERS, ColumnKind.TEXTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnLook:
    """What the records show of one column."""

    source: str
    kind: ColumnKind = ColumnKind.UNFIT
    why: str = ""
    """Why it is not learnt from, where it is not."""
    absent: bool = False
    """Whether some records lack it."""
    mean: float = 0.0
    spread: float = 1.0
    lengths: tuple[int, int] = (0, 0)
    """Of lists: the least and the greatest."""
    distinct: tuple[Any, ...] = ()
    """Its values, where they are few; only a label's are ever written down."""

    @property
    def learnable(self) -> bool:
        """Whether it can be a feature."""
        return self.kind not in {ColumnKind.UNFIT, ColumnKind.TIME}

    @property
    def bound(self) -> int:
        """Of lists that vary: a power of two above the longest that was seen."""
        return 1 << self.lengths[1].bit_length()


def columns_of(rows: Sequence[Row]) -> list[ColumnLook]:
    """Return every column, in the order in which the records show them."""
    sources = dict.fromkeys(source for row in rows for source in row)
    return [_column(source, [row.get(source) for row in rows]) for source in sources]


def _column(source: str, values: Sequence[Any]) -> ColumnLook:
    here = [value for value in values if value is not None]
    look = ColumnLook(source=source, absent=len(here) < len(values))
    types = {*map(type, here)}
    if not types:
        return ColumnLook(source=source, why="always null")
    if types == {bool}:
        return replace(look, kind=ColumnKind.FLAG, distinct=(False, True))
    if types <= _NUMERIC:
        return _numbers(look, here)
    if types == {str}:
        return _texts(look, here)
    if types == {list}:
        return _lists(look, here)
    an_object = "an object; only fields at the top can be read"
    return ColumnLook(source=source, why=an_object if dict in types else "of several types")


def _numbers(look: ColumnLook, here: Sequence[float]) -> ColumnLook:
    finite = _finite(here)
    distinct = {*finite}
    look = _scaled(replace(look, kind=ColumnKind.NUMBER, distinct=_few(distinct)), finite)
    if any(isinstance(value, float) for value in finite):
        return look
    if all(_MS_FROM <= value <= _MS_TO for value in finite):
        return replace(look, kind=ColumnKind.TIME, why=ColumnKind.TIME)
    if len(distinct) == len(finite) >= _MANY_ROWS:
        return replace(look, kind=ColumnKind.UNFIT, why="another number in every record")
    if len(distinct) <= _FEW and len(distinct) < len(finite):
        return replace(look, kind=ColumnKind.CATEGORY)
    return look


def _finite(numbers: Sequence[float]) -> Sequence[float]:
    return [number for number in numbers if -_GREATEST <= number <= _GREATEST] or [0.0]


def _scaled(look: ColumnLook, finite: Sequence[float]) -> ColumnLook:
    return replace(look, mean=statistics.fmean(finite), spread=statistics.pstdev(finite) or 1.0)


def _few(distinct: Collection[Any]) -> tuple[Any, ...]:
    return tuple(sorted(distinct)) if len(distinct) <= _FEW else ()


def _texts(look: ColumnLook, here: Sequence[str]) -> ColumnLook:
    distinct = {*here}
    if all(map(_WRITTEN_TIME.fullmatch, here)):
        why = "a time as text; an event time must be an integer, milliseconds since 1970"
        return ColumnLook(source=look.source, why=why)
    if len(distinct) == len(here) >= _MANY_ROWS:
        return ColumnLook(source=look.source, why="another text in every record")
    return replace(look, kind=ColumnKind.TEXT, distinct=_few(distinct))


def _lists(look: ColumnLook, here: Sequence[list[Any]]) -> ColumnLook:
    elements = [element for value in here for element in value]
    types = {*map(type, elements)}
    lengths = [len(value) for value in here]
    look = replace(look, lengths=(min(lengths), max(lengths)))
    if not elements:
        return replace(look, why="always an empty list")
    if type(None) in types:
        return replace(look, why="a list with null in it")
    if types <= _NUMERIC:
        same_length = look.lengths[0] == look.lengths[1]
        kind = ColumnKind.NUMBERS if same_length else ColumnKind.VARYING_NUMBERS
        return _scaled(replace(look, kind=kind), _finite(elements))
    if types != {str}:
        return replace(look, why="a list of something else than numbers or texts")
    if len({*elements}) == len(elements) >= _MANY_ROWS:
        return replace(look, why="another text in every place")
    return replace(look, kind=ColumnKind.TEXTS)
