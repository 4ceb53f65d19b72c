"""The clocks of the topics of labels: up to when each partition is known to have been read.

A clock moves with the times of the labels that are read. A partition that has no more is quiet: it counts as read up to
the moment when its end was asked for. Such a jump is written to disk before anything goes by it, so that the labels
that a record gets are a function of the records, the labels and the jumps, whenever they are read again.

Owns the clocks, and the file of the jumps. The reader's thread moves them; any thread reads.
"""

import logging
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from millrace.consumers.durable_files import replace_durably, sync_file, sync_folder
from millrace.consumers.records import Int64s, Partition

log = logging.getLogger(__name__)

NEVER = -(2**62)
"""The time of a clock that knows nothing."""
_MOST_LINES = 10_000
"""The file is written anew when it has so many lines beyond twice those that count."""


Jump = tuple[str, int, int]
"""A partition, the offset at which it ended, and the time up to which it counted as read."""
Jumped = tuple[Int64s, Int64s]
"""Offsets, ascending, and the time up to which a partition counted as read when it was read up to each."""


def jumped_at(jumped: Jumped, offsets: Int64s) -> Int64s:
    """Return the time to which the jumps up to each offset have moved a clock."""
    ends, times = jumped
    if not len(ends):
        return np.full(len(offsets), NEVER)
    places = ends.searchsorted(offsets, "right") - 1
    return np.where(places >= 0, times[places], NEVER)


class Jumps:
    """The jumps of all partitions, on disk: a line `topic:partition offset milliseconds` each, of its own length.

    What a kill has cut off at the end never counted, and is removed by the next start.
    """

    def __init__(self, path: Path | None, *, again: bool = False) -> None:
        """Read the jumps that are there; without a path they are kept in memory. `again`: there are no others."""
        self._path, self.closed = path, again
        """Whether none may be added."""
        self.folder = None if path is None or again else path.parent
        """Where to keep what else is needed by the next start; None where nothing is kept."""
        self._lock = threading.Lock()
        self._found: dict[Partition, dict[int, int]] = {}
        self._untold: list[Jump] | None = None
        """Those that the other workers of a group have not heard of; None for a worker alone."""
        self._lines = 0
        if path is not None and path.exists():
            self._read(path)

    def beside(self, name: str) -> "Jumps":
        """Return those of other partitions, in a file of this name beside it."""
        return Jumps(None if self._path is None else self._path.with_name(name), again=self.closed)

    def add(self, jumps: Mapping[Partition, tuple[int, int]]) -> None:
        """Keep the offset at which each partition ended, and when; durable when this returns. Raise OSError."""
        with self._lock:
            self._add(jumps)

    def hear(self, jumps: Iterable[Jump]) -> None:
        """Take in jumps that another worker keeps on disk."""
        with self._lock:
            for name, end, at in jumps:
                self._take({Partition.parse(name): (end, at)})

    def all(self) -> list[Jump]:
        """Return all jumps, and count them as told to the other workers."""
        with self._lock:
            self._untold = []
            return [(str(partition), end, at) for partition, of in self._found.items() for end, at in of.items()]

    def untold(self) -> list[Jump]:
        """Return the jumps that were added since the last that were told to the other workers."""
        with self._lock:
            untold, self._untold = self._untold or [], []
            return untold

    def of(self, partition: Partition) -> Jumped:
        """Return the offsets at which a partition has ended, ascending, and the latest time of each and all before."""
        with self._lock:
            found = np.array(sorted(self._found.get(partition, {}).items()), np.int64).reshape(-1, 2)
        return found[:, 0].copy(), np.maximum.accumulate(found[:, 1])

    def forget(self, partition: Partition, ends: Iterable[int]) -> None:
        """Forget jumps that make no difference any more; they leave the file when it is written anew."""
        with self._lock:
            for end in ends:
                self._found[partition].pop(end, None)

    # Below, the lock is held.

    def _add(self, jumps: Mapping[Partition, tuple[int, int]]) -> None:
        if self._path is not None and self._lines > _MOST_LINES + 2 * sum(map(len, self._found.values())):
            self._write_anew(self._path)
        if self._path is not None:
            lines = "".join(f"{partition} {end} {at}\n" for partition, (end, at) in sorted(jumps.items()))
            new = not self._path.exists()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            size = os.fstat(handle).st_size
            try:
                write_all(handle, lines.encode())
                sync_file(handle)
            except OSError:
                # Half a line would spoil the next one.
                os.ftruncate(handle, size)
                raise
            finally:
                os.close(handle)
            if new:
                sync_folder(self._path.parent)
            self._lines += len(jumps)
        self._take(jumps)
        if self._untold is not None:
            self._untold += [(str(partition), end, at) for partition, (end, at) in jumps.items()]

    def _take(self, jumps: Mapping[Partition, tuple[int, int]]) -> None:
        for partition, (end, at) in jumps.items():
            mine = self._found.setdefault(partition, {})
            mine[end] = max(at, mine.get(end, NEVER))

    def _write_anew(self, path: Path) -> None:
        """Leave out what a later jump at the same offset has replaced."""
        found = [(str(partition), end, at) for partition, of in self._found.items() for end, at in of.items()]
        replace_durably(path, "".join(f"{name} {end} {at}\n" for name, end, at in sorted(found)).encode())
        self._lines = len(found)

    def _read(self, path: Path) -> None:
        raw = path.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]
        lines = whole.decode().splitlines()
        self._lines = len(lines)
        for line in lines:
            name, end, at = line.rsplit(" ", 2)
            self._take({Partition.parse(name): (int(end), int(at))})
        if len(whole) < len(raw) and not self.closed:
            log.info("%s ends in a line that a kill has cut off; it is removed", path)
            os.truncate(path, len(whole))
            with path.open("rb") as file:
                sync_file(file.fileno())


def write_all(handle: int, raw: bytes) -> None:
    """Write all bytes; OSError where not all find room."""
    view = memoryview(raw)
    while view:
        view = view[os.write(handle, view) :]


class LabelClocks:
    """The clock of each partition of labels."""

    def __init__(self, jumps: Jumps, *, early_ms: int) -> None:
        self._jumps, self._early_ms = jumps, early_ms
        self._lock = threading.Lock()
        self._at: dict[Partition, int] = {}
        self._positions: dict[Partition, int] = {}
        self._jumped: dict[Partition, Jumped] = {}

    def begin(self, bases: Mapping[Partition, tuple[int, int]]) -> None:
        """Begin again: each partition is read from an offset on, where its clock stands at a time."""
        with self._lock:
            self._at, self._positions = {}, {}
            for partition, (offset, at) in bases.items():
                self._jumped[partition] = self._jumps.of(partition)
                self._positions[partition] = offset
                self._at[partition] = max(at, *self._jumped_at(partition, np.array([offset])).tolist())

    def before(self, partition: Partition, offsets: Int64s, times: Int64s) -> Int64s:
        """Return the clock before each of the labels that come next; it does not move yet."""
        with self._lock:
            at = np.array([self._at[partition]], np.int64)
            steps = np.maximum.accumulate(np.concatenate([at, times - self._early_ms]))
            return np.maximum(steps[:-1], self._jumped_at(partition, offsets))

    def read(self, partition: Partition, end: int, offsets: Int64s, times: Int64s) -> None:
        """Move a clock on by the labels that were read up to an offset: from now on records may go by it."""
        with self._lock:
            self._forget(partition, offsets, times)
            newest = int(times.max()) - self._early_ms if len(times) else NEVER
            [jumped] = self._jumped_at(partition, np.array([end])).tolist()
            self._positions[partition] = end
            self._at[partition] = max(self._at[partition], newest, jumped)

    def jump(self, ends: Mapping[Partition, int], at: int) -> None:
        """Count partitions that were read to their ends as read up to a time at which these were asked for."""
        if self._jumps.closed:
            return
        with self._lock:
            quiet = {
                partition: (end, at)
                for partition, end in ends.items()
                if self._positions.get(partition) == end and self._at[partition] < at
            }
        if not quiet:
            return
        self._jumps.add(quiet)
        with self._lock:
            for partition in quiet:
                self._jumped[partition] = self._jumps.of(partition)
                self._at[partition] = max(self._at[partition], at)

    def renew(self) -> None:
        """Go by jumps that another worker has made; no label behind their offsets is read yet."""
        with self._lock:
            for partition, offset in self._positions.items():
                self._jumped[partition] = self._jumps.of(partition)
                self._at[partition] = max(self._at[partition], *self._jumped_at(partition, np.array([offset])).tolist())

    def at(self) -> Mapping[Partition, int]:
        """Return the clock of each partition."""
        with self._lock:
            return dict(self._at)

    def positions(self) -> Mapping[Partition, int]:
        """Return the offset up to which each partition is read."""
        with self._lock:
            return dict(self._positions)

    def through(self, partitions: Iterable[Partition] | None = None) -> int:
        """Return the time up to which all partitions, or these, are read."""
        with self._lock:
            of = self._at if partitions is None else {p: self._at[p] for p in partitions}
            return min(of.values(), default=NEVER)

    def _forget(self, partition: Partition, offsets: Int64s, times: Int64s) -> None:
        """Forget the jumps that the clock of the next label passes: that label would have been on time anyhow."""
        ends, reached = self._jumped[partition]
        end = offsets[-1] + 1 if len(offsets) else 0
        here = np.flatnonzero((ends >= self._positions[partition]) & (ends < end))
        if len(here):
            following = times[offsets.searchsorted(ends[here])]
            self._jumps.forget(partition, ends[here][reached[here] < following - self._early_ms].tolist())
            self._jumped[partition] = self._jumps.of(partition)

    def _jumped_at(self, partition: Partition, offsets: Int64s) -> Int64s:
        return jumped_at(self._jumped[partition], offsets)
