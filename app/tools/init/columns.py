"""The kind of each column, inferred from the values in some records. Pure.

Only what a draft needs is kept of the values: dtypes, lengths, the median, spread and quantiles of numbers, and the
classes of a label. All of them hold for most values, whatever a few outliers are.
"""

import re
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from millrace.pipelines.formats.draft import Row
from millrace.pipelines.formats.image.images import image_shape, looks_like_an_image
from millrace.pipelines.formats.shared.paths import VALUE, parse

_FEW = 64
"""The most distinct integers that count as categories."""
_MANY_ROWS = 50
_MS_FROM, _MS_TO = 10**12, 4 * 10**12
"""Milliseconds since 1970 between 2001 and 2096."""
_FINER = {"us": 10**3, "ns": 10**6}
"""How many of a finer unit are a millisecond."""
_SECONDS_FROM, _SECONDS_TO, _FEW_YEARS_S = 10**9, 2 * 10**9, 10 * 366 * 86400
"""Seconds since 1970 between 2001 and 2033, in a sample that covers ten years at most."""
_MAD_TO_SPREAD = 1.4826
"""Of normal numbers the standard deviation is so many times the median distance from the median."""
_TAIL = 0.05
_STEPS = 10
"""Between how many quantiles a number is linear. Five are as good on most streams, and twenty are not better."""
_ENDS = 0.01
"""The outermost quantiles are this share and one less it; beyond them are outliers."""
_FLOAT32_GRAIN = 2.0**-24
_FINE_ENOUGH = 0.01
"""The most that rounding to float32 may take, in spreads."""
_WORDS_OF_A_TEXT = 3
"""Texts of so many words, on average, are free text if hardly any comes twice."""
_SHOWN_KEYS = 4
_IMAGE_AS_TEXT = re.compile(r"(data:image/[\w.+-]+;base64,)?(/9j/|_9j_|iVBORw0KGgo)")
"""How base64 of a JPEG or a PNG begins."""
_NO_SIZE = (64, 64, 3)
"""The shape to which images are resized if none of them states one."""
_LONGEST_SIDE = 96
"""Larger images are drafted at this size: convolutions over more pixels learn too slowly on a processor."""
_IDENTITY = re.compile(
    r"(.*[a-z0-9])?(_id|Id|ID|_uuid|_guid)|id|uuid|guid|ID|UUID"
    r"|(?i:(.*_)?(key|user|customer|account|card|device|session|sensor|machine|host|vehicle|symbol)(_?id)?)"
)
_NEARLY_ALL = 0.99
"""The share of a column's values that decides its kind; records with others are set aside."""
_MOST_OF_AN_IDENTITY = 0.5
"""The share of distinct values above which texts are identities, and so are whole numbers that are named as those."""
_AN_IDENTITY = "an identity: most of its values come only once; name it with --features to learn from it"
_CONSTANT = "the same value in every record; name it with --features if that will change"
_GREATEST = 3.4e38
"""What a float32 holds; NaN and what is beyond count for nothing, and are set aside later."""
_GREATEST_INT64 = 2**63 - 1
_BEYOND_INT64 = "whole numbers beyond int64, in which categories are read; send it as a text to learn from it"
_NUMERIC = {int, float}
_CLOCK, _ZONE = r"[T ]\d\d:\d\d(:\d\d([.,]\d{1,9})?)?", r"(Z|[+-]\d\d(:?\d\d)?)"
_WRITTEN_TIME = re.compile(rf"\d{{4}}-\d\d-\d\d({_CLOCK}{_ZONE}?)?", re.IGNORECASE)
"""A date, or a date and a time, as ISO 8601 has them."""
_ZONED_TIME = re.compile(rf"\d{{4}}-\d\d-\d\d{_CLOCK}{_ZONE}", re.IGNORECASE)


_HALF_A_PAIR = re.compile("[\\ud800-\\udfff]")
"""JSON may spell a surrogate without its other half, and a record that does is set aside."""
_SECONDS = (
    "seconds since 1970, which only grow, so the model would soon see none that it knows. Name it with --event-time, "
    "send the hour or the age instead, or name it with --features"
)
_FREE_TEXT = "free text; name it with --features to learn from its words"


class ColumnKind(StrEnum):
    """What a column holds, in words."""

    NUMBER = "a number"
    CATEGORY = "a whole number of few values"
    FLAG = "true or false"
    TEXT = "text"
    NUMBERS = "a list of numbers"
    """All of one length."""
    VARYING_NUMBERS = "a list of numbers, of varying length"
    FREE_TEXT = "free text"
    """Learnt from by its words, where it is named."""
    TEXTS = "a list of texts"
    """However many."""
    IMAGE = "an image"
    TIME = "a time"
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
    centre: float = 0.0
    """The median of its numbers."""
    spread: float = 1.0
    """How far its numbers usually lie from the median: their standard deviation, if they were normal."""
    quantiles: tuple[float, ...] = ()
    """Of numbers: all values if they are few, else values that divide them into parts of one size; ascending."""
    fine: bool = False
    """Whether float32 is too coarse for its numbers, so that they must be scaled in float64."""
    lengths: tuple[int, int] = (0, 0)
    """Of lists: the least and the greatest."""
    shape: tuple[int, int, int] = (0, 0, 0)
    """Of images: height, width and channels to resize them to."""
    form: str = ""
    """Of a time: how it is written, as `records.event_time.format` names it; of an image as `image` does."""
    naive: bool = False
    """Of a time: whether some of its texts have no zone."""
    distinct: tuple[Any, ...] = ()
    """Its values, where they are few; only a label's are ever written down, and whole numbers."""
    values_seen: int = 0
    """How many different values it has; of lists how many different elements."""
    twin: str = ""
    """The source of an earlier column that has the same value in every record."""

    @property
    def last(self) -> str:
        """The last name on its path."""
        names = parse(self.source).names
        return names[-1] if names else self.source.removeprefix("$")

    @property
    def learnable(self) -> bool:
        """Whether it can be a feature."""
        return not self.why and self.kind not in {ColumnKind.UNFIT, ColumnKind.TIME, ColumnKind.FREE_TEXT}

    @property
    def learnable_by_name(self) -> bool:
        """Whether it can be a feature if the user names it."""
        return self.kind not in {ColumnKind.UNFIT, ColumnKind.TIME} or self.seconds

    @property
    def seconds(self) -> bool:
        """Whether its numbers look like seconds since 1970."""
        return self.form == "s"

    @property
    def timely(self) -> bool:
        """Whether it can be the event time."""
        return self.kind is ColumnKind.TIME or self.seconds

    @property
    def is_identity(self) -> bool:
        """Whether its values name things, one record or few each."""
        return self.why == _AN_IDENTITY

    @property
    def names_things(self) -> bool:
        """Whether it is named as identities are, so that the order of its numbers means nothing."""
        return _IDENTITY.fullmatch(self.last) is not None

    @property
    def ordered(self) -> bool:
        """Whether it is learnt as a number: a whole number of few values is, unless it is a name or a long code."""
        of_few = self.kind is ColumnKind.CATEGORY and not self.names_things and not self.fine
        return of_few or self.kind in {ColumnKind.NUMBER, ColumnKind.NUMBERS}

    @property
    def buckets(self) -> int:
        """How many rows an embedding of its values needs: a power of two, four for each value that was seen.

        A fifth of the values share a row then. Each step of Adam's moves all rows, so more of them take long.
        """
        return 1 << min(14, max(6, (4 * self.values_seen - 1).bit_length()))

    @property
    def bound(self) -> int:
        """Of lists that vary: a power of two above the longest that was seen."""
        return 1 << self.lengths[1].bit_length()


def columns_of(rows: Sequence[Row], nullable: Collection[tuple[str, ...]] = ()) -> list[ColumnLook]:
    """Return every column, in the order in which the records show them. `nullable`: what may be absent at any time."""
    sources = dict.fromkeys(source for row in rows for source in row)
    columns, first = list[ColumnLook](), dict[int, str]()
    for source in sources:
        values = [row.get(source) for row in rows]
        look = _column(source, values)
        # A column is not learnt from that never changes, or that repeats an earlier one.
        if not look.why and len(rows) >= _MANY_ROWS and look.kind is not ColumnKind.IMAGE:
            twin = first.setdefault(hash(tuple(hash(repr(value)) for value in values)), source)
            if values[0] is not None and all(value == values[0] for value in values):
                look = replace(look, why=_CONSTANT)
            elif twin != source:
                look = replace(look, why=f"the same as {twin} in every record", twin=twin)
        names = parse(source).names
        absent = look.absent or any(names[:depth] in nullable for depth in range(1, len(names) + 1))
        columns.append(replace(look, absent=absent))
    return columns


def _column(source: str, values: Sequence[Any]) -> ColumnLook:
    here = [value for value in values if value is not None]
    look = ColumnLook(source=source, absent=len(here) < len(values))
    # The few that are of another type than nearly all do not count.
    each = [float if type(value) in _NUMERIC else type(value) for value in here]
    common, count = Counter(each).most_common(1)[0] if each else (float, 0)
    if count >= _NEARLY_ALL * len(here):
        here = [value for value, one in zip(here, each, strict=True) if one is common]
    types = {*map(type, here)}
    if not types:
        return ColumnLook(source=source, why="always null")
    if types == {bool}:
        return replace(look, kind=ColumnKind.FLAG, distinct=(False, True))
    if types <= _NUMERIC:
        return _numbers(look, here)
    if form := _image_form(types, here):
        return replace(look, kind=ColumnKind.IMAGE, form=form, shape=_common_shape(form, here))
    if types in ({str}, {list}):
        return _texts(look, here) if types == {str} else _lists(look, here)
    mixed = "bytes that are no text" if bytes in types else "of several types"
    return ColumnLook(source=source, why=_nested("an object", here) if dict in types else mixed)


def _nearly_all(values: Sequence[Any], fits: Callable[[Any], object]) -> bool:
    return sum(bool(fits(value)) for value in values) >= _NEARLY_ALL * len(values)


def _image_form(types: Collection[type], here: Sequence[Any]) -> str:
    """Return how images are held, as `image` names it; nothing where the values are none."""
    if types == {bytes}:
        return "bytes" if _nearly_all(here, looks_like_an_image) else ""
    return "base64" if types == {str} and _nearly_all(here, _IMAGE_AS_TEXT.match) else ""


def _common_shape(form: str, here: Sequence[Any]) -> tuple[int, int, int]:
    """Return the median height and width, scaled down if they are large; grey only if all images are."""
    shapes = [
        image_shape(value, "bytes") if form == "bytes" else image_shape(value.encode(), "base64") for value in here
    ]
    known = [shape for shape in shapes if shape is not None]
    if not known:
        return _NO_SIZE
    height, width = (round(statistics.median(shape[axis] for shape in known)) for axis in (0, 1))
    scale = min(1.0, _LONGEST_SIDE / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale)), max(shape[2] for shape in known)


_NESTED = "name those to learn from by their paths, as in field: name.key"


def _nested(what: str, values: Sequence[Any]) -> str:
    """Name the fields of objects, and say what to do about them."""
    keys = [*dict.fromkeys(key for value in values if isinstance(value, dict) for key in value)]
    more = ", …" if len(keys) > _SHOWN_KEYS else ""
    return f"{what} (of {', '.join(keys[:_SHOWN_KEYS]) or 'nothing'}{more}); {_NESTED}"


def _numbers(look: ColumnLook, here: Sequence[float]) -> ColumnLook:
    finite = _finite(here)
    distinct = {*finite}
    look = replace(look, kind=ColumnKind.NUMBER, distinct=_few(distinct), values_seen=len(distinct))
    look = _scaled(look, finite)
    fractions = any(isinstance(value, float) for value in finite)
    if (why := _like_a_time(min(finite), max(finite), fractions=fractions)) is not None:
        return replace(look, kind=ColumnKind.UNFIT, why=why, form="s" if why == _SECONDS else "")
    if fractions:
        return look
    for form, size in {"ms": 1, **_FINER}.items():
        if all(_MS_FROM * size <= value <= _MS_TO * size for value in finite):
            return replace(look, kind=ColumnKind.TIME, why=f"a time in {form} since 1970", form=form)
    fit = _nearly_all(finite, lambda value: abs(value) <= _GREATEST_INT64)
    return _identity_or_number(look, len(distinct), len(finite), fit=fit)


def _identity_or_number(look: ColumnLook, distinct: int, count: int, *, fit: bool) -> ColumnLook:
    """Return what whole numbers are that are no times, by how many different ones there are, and if int64 has them."""
    if distinct == count >= _MANY_ROWS:
        return replace(look, kind=ColumnKind.UNFIT, why="another number in every record")
    if not fit:
        return replace(look, kind=ColumnKind.UNFIT, why=_BEYOND_INT64) if look.names_things else look
    if look.names_things:
        why = _AN_IDENTITY if distinct > _MOST_OF_AN_IDENTITY * count and count >= _MANY_ROWS else ""
        return replace(look, kind=ColumnKind.CATEGORY, why=why)
    return replace(look, kind=ColumnKind.CATEGORY) if distinct <= _FEW and distinct < count else look


def _like_a_time(low: float, high: float, *, fractions: bool) -> str | None:
    """Return why numbers in these bounds are not learnt from, if they look like a time; None where they do not."""
    if _SECONDS_FROM <= low < high <= _SECONDS_TO and high - low <= _FEW_YEARS_S:
        return _SECONDS
    if fractions and _MS_FROM <= low < high <= _MS_TO:
        return "milliseconds since 1970 with a fraction; an event time must be an integer"
    return None


def _finite(numbers: Sequence[float]) -> Sequence[float]:
    return [number for number in numbers if -_GREATEST <= number <= _GREATEST] or [0.0]


def _scaled(look: ColumnLook, finite: Sequence[float]) -> ColumnLook:
    centre, ordered = statistics.median(finite), sorted(finite)
    tail = int(_TAIL * len(ordered))
    # The usual distance from the median, of the first of these ways that does not give 0.
    ways: tuple[Callable[[], float], ...] = (
        lambda: _MAD_TO_SPREAD * statistics.median(abs(number - centre) for number in finite),
        lambda: statistics.pstdev(ordered[tail : len(ordered) - tail]),  # more than half of them are alike
        lambda: statistics.pstdev(finite),
    )
    spread = next((float(spread) for way in ways if (spread := way()) > 0), 1.0)
    coarse = max(map(abs, finite)) * _FLOAT32_GRAIN
    quantiles = _quantiles(ordered)
    return replace(look, centre=float(centre), spread=spread, quantiles=quantiles, fine=coarse > _FINE_ENOUGH * spread)


def _quantiles(ordered: Sequence[float]) -> tuple[float, ...]:
    """Return the values if they are few, and else quantiles, ascending and each once."""
    if len(distinct := dict.fromkeys(ordered)) <= _STEPS + 1:
        return tuple(map(float, distinct))
    shares = [_ENDS, *(step / _STEPS for step in range(1, _STEPS)), 1 - _ENDS]
    return tuple(dict.fromkeys(float(ordered[round(share * (len(ordered) - 1))]) for share in shares))


def _few(distinct: Collection[Any]) -> tuple[Any, ...]:
    return tuple(sorted(distinct)) if len(distinct) <= _FEW else ()


def _texts(look: ColumnLook, here: Sequence[str]) -> ColumnLook:
    distinct = {text for text in here if not _HALF_A_PAIR.search(text)}
    if _nearly_all(here, _WRITTEN_TIME.fullmatch):
        naive = not _nearly_all(here, _ZONED_TIME.fullmatch)
        why = f"a time as text{', without a zone' * naive}"
        return replace(look, kind=ColumnKind.TIME, why=why, form="iso8601", naive=naive)
    words = statistics.fmean(len(text.split()) for text in here)
    if look.source == VALUE and len(distinct) > _FEW:
        return replace(look, kind=ColumnKind.FREE_TEXT, why=_FREE_TEXT)
    if 2 * len(distinct) > len(here) >= _MANY_ROWS and words >= _WORDS_OF_A_TEXT:
        return replace(look, kind=ColumnKind.FREE_TEXT, why=_FREE_TEXT)
    if len(distinct) == len(here) >= _MANY_ROWS:
        return ColumnLook(source=look.source, why="another text in every record")
    why = _AN_IDENTITY if len(distinct) > _MOST_OF_AN_IDENTITY * len(here) and len(here) >= _MANY_ROWS else ""
    return replace(look, kind=ColumnKind.TEXT, distinct=_few(distinct), values_seen=len(distinct), why=why)


def _lists(look: ColumnLook, here: Sequence[list[Any]]) -> ColumnLook:
    elements = [element for value in here for element in value]
    types = {*map(type, elements)}
    lengths = [len(value) for value in here]
    look = replace(look, lengths=(min(lengths), max(lengths)))
    if (why := _unfit_list(elements, types)) is not None:
        return replace(look, why=why)
    if types <= _NUMERIC:
        same_length = look.lengths[0] == look.lengths[1]
        kind = ColumnKind.NUMBERS if same_length else ColumnKind.VARYING_NUMBERS
        return _scaled(replace(look, kind=kind), _finite(elements))
    return replace(look, kind=ColumnKind.TEXTS, values_seen=len({*elements}))


def _unfit_list(elements: Sequence[Any], types: Collection[type]) -> str | None:
    """Return why a list of such elements is not learnt from; None where it can be."""
    if not elements:
        return "always an empty list"
    if type(None) in types:
        return "a list with null in it"
    if dict in types:
        return _nested("a list of objects", elements)
    if {*types} <= _NUMERIC:
        return None
    if {*types} != {str}:
        return "a list of something else than numbers or texts"
    return "another text in every place" if len({*elements}) == len(elements) >= _MANY_ROWS else None
