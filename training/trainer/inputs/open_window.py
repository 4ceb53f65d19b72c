"""The open window: a bottom-k sample of its rows, by the hash of partition and offset, and how far it has come.

A window ends with the first call at whose end it has some seconds of event time and enough rows, so it is a function of
the records, and of no clock. Of more rows than `MOST_ROWS` those of the least hashes are kept, which are a sample as
good as any, and the same however the records were cut into chunks and calls.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
_MOST_RECORDS = 1 << 17
"""A window of so many records ends whatever their event times are."""
_ROOM = 2
"""So many times the rows are gathered before those that are too many are dropped."""


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

    def rows(self, which: Any) -> "WindowRows":
        """Return some of the rows."""
        return WindowRows(
            self.hashes[which],
            self.partitions[which],
            self.offsets[which],
            self.times[which],
            self.numbers[which],
            self.texts[which],
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
    def joined(cls, pieces: Sequence["WindowRows"]) -> "WindowRows":
        """Return the rows of several, sorted anew."""
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
        self._pieces = [WindowRows.none(self._gate)]
        self._rows = 0
        self._below = np.uint64(2**64 // SHARE)
        self.records = 0
        """Records that were decoded, or could not be."""
        self.began_ms: int | None = None
        """The event time of the middle of its first call, and of its last one."""
        self.reached_ms = 0
        self._times: list[Int64s] = []
        """Of the call that is being taken in."""

    def add(self, partition: Partition, sample: InputSample) -> None:
        """Add what was sampled of the records of a call."""
        if self._below < np.uint64(2**64 // SHARE):
            sample = sample.rows(sample.hashes < self._below)
        if not len(sample.offsets):
            return
        if partition not in self.partitions:
            self.partitions.append(partition)
        at = np.full(len(sample.offsets), self.partitions.index(partition), np.int32)
        self._pieces.append(WindowRows(sample.hashes, at, sample.offsets, sample.times, sample.numbers, sample.texts))
        self._rows += len(at)
        self._times.append(sample.times)

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
        if self._rows > _ROOM * MOST_ROWS:
            self._drop()
        passed = self.began_ms is not None and abs(self.reached_ms - self.began_ms) >= WINDOW_MS
        # Where almost all are set aside, there are no rows to wait for.
        enough = self._rows >= _FEWEST_ROWS or self.records >= _FEWEST_ROWS * SHARE * SHARE
        return (passed and enough) or self.records >= _MOST_RECORDS

    def rows(self) -> WindowRows:
        """Return its rows, the most that a window has, by ascending hash."""
        self._drop()
        return self._pieces[0]

    def _drop(self) -> None:
        joined = WindowRows.joined(self._pieces).rows(slice(MOST_ROWS))
        if len(joined) == MOST_ROWS:
            self._below = joined.hashes[-1]
        self._pieces, self._rows = [joined], len(joined)

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
        if len(rows) == MOST_ROWS:
            self._below = rows.hashes[-1]
