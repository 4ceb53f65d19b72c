"""Event times that are no integers of milliseconds: other units, and texts as ISO 8601 has them, for a whole column.

Pure functions of each time by itself. Only Arrow's conversion decides whether a text is a time. It takes milliseconds
of a fraction at most and a point before them, so digits behind those are cut off first, which rounds down, also before
1970. A text without a zone is a wall clock's time in the zone of the settings: where a clock shows a time twice it is
the first, and a time that it skips is as long after the change as it says, as `datetime` has both.
"""

import re
from contextlib import suppress
from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.consumers.reasons import Reason
from millrace.consumers.records import Int64s
from millrace.pipelines.formats.shared.pieces import is_utf8
from millrace.pipelines.schema import Column, TimeFormat

Mask = npt.NDArray[np.bool_]
_OF_A_MS = {"us": 1_000, "ns": 1_000_000}
_MOST_S = (2**63 - 1024) / 1000
"""The most seconds whose milliseconds an int64 holds."""
_UTC, _NAIVE = pa.timestamp("ms", "UTC"), pa.timestamp("ms")
_FORM = r"^\d{4}-\d\d-\d\d([T ]\d\d(:\d\d(:\d\d([.,]\d{1,9})?)?)?(Z|[+-]\d\d(:?\d\d)?)?)?$"
_ZONED = r"[T ].*(Z|[+-]\d\d(:?\d\d)?)$"
_CERTAIN = (
    r"^(19|20)\d\d-(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])([T ]([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d{1,3})?)?"
    r"(Z|[+-](0\d|1[0-4]):?[0-5]\d)?)?$"
)
"""Texts that certainly convert; of the others each is tried."""
_MINUTE_MS, _SECOND_MS = 60_000, 1_000
_WHOLE_MINUTES_FROM_MS = 94_694_400_000
"""Since 1973 all clocks differ from UTC by whole minutes, and change at whole minutes."""
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - of a wall clock
_FIRST_MS = (datetime(1, 1, 1) - _EPOCH) // timedelta(milliseconds=1)  # noqa: DTZ001 - of a wall clock
"""A text may say a year 0, which `datetime` has not: clocks showed then what they did in the year 1."""
_ZERO = timedelta()


def milliseconds(column: Column, form: TimeFormat) -> tuple[Int64s, list[tuple[Reason, Mask]]]:
    """Return times in milliseconds since 1970, and those at fault by reason, in whose place any number stands."""
    untimely, beyond = np.zeros(len(column), np.bool_), np.zeros(len(column), np.bool_)
    if form.unit == "iso8601":
        times, untimely = _of_texts(column, form.zone)
    elif form.unit == "s":
        seconds = column.astype(np.float64)
        beyond = np.abs(seconds) > _MOST_S
        times = np.rint(np.where(beyond, 0.0, seconds) * 1000).astype(np.int64)
    else:
        times = column.astype(np.int64) // _OF_A_MS.get(form.unit, 1)
    if form.min is not None:
        beyond = beyond | (times < form.min)
    if form.max is not None:
        beyond = beyond | (times > form.max)
    return times, [(Reason.WRONG_TYPE, untimely), (Reason.OUT_OF_RANGE, beyond & ~untimely)]


def _of_texts(column: Column, zone: str | None) -> tuple[Int64s, Mask]:
    """Return the times of texts, and which of them are no times."""
    texts = _readable(column)
    if (times := _alike(texts, zone)) is not None:
        return times, np.zeros(len(texts), np.bool_)
    texts = pc.ascii_upper(texts)
    # The form is checked with what is cut off then: ten digits of a fraction are no time.
    formed, zoned = (_mask(pc.match_substring_regex(texts, form)) for form in (_FORM, _ZONED))
    texts = pc.replace_substring_regex(pc.replace_substring(texts, ",", "."), r"(\.\d{3})\d+", r"\1")
    times, known = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.bool_)
    for rows, kind in ((formed & zoned, _UTC), (formed & ~zoned, _NAIVE)):
        if kind is _NAIVE and zone is None:
            continue
        there = np.flatnonzero(rows)
        found, converts = _sifted(texts.take(pa.array(there)), kind)
        times[there] = found if kind is _UTC or zone is None else _from_wall_clock(found, zone)
        known[there] = converts
    return times, ~known


def _alike(texts: pa.Array, zone: str | None) -> Int64s | None:
    """Return the times where each text has a zone, or none has, and six digits of a fraction at most: most often."""
    # A cast that fails takes ten times as long as one that does not, so the first text says which to try.
    zoned = len(texts) == 0 or re.search(_ZONED, texts[0].as_py()) is not None
    if not zoned and zone is None:
        return None
    with suppress(pa.ArrowInvalid):
        times = _numbers(texts.cast(pa.timestamp("us", "UTC" if zoned else None))) // _OF_A_MS["us"]
        return times if zoned or zone is None else _from_wall_clock(times, zone)
    return None


def _readable(column: Column) -> pa.Array:
    """Return texts, an empty one in place of bytes that are none."""
    words = pa.array(column, pa.binary())
    try:
        return words.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([word if is_utf8(word) else b"" for word in column], pa.binary()).cast(pa.string())


def _sifted(texts: pa.Array, kind: pa.DataType) -> tuple[Int64s, Mask]:
    """Return the times of texts, and which of them are times."""
    try:
        return _numbers(texts.cast(kind)), np.ones(len(texts), np.bool_)
    except pa.ArrowInvalid:
        doubtful = pc.unique(texts.filter(pc.invert(pc.match_substring_regex(texts, _CERTAIN))))
    refused = pa.array([text for text in doubtful.to_pylist() if not _converts(text, kind)], pa.string())
    bad = pc.is_in(texts, value_set=refused)
    return _numbers(pc.if_else(bad, pa.scalar(None, pa.string()), texts).cast(kind)), ~_mask(bad)


def _converts(text: str, kind: pa.DataType) -> bool:
    try:
        pa.scalar(text).cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _numbers(times: pa.Array) -> Int64s:
    numbers: Int64s = times.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return numbers


def _mask(flags: pa.Array) -> Mask:
    mask: Mask = flags.to_numpy(zero_copy_only=False)
    return mask


def _from_wall_clock(shown: Int64s, zone: str) -> Int64s:
    """Return the times at which a zone's clocks show these milliseconds."""
    step = np.where(shown < _WHOLE_MINUTES_FROM_MS, _SECOND_MS, _MINUTE_MS)
    minutes, places = np.unique(shown - shown % step, return_inverse=True)
    clock = ZoneInfo(zone)
    offsets = np.array([_offset_ms(clock, minute) for minute in minutes.tolist()], np.int64)
    return shown - offsets[places] if len(shown) else shown


@lru_cache(maxsize=4096)
def _offset_ms(clock: ZoneInfo, shown_ms: int) -> int:
    offset = (_EPOCH + timedelta(milliseconds=max(shown_ms, _FIRST_MS))).replace(tzinfo=clock).utcoffset() or _ZERO
    return round(offset.total_seconds() * 1000)
