"""The open window: a bottom-k sample of its rows, by the hash of partition and offset, and how far it has come.

A window ends with the first call at whose end it has some seconds of event time and enough rows, so it is a function of
the records, and of no clock. Of more rows than `MOST_ROWS` those of the least hashes are kept, which are a sample as
good as any, and the same however the records were cut into chunks and calls.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.consumers.records import Int64s, Partition
from millrace.pipelines.gates.input_gate import SHARE, Hashes, InputGate, InputSample, Numbers, Texts
from millrace.pipelines.schema import Column
from millrace.pipelines.shaping.followed_states import packed, unpacked

WINDOW_MS = 4000
MOST_ROWS = 4000
_FEWEST_ROWS = 64
_MOST_RECORDS = 1 << 18
"""A window of so many records ends whatever their event times are."""
_ROOM = 2
"""So many times the rows are gathered before those that are too many are dropped."""
_ANY = np.uint64(2**64 - 1)


@dataclass(frozen=True, slots=True)
class WindowRows:
    """The rows of a window, by ascending hash."""

    hashes: Hashes
    partitions: npt.NDArray[np.int32]
    """The place of each row's partition in the list of them."""
    offsets: Int64s
    times: Int64s
    numbers: Numbers
    texts: Texts

    def __len__(self) -> int:
        return len(self.hashes)

    def rows(self, which: Int64s) -> "WindowRows":
        """Return the rows at these places."""
        return WindowRows(
            self.hashes[which],
            self.partitions[which],
            self.offsets[which],
            self.times[which],
            self.numbers.take(which, axis=0),
            self.texts.take(which, axis=0),
        )

    @classmethod
    def none(cls, gate: InputGate) -> "WindowRows":
        """Return no rows."""
        whole, numbers, texts = np.zeros(0, np.int64), (0, len(gate.numbers)), (0, len(gate.texts))
        return cls(
            whole.astype(np.uint64),
            whole.astype(np.int32),
            whole,
            whole,
            np.zeros(numbers, gate.dtype),
            np.empty(texts, object),
        )

    @classmethod
    def joined(cls, gate: InputGate, pieces: Sequence["WindowRows"]) -> "WindowRows":
        """Return the rows of several, sorted anew."""
        pieces = pieces or [cls.none(gate)]
        columns = [
            np.concatenate([getattr(one, name) for one in pieces])
            for name in ("hashes", "partitions", "offsets", "times", "numbers", "texts")
        ]
        order = np.argsort(columns[0], kind="stable")
        return cls(*(column.take(order, axis=0) for column in columns))

    def arrays(self, name: str) -> dict[str, Column]:
        """Return the rows as arrays of a checkpoint."""
        return {
            f"{name}.hashes": self.hashes.view(np.int64),
            f"{name}.partitions": self.partitions,
            f"{name}.offsets": self.offsets,
            f"{name}.times": self.times,
            f"{name}.numbers": self.numbers,
            **packed(f"{name}.texts", self.texts),
        }

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Any], name: str, gate: InputGate) -> "WindowRows":
        """Return the rows that `arrays` has written."""
        hashes = np.array(arrays[f"{name}.hashes"]).view(np.uint64)
        texts: Any = np.empty((len(hashes), 0), object)
        if gate.texts:
            texts = unpacked(arrays, f"{name}.texts", (len(gate.texts),))
        partitions, offsets, times, numbers = (
            np.array(arrays[f"{name}.{column}"]) for column in ("partitions", "offsets", "times", "numbers")
        )
        return cls(hashes, partitions, offsets, times, numbers, texts)


class OpenWindow:
    """The window that is not over yet."""

    def __init__(self, gate: InputGate) -> None:
        self._gate = gate
        self.partitions: list[Partition] = []
        """All that were ever seen; rows name them by their places."""
        self.begin()

    def begin(self) -> None:
        """Begin the next one."""
        self._pieces: list[WindowRows] = []
        """`MOST_ROWS` at most."""
        self._new: list[tuple[int, InputSample, slice]] = []
        """What has come since, with the place of its partition: parts of samples of chunks."""
        self._rows, self._new_rows = 0, 0
        """Of both, and of what has come since."""
        self._below = _ANY
        """All hashes of `_pieces` are below this one, and no row of another will be among the least."""
        self.records = 0
        """Records that were decoded, or could not be."""
        self.began_ms: int | None = None
        """The event time of the middle of its first call, and of its last one."""
        self.reached_ms = 0
        self._times: list[Int64s] = []
        """Of the call that is being taken in."""

    def add(self, partition: Partition, sample: InputSample, rows: slice, times: Int64s) -> None:
        """Add what was sampled of the records of a call: these rows of a chunk's sample, and all of their times."""
        if len(times):
            self._times.append(times)
        if rows.start == rows.stop:
            return
        if partition not in self.partitions:
            self.partitions.append(partition)
        at = self.partitions.index(partition)
        self._rows += rows.stop - rows.start
        self._new_rows += rows.stop - rows.start
        if self._new and self._new[-1][1] is sample and self._new[-1][2].stop == rows.start:
            rows = slice(self._new.pop()[2].start, rows.stop)
        self._new.append((at, sample, rows))

    def ended(self, records: int) -> bool:
        """Take the end of a call of so many records; return whether the window is over."""
        self.records += records
        if self._times:
            # The middle one, as a single record may claim any time.
            times = np.concatenate(self._times)
            self.reached_ms = int(np.partition(times, len(times) // 2)[len(times) // 2])
            self._times = []
            if self.began_ms is None:
                self.began_ms = self.reached_ms
        passed = self.began_ms is not None and abs(self.reached_ms - self.began_ms) >= WINDOW_MS
        # Where almost all are set aside, there are no rows to wait for.
        enough = self._rows >= _FEWEST_ROWS or self.records >= _FEWEST_ROWS * SHARE * SHARE
        if self._new_rows > MOST_ROWS:
            self._gather()
            if self._rows > _ROOM * MOST_ROWS:
                self._drop()
        return (passed and enough) or self.records >= _MOST_RECORDS

    def rows(self) -> WindowRows:
        """Return its rows, the most that a window has, by ascending hash."""
        return self.in_full()()

    def least(self, count: int) -> WindowRows:
        """Return the rows of the least hashes, ascending."""
        self._drop()
        if self._rows <= count:
            return WindowRows.joined(self._gate, self._pieces)
        bound = np.partition(np.concatenate([one.hashes for one in self._pieces]), count)[count]
        return WindowRows.joined(self._gate, _below(self._pieces, bound))

    def in_full(self) -> Callable[[], WindowRows]:
        """Return what returns its rows as they are now, on any thread."""
        self._drop()
        return partial(WindowRows.joined, self._gate, [*self._pieces])

    def _gather(self) -> None:
        """Copy what has come since and may be among the least. By chunk, as whole windows are slow to copy."""
        for at, sample, rows in self._new:
            which = np.flatnonzero(sample.hashes[rows] < self._below) + rows.start
            partitions = np.full(len(which), at, np.int32)
            columns = (sample.hashes[which], partitions, sample.offsets[which], sample.times[which])
            self._pieces.append(WindowRows(*columns, *sample.rows(which)))
        self._new, self._new_rows = [], 0
        self._rows = sum(map(len, self._pieces))

    def _drop(self) -> None:
        """Drop the rows that are too many."""
        self._gather()
        if self._rows > MOST_ROWS:
            hashes = np.concatenate([one.hashes for one in self._pieces])
            self._below = np.partition(hashes, MOST_ROWS)[MOST_ROWS]
            self._pieces = _below(self._pieces, self._below)
            self._rows = sum(map(len, self._pieces))

    def facts(self) -> dict[str, Any]:
        """Return all but the rows as JSON values."""
        times = {"began_ms": self.began_ms, "reached_ms": self.reached_ms}
        return {"records": self.records, **times, "partitions": [*map(str, self.partitions)]}

    def load(self, facts: Mapping[str, Any], rows: WindowRows) -> None:
        """Take back what `facts` and `rows` have returned."""
        self.begin()
        self.partitions = [Partition.parse(text) for text in facts["partitions"]]
        self.records, self.began_ms = int(facts["records"]), facts["began_ms"]
        self.reached_ms = int(facts["reached_ms"])
        self._pieces, self._rows = [rows], len(rows)


def _below(pieces: Sequence[WindowRows], bound: np.uint64) -> list[WindowRows]:
    """Return the rows whose hashes are below a bound."""
    return [kept for one in pieces if len(kept := one.rows(np.flatnonzero(one.hashes < bound)))]
