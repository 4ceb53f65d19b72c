"""The index: the labels that records may still come for, found by their key and time.

Owns them as columns, without an object for each, behind one lock: the reader's thread inserts, records are matched on
the generator's thread, and settled and saved on the trainer's. Labels lie in runs that are sorted by the hash of their
key; small runs are merged, so that there are few. Most records have no label, so a filter of bits comes first: a record
that has none costs a look at one bit. What a record gets is a function of the labels alone, however they are cut.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.consumers.records import Int64s
from millrace.pipelines.schema import Column
from millrace.pipelines.shaping.labels.clock import NEVER
from millrace.pipelines.shaping.labels.rules import Match, Take

UInt32s = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]
Marks = dict[int, tuple[Int64s, Bytes]]
"""By partition, the offsets of labels that have flags, ascending, and their flags."""
USED, FITTED, LATE, SKIPPED = 1, 2, 4, 8
"""Flags of a label: a settled record got it; one could have got it; one would have, if it had come in time; a command
has cut it out of history."""
_MOST = 500_000
"""The largest run that is merged, as a merge takes as much memory again."""
_PENDING = 16
"""So many insertions wait at most until they are sorted."""
_LABEL_BYTES = 45
"""About what a label takes."""
_BITS_EACH = 16
"""Bits of the filter for each label: then one in sixteen records without a label is looked for in vain."""
_LEAST_BITS = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """Labels of one partition, in the order of their offsets."""

    partition: int
    """A small number that stands for the partition."""
    hashes: Int64s
    checks: UInt32s
    times: Int64s
    clocks: Int64s
    """The clock of the partition before each of them."""
    offsets: Int64s
    values: Mapping[str, Column]
    skipped: npt.NDArray[np.bool_] | None = None
    """Which are cut out of history; None where none is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """What records get."""

    labelled: npt.NDArray[np.bool_]
    """Which records get a label."""
    late: npt.NDArray[np.bool_]
    """For which records a label came too late."""
    values: Mapping[str, Column]
    """The labels of those that get one, in their order."""
    delays: Int64s
    """How long after its record the first label of each of these came, by their times."""


@dataclass(slots=True)
class _SortedRun:
    """Labels sorted by their hash."""

    hashes: Int64s
    checks: UInt32s
    times: Int64s
    """NEVER, where a label has expired."""
    before: npt.NDArray[np.signedinteger]
    """The clock before each label, as the distance from its time."""
    offsets: Int64s
    partitions: npt.NDArray[np.int16]
    flags: Bytes
    values: dict[str, Column]
    expired: int = 0

    def __len__(self) -> int:
        return len(self.hashes)

    def rows(self, which: npt.NDArray[np.generic]) -> "_SortedRun":
        """Return some of the labels."""
        columns = {name: getattr(self, name)[which] for name in _COLUMNS}
        return _SortedRun(**columns, values={name: column[which] for name, column in self.values.items()})

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        columns: list[Column] = [*(getattr(self, name) for name in _COLUMNS), *self.values.values()]
        return sum(column.nbytes for column in columns)


_COLUMNS = tuple(one.name for one in fields(_SortedRun) if one.name not in {"values", "expired"})


class _Found(NamedTuple):
    """Labels of the key of a record that fit it, in the order of records, and of each in that of time."""

    records: Int64s
    runs: Int64s
    places: Int64s
    on_time: npt.NDArray[np.bool_]


class LabelIndex:
    """The labels that wait."""

    def __init__(
        self,
        fields: Mapping[str, tuple[np.dtype[np.generic], tuple[int, ...]]],
        *,
        take: Take,
        early_ms: int,
        within_ms: int,
        match: Match = Match.ALL,
    ) -> None:
        """Hold labels of these fields, each with its dtype and its shape."""
        self._match = match
        self.rivals = None if match is Match.ALL else LabelIndex({}, take=take, early_ms=early_ms, within_ms=within_ms)
        """The records of all keys, as labels without values; None where a label belongs to each that it fits."""
        self._fields, self._take = dict(fields), take
        self._early, self._within = early_ms, within_ms
        # A label whose clock is further ahead is too late for any record, and is not inserted.
        self._distance = np.int32 if early_ms + within_ms < np.iinfo(np.int32).max else np.int64
        self._lock = threading.Lock()
        self._restored: Marks = {}
        self._runs: list[_SortedRun] = []
        self._pending: list[Arrived] = []
        self._filter = np.zeros(_LEAST_BITS // 8, np.uint8)
        self._filtered = 0
        """Labels that the filter has taken in since it was made."""

    def clear(self) -> None:
        """Forget all labels, and what became of them."""
        with self._lock:
            self._runs, self._pending, self._restored = [], [], {}
            self._renew_filter()

    def insert(self, arrived: Arrived) -> None:
        """Take labels in."""
        if len(arrived.hashes):
            with self._lock:
                self._pending.append(arrived)
                if len(self._pending) >= _PENDING:
                    self._settle_pending()

    def match(self, hashes: Int64s, checks: Callable[[Int64s], UInt32s], times: Int64s) -> Joined:
        """Return what these records get; `checks` gives the checks of some of them, by their places."""
        labelled, late = np.zeros(len(hashes), np.bool_), np.zeros(len(hashes), np.bool_)
        with self._lock:
            found = self._find(hashes, checks, times)
            late[found.records[~found.on_time]] = True
            records, runs, places = (one[found.on_time] for one in found[:3])
            firsts = np.flatnonzero(np.diff(records, prepend=-1))
            labelled[records[firsts]] = True
            values = {name: self._taken(name, runs, places, firsts) for name in self._fields}
            delays = self._gathered("times", runs[firsts], places[firsts]) - times[records[firsts]]
        return Joined(labelled=labelled, late=late, values=values, delays=delays)

    def settle(self, hashes: Int64s, checks: UInt32s, times: Int64s) -> None:
        """Mark the labels of records that are settled."""
        if not len(hashes):
            return
        with self._lock:
            found = self._find(hashes, lambda rows: checks[rows], times)
            for number, run in enumerate(self._runs):
                here = found.runs == number
                run.flags[found.places[here & ~found.on_time]] |= LATE
                run.flags[found.places[here & found.on_time]] |= FITTED
            records, runs, places = (one[found.on_time] for one in found[:3])
            if not len(records):
                return
            winners = self._winners(records, runs, places)
            for number, run in enumerate(self._runs):
                run.flags[places[winners & (runs == number)]] |= USED

    def neighbours(self, hashes: Int64s, checks: Callable[[Int64s], UInt32s], times: Int64s) -> tuple[Int64s, Int64s]:
        """Return the time of the last before, and of the first after, each of these of its key, as far as it counts."""
        before, after = np.full(len(times), NEVER), np.full(len(times), -NEVER)
        with self._lock:
            found = self._find(hashes, checks, times)
            there = self._gathered("times", found.runs, found.places)
        records, there = found.records[found.on_time], there[found.on_time]
        own = times[records]
        np.maximum.at(before, records[there < own], there[there < own])
        np.minimum.at(after, records[there > own], there[there > own])
        return before, after

    def expire(self, floor: int, others: Sequence[Marks] = ()) -> "Counter[str]":
        """Let labels before a time go; return what became of them, and of how many.

        `others` are the flags that these labels have at other workers.
        """
        counts: Counter[str] = Counter()
        with self._lock:
            self._settle_pending()
            for number, run in enumerate(self._runs):
                over = np.flatnonzero((run.times < floor) & (run.times != NEVER))
                if not len(over):
                    continue
                flags = run.flags[over]
                for marks in others:
                    for partition, marked in marks.items():
                        mine = np.flatnonzero(run.partitions[over] == partition)
                        flags[mine] |= _looked_up(run.offsets[over[mine]], *marked)
                used, late = (flags & USED) > 0, (flags & LATE) > 0
                fitted = (flags & FITTED) > 0
                counts["skipped"] += int((flags == SKIPPED).sum())
                counts["used"] += int(used.sum())
                counts["late"] += int((late & ~used).sum())
                counts["duplicate"] += int((fitted & ~used & ~late).sum())
                counts["unused"] += int((flags == 0).sum())
                run.times[over] = NEVER
                run.expired += len(over)
                if run.expired * 4 > len(run):
                    self._runs[number] = run.rows(np.flatnonzero(run.times != NEVER))
            self._runs = [run for run in self._runs if len(run)]
            if self._filtered > 4 * max(self._count(), _LEAST_BITS // _BITS_EACH // 4):
                self._renew_filter()
        return +counts

    def waiting(self) -> int:
        """Return how many labels wait."""
        with self._lock:
            return self._count() + sum(len(one.hashes) for one in self._pending)

    def waiting_of(self, partition: int) -> int:
        """Return how many labels of a partition wait."""
        with self._lock:
            self._settle_pending()
            return sum(int(((run.partitions == partition) & (run.times != NEVER)).sum()) for run in self._runs)

    def nbytes(self) -> int:
        """Return the memory that labels take, and the keys of their records."""
        rivals = 0 if self.rivals is None else self.rivals.nbytes()
        with self._lock:
            pending = sum(_LABEL_BYTES * len(one.hashes) for one in self._pending)
            return sum(run.nbytes for run in self._runs) + self._filter.nbytes + pending + rivals

    def bases(self) -> dict[int, tuple[int, int]]:
        """Return the first offset of each partition that waits, and the clock before it."""
        found: dict[int, tuple[int, int]] = {}
        with self._lock:
            self._settle_pending()
            for run in self._runs:
                alive = np.flatnonzero(run.times != NEVER)
                for partition in np.unique(run.partitions[alive]).tolist():
                    mine = alive[run.partitions[alive] == partition]
                    first = mine[run.offsets[mine].argmin()]
                    offset = int(run.offsets[first])
                    if partition not in found or offset < found[partition][0]:
                        found[partition] = (offset, int(run.times[first] + run.before[first]))
        return found

    def flags(self, before: int | None = None) -> Marks:
        """Return the flags of labels that wait, or of those of them before a time.

        But for those that say what is cut out of history: commands say that, and lift it.
        """
        parts: dict[int, list[tuple[Int64s, Bytes]]] = {}
        with self._lock:
            self._settle_pending()
            for run in self._runs:
                flags = run.flags & ~np.uint8(SKIPPED)
                here = (flags > 0) & (run.times != NEVER)
                marked = np.flatnonzero(here if before is None else here & (run.times < before))
                for partition in np.unique(run.partitions[marked]).tolist():
                    mine = marked[run.partitions[marked] == partition]
                    parts.setdefault(partition, []).append((run.offsets[mine], flags[mine]))
        found = {}
        for partition, some in parts.items():
            offsets, flags = np.concatenate([one for one, _ in some]), np.concatenate([one for _, one in some])
            order = offsets.argsort()
            found[partition] = (offsets[order], flags[order])
        return found

    def skip(self, which: Callable[[int, Int64s], npt.NDArray[np.bool_]]) -> None:
        """Cut labels out of history, by their partition and offset, and none other."""
        with self._lock:
            self._settle_pending()
            for run in self._runs:
                run.flags &= ~np.uint8(SKIPPED)
                for partition in np.unique(run.partitions).tolist():
                    mine = np.flatnonzero(run.partitions == partition)
                    run.flags[mine[which(partition, run.offsets[mine])]] |= SKIPPED

    def restore_flags(self, partition: int, offsets: Int64s, flags: Bytes) -> None:
        """Have labels that will be inserted again carry these flags."""
        with self._lock:
            self._restored[partition] = (offsets, flags)

    # Below, the lock is held.

    def _count(self) -> int:
        return sum(len(run) - run.expired for run in self._runs)

    def _settle_pending(self) -> None:
        """Make a run of the labels that came, and merge runs."""
        if not self._pending:
            return
        arrived, self._pending = self._pending, []
        made = self._run_of(arrived)
        self._note(made.hashes)
        self._runs.append(made)
        while len(self._runs) > 1:
            *others, before, last = self._runs
            if len(before) > 2 * len(last) or len(before) + len(last) > _MOST:
                break
            self._runs = [*others, _merged(before, last)]

    def _run_of(self, arrived: Sequence[Arrived]) -> _SortedRun:
        times = np.concatenate([one.times for one in arrived])
        clocks = np.concatenate([one.clocks for one in arrived])
        limits = np.iinfo(self._distance)
        run = _SortedRun(
            hashes=np.concatenate([one.hashes for one in arrived]),
            checks=np.concatenate([one.checks for one in arrived]),
            times=times,
            # A clock that is far behind is as good as one that knows nothing.
            before=np.clip(clocks - times, limits.min, limits.max).astype(self._distance),
            offsets=np.concatenate([one.offsets for one in arrived]),
            partitions=np.repeat(
                np.array([one.partition for one in arrived], np.int16), [len(one.hashes) for one in arrived]
            ),
            flags=np.concatenate([self._flags_of(one) for one in arrived]),
            values={name: np.concatenate([one.values[name] for one in arrived]) for name in self._fields},
        )
        return run.rows(_ascending(run.hashes))

    def _flags_of(self, arrived: Arrived) -> Bytes:
        known = self._restored.get(arrived.partition)
        flags = np.zeros(len(arrived.offsets), np.uint8) if known is None else _looked_up(arrived.offsets, *known)
        if arrived.skipped is not None:
            flags[arrived.skipped] |= SKIPPED
        return flags

    def _note(self, hashes: Int64s) -> None:
        if (self._filtered + len(hashes)) * _BITS_EACH > len(self._filter) * 8:
            self._renew_filter(len(hashes))
        self._filtered += len(hashes)
        self._set(hashes)

    def _set(self, hashes: Int64s) -> None:
        places = (hashes >> 3) & (len(self._filter) - 1)
        np.bitwise_or.at(self._filter, places, np.left_shift(1, hashes & 7).astype(np.uint8))

    def _renew_filter(self, more: int = 0) -> None:
        count = self._count() + more
        bits = max(_LEAST_BITS, 2 ** (count * _BITS_EACH).bit_length())
        self._filter, self._filtered = np.zeros(bits // 8, np.uint8), self._count()
        for run in self._runs:
            self._set(run.hashes)

    def _find(self, hashes: Int64s, checks: Callable[[Int64s], UInt32s], times: Int64s) -> _Found:
        """Return the labels of these records, sorted."""
        self._settle_pending()
        bits = self._filter[(hashes >> 3) & (len(self._filter) - 1)] >> (hashes & 7).astype(np.uint8)
        asked = np.flatnonzero(bits & 1)
        parts = [*self._hits(hashes, asked)]
        records, runs, places = (
            np.concatenate([part[index] for part in parts]) if parts else np.empty(0, np.int64) for index in range(3)
        )
        mine, at = checks(records) if len(records) else np.empty(0, np.uint32), times[records]
        same = self._gathered("checks", runs, places) == mine
        labels, before = self._gathered("times", runs, places), self._gathered("before", runs, places)
        same &= (self._gathered("flags", runs, places) & SKIPPED) == 0
        fits = same & (labels != NEVER) & (labels >= at - self._early) & (labels <= at + self._within)
        on_time = labels + before < at + self._within
        order = np.flatnonzero(fits)
        if self.rivals is not None:
            order = order[self._is_its_own(self.rivals, hashes, checks, times, records[order], labels[order])]
        order = order[_ascending_numbers(records[order], len(hashes))]
        if (np.diff(records[order]) == 0).any():
            by = (self._gathered(name, runs[order], places[order]) for name in ("offsets", "partitions"))
            order = order[np.lexsort((*by, labels[order], records[order]))]
        return _Found(records[order], runs[order], places[order], on_time[order])

    def _is_its_own(
        self,
        rivals: "LabelIndex",
        hashes: Int64s,
        checks: Callable[[Int64s], UInt32s],
        times: Int64s,
        records: Int64s,
        labels: Int64s,
    ) -> npt.NDArray[np.bool_]:
        """Return which of these labels belong to their record, and not to another one that is nearer to them."""
        asked = np.unique(records)
        before, after = rivals.neighbours(hashes[asked], lambda rows: checks(asked[rows]), times[asked])
        place, own = asked.searchsorted(records), times[records]
        if self._match is Match.LAST_BEFORE:
            return (own <= labels) & (labels < after[place])
        return (labels <= own) & (before[place] < labels)

    def _hits(self, hashes: Int64s, asked: Int64s) -> Iterator[tuple[Int64s, Int64s, Int64s]]:
        """Yield of each run the records that have a label of their hash there, and its place."""
        if not len(asked):
            return
        asked = asked[_ascending(hashes[asked])]
        wanted = hashes[asked]
        for number, run in enumerate(self._runs):
            first = run.hashes.searchsorted(wanted)
            some = np.flatnonzero(run.hashes[np.minimum(first, len(run) - 1)] == wanted)
            if not len(some):
                continue
            first = first[some]
            counts = np.ones(len(some), np.int64)
            # Few keys have several labels.
            several = np.flatnonzero(run.hashes[np.minimum(first + 1, len(run) - 1)] == wanted[some])
            several = several[first[several] + 1 < len(run)]
            counts[several] = run.hashes.searchsorted(wanted[some[several]], "right") - first[several]
            within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            yield (
                np.repeat(asked[some], counts),
                np.full(len(within), number, np.int64),
                np.repeat(first, counts) + within,
            )

    def _gathered(self, name: str, runs: Int64s, places: Int64s) -> Int64s:
        """Return a number of each of these labels."""
        return self._collected(lambda run: getattr(run, name), runs, places, np.dtype(np.int64)).view(np.int64)

    def _collected(
        self,
        column: Callable[[_SortedRun], Column],
        runs: Int64s,
        places: Int64s,
        dtype: np.dtype[np.generic],
        shape: tuple[int, ...] = (),
    ) -> Column:
        if len(self._runs) == 1:
            return column(self._runs[0])[places].astype(dtype, copy=False)
        found = np.empty((len(places), *shape), dtype)
        for number, run in enumerate(self._runs):
            here = np.flatnonzero(runs == number)
            found[here] = column(run)[places[here]]
        return found

    def _values(self, name: str, runs: Int64s, places: Int64s) -> Column:
        dtype, shape = self._fields[name]
        return self._collected(lambda run: run.values[name], runs, places, dtype, shape)

    def _taken(self, name: str, runs: Int64s, places: Int64s, firsts: Int64s) -> Column:
        """Return what each record gets of its labels, which follow one another from these places on."""
        dtype, shape = self._fields[name]
        if not len(firsts):
            return np.empty((0, *shape), dtype)
        ends = np.append(firsts[1:], len(places))
        if self._take is Take.FIRST:
            return self._values(name, runs[firsts], places[firsts])
        if self._take is Take.LAST:
            return self._values(name, runs[ends - 1], places[ends - 1])
        if self._take is Take.COUNT:
            counts = (ends - firsts).reshape(-1, *(1 for _ in shape))
            return np.broadcast_to(counts, (len(firsts), *shape)).astype(dtype)
        values = self._values(name, runs, places)
        reduce = np.maximum.reduceat if self._take is Take.MAX else np.add.reduceat
        reduced: Column = reduce(values, firsts, axis=0)
        return reduced.astype(dtype)

    def _winners(self, records: Int64s, runs: Int64s, places: Int64s) -> npt.NDArray[np.bool_]:
        """Return which of these labels, in the order of records, have made what their record gets."""
        if self._take in {Take.SUM, Take.COUNT}:
            return np.ones(len(records), np.bool_)
        firsts = np.flatnonzero(np.diff(records, prepend=-1))
        ends = np.append(firsts[1:], len(records))
        winners = np.zeros(len(records), np.bool_)
        if self._take is Take.FIRST:
            winners[firsts] = True
        elif self._take is Take.LAST:
            winners[ends - 1] = True
        else:
            for name in self._fields:
                values = self._values(name, runs, places)
                most = np.repeat(np.maximum.reduceat(values, firsts, axis=0), ends - firsts, axis=0)
                winners |= (values == most).reshape(len(records), -1).any(1)
        return winners


def _looked_up(wanted: Int64s, offsets: Int64s, flags: Bytes) -> Bytes:
    """Return the flags of labels by their offsets; 0 for those that have none."""
    if not len(offsets):
        return np.zeros(len(wanted), np.uint8)
    at = np.minimum(offsets.searchsorted(wanted), len(offsets) - 1)
    return np.where(offsets[at] == wanted, flags[at], 0).astype(np.uint8)


def _ascending(hashes: Int64s) -> Int64s:
    """Return what sorts hashes: numpy sorts 16 bits in linear time, and what is nearly sorted in little more."""
    order = (hashes >> 48).astype(np.int16).argsort(kind="stable")
    return order[hashes[order].argsort(kind="stable")]


def _ascending_numbers(numbers: Int64s, most: int) -> Int64s:
    """Return what sorts whole numbers from 0 to `most`."""
    return (numbers.astype(np.uint16) if most <= 2**16 else numbers).argsort(kind="stable")


def _merged(one: _SortedRun, other: _SortedRun) -> _SortedRun:
    """Return two runs as one, without what has expired."""
    hashes, times = (np.concatenate([getattr(one, name), getattr(other, name)]) for name in ("hashes", "times"))
    order = hashes.argsort(kind="stable")  # finds that they are two runs, and merges them
    order = order[times[order] != NEVER]
    # A column after the other, so that only one of them is there twice.
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(one, name), getattr(other, name)])[order] for name in _COLUMNS
    }
    values = {name: np.concatenate([column, other.values[name]])[order] for name, column in one.values.items()}
    return _SortedRun(**columns, values=values)
