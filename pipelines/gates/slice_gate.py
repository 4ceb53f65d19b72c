"""The gate of slices: it holds nothing back, and keeps for the trainer what the records of a slice are known by.

A row travels to the trainer without the fields that only slices are made of, as the dataset and the model know none of
them. So their values are kept here by partition and offset, from a decoded chunk until its block has been learnt. What
they take is bounded as the decoded chunks are: a few bytes a record for each field.

Chunks come on the generator's thread; `take` is called on the trainer's.
"""

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from millrace.consumers.records import Int64s, Partition
from millrace.pipelines.gates.gate import LearningHold
from millrace.pipelines.stream.decode import Decoded, SliceValues
from millrace.pipelines.stream.slices import SkipRange


class Sliced(NamedTuple):
    """Records of one partition, with their values of each field."""

    offsets: Int64s
    """Ascending."""
    fields: Mapping[str, SliceValues]


class SliceGate:
    """Keeps the values of some fields of the records that pass."""

    def __init__(self, fields: Sequence[str]) -> None:
        self.fields = tuple(fields)
        self._lock = threading.Lock()
        self._kept: dict[Partition, deque[Sliced]] = {}
        self._reached: dict[Partition, int] = {}

    def begin(self, positions: Mapping[Partition, int], skips: Sequence[SkipRange] = ()) -> None:
        """Forget the records of the stream before."""
        del positions, skips
        with self._lock:
            self._kept, self._reached = {}, {}

    def admits(self, decoded: Decoded) -> bool:
        """Keep the values of a chunk."""
        with self._lock:
            # A chunk that another gate holds back is asked about again.
            if self._reached.get(decoded.partition, -1) < decoded.end:
                self._reached[decoded.partition] = decoded.end
                kept = self._kept.setdefault(decoded.partition, deque())
                kept.append(Sliced(decoded.offsets, decoded.slices))
        return True

    def held(self) -> LearningHold | None:
        """Return None: it holds nothing."""
        return None

    def let_pass(self, ends: Mapping[Partition, int]) -> bool:
        """Return that it did hold nothing."""
        del ends
        return False

    def take(self, partition: Partition, end: int) -> Sequence[Sliced]:
        """Return the records of a partition before an offset, and forget them."""
        taken = list[Sliced]()
        with self._lock:
            kept = self._kept.get(partition, deque())
            while kept:
                offsets, fields = kept.popleft()
                row = int(offsets.searchsorted(end))
                if row:
                    taken.append(Sliced(offsets[:row], {name: one.rows(0, row) for name, one in fields.items()}))
                if row < len(offsets):
                    kept.appendleft(Sliced(offsets[row:], {name: one.rows(row, None) for name, one in fields.items()}))
                    break
        return taken
