"""Slices: the rows of a decoded chunk together with the contiguous range of offsets that they settle.

Owns the arithmetic of ranges: which offsets travel with which row, what a skip cuts out, what is a gap. Pure; runs
anywhere.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from millrace.consumers.fingerprints import Fingerprint
from millrace.consumers.records import Int64s, Partition
from millrace.pipelines.stream.decode import Decoded
from millrace.pipelines.stream.offset_counts import OffsetCounts

T = TypeVar("T", bound=str)
Skipped = tuple[int, str]
"""The offset of a record that is skipped, and the command or the setting that it is skipped by."""


class SkipRange(Protocol):
    """Offsets [start, end) of a partition that a command cut out of history."""

    @property
    def order(self) -> str:
        """The name of the command, by which the offsets are counted."""

    @property
    def partition(self) -> Partition:
        """The partition of the offsets."""

    @property
    def start(self) -> int:
        """The first offset cut out."""

    @property
    def end(self) -> int:
        """One past the last offset cut out."""


def within(skips: Sequence[SkipRange], partition: Partition, offsets: Int64s) -> npt.NDArray[np.int64]:
    """Return, for each offset, the index of the first skip that cuts it out, or -1 where none does."""
    which = np.full(len(offsets), -1, dtype=np.int64)
    for index, skip in enumerate(skips):
        if skip.partition == partition:
            which[(which < 0) & (offsets >= skip.start) & (offsets < skip.end)] = index
    return which


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice(OffsetCounts):
    """Rows [first, last) of a decoded chunk, and the counts of the offsets [start, end) that they settle."""

    decoded: Decoded
    first: int
    last: int
    start: int
    end: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.last - self.first

    @property
    def fingerprint(self) -> Fingerprint | None:
        """The fingerprint of the chunk's last record; None where this slice does not settle that record."""
        return self.decoded.fingerprint if self.end == self.decoded.end else None


class Remainder:
    """What is left of a decoded chunk after slices were cut from its front.

    A slice up to row j settles the offsets up to that of row j. The offsets before the next row (refused, skipped,
    filtered, gaps) belong to the next slice; the slice with the last row reaches to the end of the chunk.
    """

    def __init__(self, decoded: Decoded, skipped: Sequence[Skipped] = ()) -> None:
        """Take a chunk whose rows are those to learn, and its records that are skipped, sorted by offset."""
        self.decoded = decoded
        self.start = decoded.start
        self._first = 0
        self._refused = _OffsetEvents([one.offset for one in decoded.refused], [one.reason for one in decoded.refused])
        self._skipped = _OffsetEvents([at for at, _ in skipped], [order for _, order in skipped])
        self._filtered = 0
        """How many of the filtered offsets were cut off."""
        self._lost = decoded.lost

    @property
    def rows(self) -> int:
        """The number of rows that are left."""
        return len(self.decoded.offsets) - self._first

    @property
    def exhausted(self) -> bool:
        """Whether all of its offsets have been cut off."""
        return self.start == self.decoded.end and not self.rows

    def cut(self, rows: int) -> Slice:
        """Cut off the next rows with their offsets; 0 rows only where no row is left, for the offsets that remain."""
        first, last = self._first, self._first + rows
        if not 0 <= rows <= self.rows or (rows == 0 and self.rows):
            raise ValueError(f"cannot cut {rows} rows off a chunk of which {self.rows} are left")
        whole = last == len(self.decoded.offsets)
        end = self.decoded.end if whole else int(self.decoded.offsets[last - 1]) + 1
        set_aside, skipped = self._refused.cut(end), self._skipped.cut(end)
        filtered = int(self.decoded.filtered.searchsorted(end)) - self._filtered
        empty = end - self.start - rows - set_aside.total() - skipped.total() - filtered
        # Retention removes the oldest records of a partition, so the lost offsets come before any gap.
        lost = min(self._lost, empty)
        masks = self.decoded.truncated.items()
        piece = Slice(
            decoded=self.decoded,
            first=first,
            last=last,
            start=self.start,
            end=end,
            learnt=rows,
            set_aside=set_aside,
            skipped=skipped,
            filtered=filtered,
            gaps=empty - lost,
            lost=lost,
            truncated={name: cut for name, mask in masks if (cut := int(mask[first:last].sum()))},
        )
        self._first, self.start, self._lost = last, end, self._lost - lost
        self._filtered += filtered
        return piece


class _OffsetEvents(Generic[T]):
    """What happened at some offsets, which ascend."""

    def __init__(self, offsets: Sequence[int], events: Sequence[T]) -> None:
        self._offsets, self._events, self._first = offsets, events, 0

    def cut(self, end: int) -> Counter[T]:
        """Cut off what is before an offset, and count it."""
        first, self._first = self._first, bisect_left(self._offsets, end, self._first)
        return Counter(self._events[first : self._first])


def cut_out(decoded: Decoded, skips: Sequence[SkipRange]) -> tuple[Decoded, list[Skipped]]:
    """Return the chunk without the records that a skip covers, and those records with the command, sorted."""
    if not skips:
        return decoded, []
    rows = within(skips, decoded.partition, decoded.offsets)
    refused_at = np.array([refused.offset for refused in decoded.refused], dtype=np.int64)
    refused = within(skips, decoded.partition, refused_at)
    filtered = within(skips, decoded.partition, decoded.filtered)
    which = np.concatenate([rows, refused, filtered])
    if (which < 0).all():
        return decoded, []
    offsets = np.concatenate([decoded.offsets, refused_at, decoded.filtered])
    cut = sorted((int(offset), skips[index].order) for offset, index in zip(offsets, which, strict=True) if index >= 0)
    kept = only(decoded, np.flatnonzero(rows < 0))
    left = tuple(decoded.refused[index] for index in np.flatnonzero(refused < 0))
    return replace(kept, refused=left, filtered=decoded.filtered[filtered < 0]), cut


def only(decoded: Decoded, rows: Int64s) -> Decoded:
    """Return the chunk with these of its rows alone."""
    return replace(
        decoded,
        offsets=decoded.offsets[rows],
        event_times=decoded.event_times[rows],
        features={name: column[rows] for name, column in decoded.features.items()},
        labels={name: column[rows] for name, column in decoded.labels.items()},
        weights=None if decoded.weights is None else decoded.weights[rows],
        truncated={name: mask[rows] for name, mask in decoded.truncated.items()},
        keys=None if decoded.keys is None else decoded.keys[rows],
        timestamps=None if decoded.timestamps is None else decoded.timestamps[rows],
    )
