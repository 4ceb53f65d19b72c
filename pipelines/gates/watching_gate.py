"""Gates that only watch: they hold nothing back, and keep something of each decoded chunk for the trainer.

It is kept from the decoded chunk until the block with its records has been learnt, by partition and offset, and is
bounded as the decoded chunks are. Chunks come on the generator's thread; `take` is called on the trainer's.
"""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from millrace.consumers.records import Int64s, Partition
from millrace.pipelines.gates.gate import LearningHold
from millrace.pipelines.stream.decode import Decoded
from millrace.pipelines.stream.slices import SkipRange

Kept = TypeVar("Kept")
Piece = TypeVar("Piece")


class WatchingGate(ABC, Generic[Kept, Piece]):
    """Keeps something of the records that pass."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[Partition, deque[tuple[int, Int64s, Kept]]] = {}
        """Of each chunk: its end, the offsets of what is kept, and that."""
        self._admitted: dict[Partition, int] = {}
        """Where the chunks end that were kept."""
        self._taken: dict[Partition, tuple[int, int]] = {}
        """Up to which offset, and to which row of the first chunk that is kept."""

    @abstractmethod
    def keep(self, decoded: Decoded) -> tuple[Int64s, Kept]:
        """Return what is kept of a chunk, and the offsets of its rows, ascending."""

    @abstractmethod
    def piece_of(self, kept: Kept, rows: slice, start: int, end: int) -> Piece:
        """Return some rows of what is kept: all whose offsets are from `start` to before `end`. Quick."""

    def begin(self, positions: Mapping[Partition, int], skips: Sequence[SkipRange] = ()) -> None:
        """Forget the records of the stream before."""
        del positions, skips
        with self._lock:
            self._kept, self._admitted, self._taken = {}, {}, {}

    def admits(self, decoded: Decoded) -> bool:
        """Keep something of a chunk."""
        # A chunk that another gate holds back is asked about again.
        if self._admitted.get(decoded.partition, -1) < decoded.end:
            kept = (decoded.end, *self.keep(decoded))
            with self._lock:
                self._admitted[decoded.partition] = decoded.end
                self._kept.setdefault(decoded.partition, deque()).append(kept)
        return True

    def held(self) -> LearningHold | None:
        """Return None: it holds nothing."""
        return None

    def let_pass(self, ends: Mapping[Partition, int]) -> bool:
        """Return that it did hold nothing."""
        del ends
        return False

    def take(self, partition: Partition, end: int) -> Sequence[Piece]:
        """Return what was kept of a partition before an offset, and forget it."""
        taken = list[Piece]()
        with self._lock:
            kept = self._kept.get(partition)
            start, first = self._taken.get(partition, (-1, 0))
            while kept:
                ends, offsets, one = kept[0]
                last = int(offsets.searchsorted(end))
                taken.append(self.piece_of(one, slice(first, last), start, end))
                first = last
                if end < ends:
                    break
                kept.popleft()
                first = 0
            self._taken[partition] = end, first
        return taken
