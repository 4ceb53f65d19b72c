"""Turns: whose rows come next, in order of arrival or in strict rotation.

Owns the decoded chunks that wait for a place in a block. Pure; the assembler calls it on the feed's thread. Nothing is
full here: the feed stops adding at its bound of bytes.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from consumers.errors import ConfigError
from consumers.records import Partition
from pipelines.blocks import Turn
from pipelines.slices import Remainder


class Turns(Protocol):
    """The order of rows."""

    @property
    def turn(self) -> Turn | None:
        """Where it stands, if a restart must know."""

    def add(self, remainder: Remainder) -> None:
        """Queue a chunk; of one partition, chunks come in order."""

    def next(self, *, flush: bool) -> tuple[Remainder, int] | None:
        """Whose rows come next and how many at most; None to wait. `flush` says that nothing more will be added."""

    def took(self, rows: int) -> None:
        """Rows were cut off what `next` gave."""

    def wanted(self) -> Partition | None:
        """The partition without which it cannot go on."""

    def waiting(self, partition: Partition) -> int:
        """How many of its chunks wait here."""


class Arrival:
    """In order of arrival."""

    def __init__(self) -> None:
        self._queue: deque[Remainder] = deque()

    @property
    def turn(self) -> Turn | None:
        """A restart needs no more than the positions."""
        return None

    def add(self, remainder: Remainder) -> None:
        """Queue a chunk at the end."""
        self._queue.append(remainder)

    def next(self, *, flush: bool) -> tuple[Remainder, int] | None:  # noqa: ARG002 - arrival never waits
        """The oldest chunk, all of it."""
        return (self._queue[0], self._queue[0].rows) if self._queue else None

    def took(self, rows: int) -> None:  # noqa: ARG002 - the chunk knows what is left of it
        """Drop the oldest chunk when nothing is left of it."""
        if self._queue[0].exhausted:
            self._queue.popleft()

    def wanted(self) -> Partition | None:
        """Nobody in particular."""
        return None

    def waiting(self, partition: Partition) -> int:
        """How many of its chunks wait here."""
        return sum(remainder.decoded.partition == partition for remainder in self._queue)


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationOptions:
    """A strict rotation."""

    share: int
    """R: rows of each partition before the next one's turn."""
    start: Turn | None = None
    """Where the checkpoint left it; None begins with the first partition."""
    positions: Mapping[Partition, int] = field(default_factory=dict)
    """Where reading begins, by partition."""
    ends: Mapping[Partition, int] = field(default_factory=dict)
    """Where partitions end in this run, one past the last offset: from there on they are passed over."""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.share < 1:
            raise ConfigError(f"rotation: a share of {self.share} rows is none; make it 1 or more")


class Rotation:
    """A share of each partition in order of topic and number, waiting for an empty one.

    Which row comes next depends on the partitions' rows and ends only: never on chunks, time, blocks or saves. Chunks
    without rows therefore take no turn: their offsets are settled as soon as they are first in their queue.
    """

    def __init__(self, partitions: Sequence[Partition], options: RotationOptions) -> None:
        self._order = sorted(partitions)
        self._options = options
        self._queues: dict[Partition, deque[Remainder]] = {partition: deque() for partition in self._order}
        self._rowless: deque[deque[Remainder]] = deque()
        """Queues whose first chunk holds no row."""
        self._reached = dict(options.positions)
        start = options.start or Turn(self._order[0], 0)
        if start.partition not in self._queues:
            raise ConfigError(f"rotation: it stands at {start.partition}, which is not among the partitions read")
        self._at, self._taken = self._order.index(start.partition), start.taken

    @property
    def turn(self) -> Turn | None:
        """Whose rows come next, and how many of its share are taken."""
        return Turn(self._order[self._at], self._taken)

    def add(self, remainder: Remainder) -> None:
        """Queue a chunk of its partition."""
        partition = remainder.decoded.partition
        if partition not in self._queues:
            raise ConfigError(f"{partition} is new, and in deterministic mode a partition joins only by an order")
        queue = self._queues[partition]
        queue.append(remainder)
        if len(queue) == 1 and not remainder.rows:
            self._rowless.append(queue)
        self._reached[partition] = remainder.decoded.end

    def next(self, *, flush: bool) -> tuple[Remainder, int] | None:
        """What is left of the share of the partition whose turn it is."""
        if self._rowless:
            return self._rowless[0][0], 0
        if not any(self._queues.values()):
            return None
        while not (queue := self._queues[self._order[self._at]]):
            if not (flush or self._ended(self._order[self._at])):
                return None
            self._advance()
        return queue[0], self._options.share - self._taken

    def took(self, rows: int) -> None:
        """Count rows towards the share; a full share passes the turn on."""
        queue = self._queues[self._order[self._at]] if rows else self._rowless.popleft()
        if queue[0].exhausted:
            queue.popleft()
            if queue and not queue[0].rows:
                self._rowless.append(queue)
        self._taken += rows
        if self._taken == self._options.share:
            self._advance()

    def wanted(self) -> Partition | None:
        """The partition whose turn it is, if nothing of it is here."""
        for partition in self._order[self._at :] + self._order[: self._at]:
            if self._queues[partition]:
                return None
            if not self._ended(partition):
                return partition
        return None

    def waiting(self, partition: Partition) -> int:
        """How many of its chunks wait here."""
        return len(self._queues.get(partition, ()))

    def _ended(self, partition: Partition) -> bool:
        end = self._options.ends.get(partition)
        return end is not None and self._reached.get(partition, -1) >= end

    def _advance(self) -> None:
        self._at, self._taken = (self._at + 1) % len(self._order), 0
