"""The kind of each column, inferred from the values in some records. Pure.

Only what a schema needs is kept of the values: dtypes, lengths, the mean and spread of numbers, and the classes of a
label.
"""

import re
import statistics
from collections.abc import Sequence
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
_WRITTEN_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d([.,]\d+)?)?)?(Z|[+-]\d\d(:?\d\d)?)?", re.IGNORECASE)
"""A date, or a date and a time, as ISO 8601 has them."""


class ColumnKind(StrEnum):
    """What a column holds."""

    NUMBER = "number"
    CATEGORY = "category"
    """An integer of few values."""
    FLAG = "flag"
    """true or false."""
    TEXT = "text"
    NUMBERS = "numbers"
    """A list with a fixed number of numbers."""
    VARYING_NUMBERS = "varying_numbers"
    """A list whose length varies."""
    TEXTS = "texts"
    """A list of texts, however many."""
    TIME = "time"
    """Milliseconds since 1970."""
    UNFIT = "unfit"

    @property
    def in_words(self) -> str:
        """The kind in words."""
        return _IN_WORDS[self]

    @property
    def varies(self) -> bool:
        """Whether it is a list whose length differs between records."""
        return self in {ColumnKind.VARYING_NUMBERS, ColumnKind.TEXTS}


_IN_WORDS = {
    ColumnKind.NUMBER: "a number",
    ColumnKind.CATEGORY: "an integer of few values, taken for a category",
    ColumnKind.FLAG: "true or false",
    ColumnKind.TEXT: "text",
    ColumnKind.NUMBERS: "a list of numbers",
    ColumnKind.VARYING_NUMBERS: "a list of numbers, of varying length",
    ColumnKind.TEXTS: "a list of texts",
    ColumnKind.TIME: "milliseconds since 1970",
    ColumnKind.UNFIT: "not to be learnt from",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnLook:
    """What the records show of one column."""

    source: str
    kind: ColumnKind
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
    absent = len(here) < len(values)
    if here and all(isinstance(value, bool) for value in here):
        return ColumnLook(source=source, kind=ColumnKind.FLAG, absent=absent, distinct=(False, True))
    if here and all(map(_is_number, here)):
        return _numbers(source, here, absent=absent)
    if here and all(isinstance(value, str) for value in here):
        return _texts(source, here, absent=absent)
    if here and all(isinstance(value, list) for value in here):
        return _lists(source, here, absent=absent)
    an_object = any(isinstance(value, dict) for value in here)
    why = "an object; only fields at the top can be read" if an_object else "of several types"
    return ColumnLook(source=source, kind=ColumnKind.UNFIT, why=why if here else "always null")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _numbers(source: str, here: Sequence[float], *, absent: bool) -> ColumnLook:
    finite = _finite(here)
    distinct = {*finite}
    whole = all(isinstance(value, int) for value in finite)
    look = ColumnLook(
        source=source,
        kind=ColumnKind.NUMBER,
        absent=absent,
        mean=statistics.fmean(finite),
        spread=statistics.pstdev(finite) or 1.0,
        distinct=tuple(sorted(distinct)) if len(distinct) <= _FEW else (),
    )
    if not whole:
        return look
    if all(_MS_FROM <= value <= _MS_TO for value in finite):
        return _as(look, ColumnKind.TIME, "milliseconds since 1970")
    if len(distinct) == len(finite) >= _MANY_ROWS:
        return _as(look, ColumnKind.UNFIT, "another number in every record")
    if len(distinct) <= _FEW and len(distinct) < len(finite):
        return _as(look, ColumnKind.CATEGORY, "")
    return look


def _finite(numbers: Sequence[float]) -> Sequence[float]:
    return [number for number in numbers if -_GREATEST <= number <= _GREATEST] or [0.0]


def _as(look: ColumnLook, kind: ColumnKind, why: str) -> ColumnLook:
    return replace(look, kind=kind, why=why)


def _texts(source: str, here: Sequence[str], *, absent: bool) -> ColumnLook:
    distinct = {*here}
    if all(map(_WRITTEN_TIME.fullmatch, here)):
        why = "a time as text; an event time must be an integer, milliseconds since 1970"
        return ColumnLook(source=source, kind=ColumnKind.UNFIT, why=why)
    if len(distinct) == len(here) >= _MANY_ROWS:
        return ColumnLook(source=source, kind=ColumnKind.UNFIT, why="another text in every record")
    few = tuple(sorted(distinct)) if len(distinct) <= _FEW else ()
    return ColumnLook(source=source, kind=ColumnKind.TEXT, absent=absent, distinct=few)


def _lists(source: str, here: Sequence[list[Any]], *, absent: bool) -> ColumnLook:
    elements = [element for value in here for element in value]
    look = ColumnLook(
        source=source, kind=ColumnKind.UNFIT, absent=absent, lengths=(min(map(len, here)), max(map(len, here)))
    )
    if not elements:
        return replace(look, why="always an empty list")
    if any(element is None for element in elements):
        return replace(look, why="a list with null in it")
    if all(map(_is_number, elements)):
        return _number_lists(look, elements)
    if not all(isinstance(element, str) for element in elements):
        return replace(look, why="a list of something else than numbers or texts")
    if len({*elements}) == len(elements) >= _MANY_ROWS:
        return replace(look, why="another text in every place")
    return replace(look, kind=ColumnKind.TEXTS)


def _number_lists(look: ColumnLook, elements: Sequence[float]) -> ColumnLook:
    finite, (least, greatest) = _finite(elements), look.lengths
    return replace(
        look,
        kind=ColumnKind.NUMBERS if least == greatest else ColumnKind.VARYING_NUMBERS,
        mean=statistics.fmean(finite),
        spread=statistics.pstdev(finite) or 1.0,
    )
