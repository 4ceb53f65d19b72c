"""Row order: the partition whose rows come next, by arrival, by the weights of topics, or in strict rotation.

Before that, the partition whose chunk leaves the hand-off next: a policy is a callable from the first chunk of each
partition to the partition to take, or None to wait. The hand-off calls it on the feed's thread, each time that
something has changed. Without a policy, chunks leave as they arrived.

Owns the decoded chunks that wait for a place in a block. The assembler calls it on the feed's thread. It is never full:
the feed stops adding chunks at its bound of bytes.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from millrace.consumers.errors import ConfigError
from millrace.consumers.handoff import Pick
from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.stream.blocks import Turn
from millrace.pipelines.stream.slices import Remainder


class Turns(Protocol):
    """The order of rows."""

    @property
    def turn(self) -> Turn | None:
        """Where the rotation stands; None where a restart does not need it."""

    def add(self, remainder: Remainder) -> None:
        """Queue a chunk. The chunks of one partition come in order."""

    def next(self, *, flush: bool) -> tuple[Remainder, int] | None:
        """Return the chunk whose rows come next and how many at most; None to wait. `flush`: no chunk will follow."""

    def took(self, rows: int) -> None:
        """Take note that this many rows were cut off the chunk that `next` returned."""

    def wanted(self) -> Partition | None:
        """Return the partition without which no row can come next, or None."""

    def waiting(self, partition: Partition) -> int:
        """Return how many chunks of a partition wait here."""


class Arrival:
    """Takes rows in the order in which their chunks arrived."""

    def __init__(self) -> None:
        self._queue: deque[Remainder] = deque()

    @property
    def turn(self) -> Turn | None:
        """Always None: a restart needs only the positions."""
        return None

    def add(self, remainder: Remainder) -> None:
        """Queue a chunk at the end."""
        self._queue.append(remainder)

    def next(self, *, flush: bool) -> tuple[Remainder, int] | None:  # noqa: ARG002 - arrival never waits
        """Return the oldest chunk with all of its rows."""
        return (self._queue[0], self._queue[0].rows) if self._queue else None

    def took(self, rows: int) -> None:  # noqa: ARG002 - the chunk knows what is left of it
        """Drop the oldest chunk if nothing is left of it."""
        if self._queue[0].exhausted:
            self._queue.popleft()

    def wanted(self) -> Partition | None:
        """Return None: rows of any partition may come next."""
        return None

    def waiting(self, partition: Partition) -> int:
        """Return how many chunks of a partition wait here."""
        return sum(remainder.decoded.partition == partition for remainder in self._queue)


class Mixture:
    """Takes rows of the topics that have some by their weights, and waits for none.

    Each topic has a clock that its rows move on, the more slowly the more it weighs; the one whose clock is behind
    comes next. A topic that had no rows goes on at the present time: it has nothing to make up for, and none waits for
    it.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._queues: dict[str, deque[Remainder]] = {topic: deque() for topic in sorted(weights)}
        self._clocks = dict.fromkeys(self._queues, 0.0)
        self._now = 0.0
        self._at = ""

    @property
    def turn(self) -> Turn | None:
        """Always None: a restart needs only the positions."""
        return None

    def add(self, remainder: Remainder) -> None:
        """Queue a chunk behind those of its topic."""
        topic = remainder.decoded.partition.topic
        if not self._queues[topic]:
            present = min((self._clocks[other] for other, queue in self._queues.items() if queue), default=self._now)
            self._clocks[topic] = max(self._clocks[topic], present)
        self._queues[topic].append(remainder)

    def next(self, *, flush: bool) -> tuple[Remainder, int] | None:  # noqa: ARG002 - it never waits
        """Return the oldest chunk of the topic that comes next; with all of its rows where no other topic has any."""
        some = [topic for topic, queue in self._queues.items() if queue]
        if not some:
            return None
        # Offsets without a row take no time, and settle at once.
        self._at = min(some, key=lambda topic: (self._queues[topic][0].rows > 0, self._clocks[topic]))
        head = self._queues[self._at][0]
        return head, head.rows if len(some) == 1 else GRAIN

    def took(self, rows: int) -> None:
        """Move the topic's clock on."""
        queue = self._queues[self._at]
        self._clocks[self._at] += rows / self._weights[self._at]
        self._now = max(self._now, self._clocks[self._at])
        if queue[0].exhausted:
            queue.popleft()

    def wanted(self) -> Partition | None:
        """Return None: rows of any partition may come next."""
        return None

    def waiting(self, partition: Partition) -> int:
        """Return how many chunks of a partition wait here."""
        queue = self._queues[partition.topic]
        return sum(remainder.decoded.partition == partition for remainder in queue)


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationOptions:
    """How a strict rotation goes."""

    share: int
    """R: how many rows of a partition come before the turn passes to the next."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """What each topic weighs; without, all partitions have the same share."""
    start: Turn | None = None
    """Where the rotation stood at the checkpoint; None begins with the first partition."""
    positions: Mapping[Partition, int] = field(default_factory=dict)
    """The offset at which each partition begins."""
    ends: Mapping[Partition, int] = field(default_factory=dict)
    """Where partitions end in this run, one past the last offset: from there on the rotation leaves them out."""

    def __post_init__(self) -> None:
        """Refuse an impossible share with a ConfigError."""
        if self.share < 1:
            raise ConfigError(f"rotation: a share of {self.share} rows is too small; make it 1 or more")


class Rotation:
    """Takes a share of rows of each partition by topic and number, and waits for a partition that has none yet.

    The next row depends only on the rows and ends of the partitions: never on chunks, time, blocks or saves. Chunks
    without rows therefore take no turn: their offsets are settled as soon as they are first in their queue.
    """

    def __init__(self, partitions: Sequence[Partition], options: RotationOptions) -> None:
        self._order = sorted(partitions)
        self._options = options
        self._queues: dict[Partition, deque[Remainder]] = {partition: deque() for partition in self._order}
        self._rowless: deque[deque[Remainder]] = deque()
        """Queues whose first chunk holds no row."""
        self._shares = shares(options.weights, self._order, options.share)
        self._reached = dict(options.positions)
        start = options.start or Turn(self._order[0], 0)
        if start.partition not in self._queues:
            raise ConfigError(f"rotation: it stands at {start.partition}, which is not among the partitions read")
        self._at, self._taken = self._order.index(start.partition), start.taken
        if self._taken >= self._shares[start.partition]:  # it stood there by other weights
            self._advance()

    @property
    def turn(self) -> Turn | None:
        """The partition whose rows come next, and how many rows of its share are taken."""
        return Turn(self._order[self._at], self._taken)

    def add(self, remainder: Remainder) -> None:
        """Queue a chunk. Raise ConfigError for a partition that is not in the rotation."""
        partition = remainder.decoded.partition
        if partition not in self._queues:
            raise ConfigError(f"{partition} is new, and in deterministic mode a partition joins only by a command")
        queue = self._queues[partition]
        queue.append(remainder)
        if len(queue) == 1 and not remainder.rows:
            self._rowless.append(queue)
        self._reached[partition] = remainder.decoded.end

    def next(self, *, flush: bool) -> tuple[Remainder, int] | None:
        """Return the chunk of the partition whose turn it is, and what is left of its share."""
        if self._rowless:
            return self._rowless[0][0], 0
        # Otherwise a flush would pass from one empty queue to the next for ever.
        if not any(self._queues.values()):
            return None
        while not (queue := self._queues[self._order[self._at]]):
            if not (flush or self._ended(self._order[self._at])):
                return None
            self._advance()
        return queue[0], self._shares[self._order[self._at]] - self._taken

    def took(self, rows: int) -> None:
        """Count rows towards the share; after a full share the turn passes to the next partition."""
        queue = self._queues[self._order[self._at]] if rows else self._rowless.popleft()
        if queue[0].exhausted:
            queue.popleft()
            if queue and not queue[0].rows:
                self._rowless.append(queue)
        self._taken += rows
        if self._taken == self._shares[self._order[self._at]]:
            self._advance()

    def wanted(self) -> Partition | None:
        """Return the partition that the rotation waits for, or None if rows of the next one are here."""
        for partition in self._order[self._at :] + self._order[: self._at]:
            if self._queues[partition]:
                return None
            if not self._ended(partition):
                return partition
        return None

    def waiting(self, partition: Partition) -> int:
        """Return how many chunks of a partition wait here."""
        return len(self._queues.get(partition, ()))

    def _ended(self, partition: Partition) -> bool:
        end = self._options.ends.get(partition)
        return end is not None and self._reached.get(partition, -1) >= end

    def _advance(self) -> None:
        self._at, self._taken = (self._at + 1) % len(self._order), 0


GRAIN = 64
"""Rows of a topic that come before those of another, where its weight is the least."""
MOST = 4096
"""A topic that weighs far more than another gets so many rows in a row at most, and the other fewer than `GRAIN`."""


def shares(weights: Mapping[str, float], partitions: Collection[Partition], share: int) -> dict[Partition, int]:
    """Return how many rows of each partition come before the turn passes on: `share`, or by the weights of the topics.

    The weight of a topic is that of all its partitions together. Every record is learnt, whatever its topic
    weighs: weights decide the sequence alone.
    """
    if not weights:
        return dict.fromkeys(partitions, share)
    count = {topic: sum(partition.topic == topic for partition in partitions) for topic in weights}
    each = {partition: weights[partition.topic] / count[partition.topic] for partition in partitions}
    unit = min(share / min(each.values()), MOST / max(each.values()))
    return {partition: max(1, round(weight * unit)) for partition, weight in each.items()}


PATIENCE_S = 0.5
"""How long to wait for a partition that lags but has no chunk here, before the others continue without it."""
_LAST = 8
"""Records at the end of a chunk, of which the oldest says how far it reaches."""
AHEAD = 2
"""Chunks of a partition that the rotation takes in advance: they are decoded during the turns of the others."""


class EventTimeOrder:
    """Takes the oldest records first while they are far behind, and else chunks as they arrived.

    Otherwise the model would learn a month of one partition before the same month of another. A partition that lags
    but has no chunk here may have the oldest records of all, so the policy waits for it, for `PATIENCE_S` at most, and
    once until it has been here again; unless its last records were hardly older than the oldest that are here. (Each
    partition has its own portion of the hand-off, so the others cannot keep it out.)
    """

    def __init__(
        self,
        behind: Callable[[], Collection[Partition]],
        slack_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._behind, self._slack_ms = behind, slack_s * 1000
        self._clock, self._wall = clock, wall
        self._missing_since: dict[Partition, float] = {}
        self._reached_ms: dict[Partition, int] = {}
        """A time that the records reach which were taken of a backlog."""

    def __call__(self, heads: Mapping[Partition, Chunk]) -> Partition | None:
        """Return the partition to take from, or None while the policy waits for a missing one."""
        if not heads:
            return None
        oldest = min(heads, key=lambda partition: (_time_of(heads[partition]), partition))
        chunk = heads[oldest]
        if _time_of(chunk) > self._wall() * 1000 - self._slack_ms:
            # Near the present nothing is waited for; a later backlog has the full patience again.
            self._missing_since.clear()
            return min(heads, key=lambda partition: heads[partition].fetched_at)
        if len(chunk):
            if self._is_missed(heads, _time_of(chunk)):
                return None
            # The last record alone may have a time of its own, as of a producer whose clock is wrong.
            self._reached_ms[oldest] = int(chunk.timestamps[-_LAST:].min())
        return oldest

    def _is_missed(self, heads: Mapping[Partition, Chunk], oldest_ms: int) -> bool:
        now, far_behind = self._clock(), oldest_ms - self._slack_ms
        lagging = {partition for partition in self._behind() if partition not in heads}
        missing = [partition for partition in lagging if self._reached_ms.get(partition, -math.inf) < far_behind]
        known = {partition: since for partition, since in self._missing_since.items() if partition in lagging}
        self._missing_since = dict.fromkeys(missing, now) | known
        return any(now - self._missing_since[partition] < PATIENCE_S for partition in missing)


def _time_of(chunk: Chunk) -> int:
    """Return the time of the first record; a chunk without records comes first, as it delays no other."""
    return int(chunk.timestamps[0]) if len(chunk) else -1


class RotationOrder:
    """Takes the partition that the assembler's strict rotation waits for, then a little of the others in advance.

    It decides only what is decoded early; the assembler alone decides the order of rows.
    """

    def __init__(self, wanted: Callable[[], Partition | None], ahead: Callable[[Partition], int]) -> None:
        self._wanted, self._ahead = wanted, ahead

    def __call__(self, heads: Mapping[Partition, Chunk]) -> Partition | None:
        """Return the partition to take from, or None if all that are here have enough chunks in advance."""
        wanted = self._wanted()
        if wanted is not None and wanted in heads and self._ahead(wanted) < AHEAD:
            return wanted
        least = min(heads, key=lambda partition: (self._ahead(partition), partition), default=None)
        return least if least is not None and self._ahead(least) < AHEAD else None


class MixtureOrder:
    """Takes a chunk of the topic of which least was taken for its weight, so that rows of all are there to be mixed.

    Within a topic it takes the oldest records first. A topic that lags and of which nothing is here, as at a start, is
    waited for, for `PATIENCE_S` at most: otherwise the one that the broker answers first would be learnt alone.
    """

    def __init__(
        self,
        weights: Mapping[str, float],
        ahead: Callable[[Partition], int],
        behind: Callable[[], Collection[Partition]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ahead` returns how many records of a partition were taken and are in no block yet."""
        self._weights, self._ahead, self._behind, self._clock = weights, ahead, behind, clock
        self._partitions: set[Partition] = set()
        self._missing_since: dict[str, float] = {}

    def __call__(self, heads: Mapping[Partition, Chunk]) -> Partition | None:
        """Return the partition to take from, or None while the policy waits for a missing topic."""
        if not heads:
            return None
        self._partitions |= heads.keys()
        taken = dict.fromkeys(self._weights, 0.0)
        for partition in self._partitions:
            taken[partition.topic] += self._ahead(partition) / self._weights[partition.topic]
        here = {head.topic for head in heads} | {topic for topic, records in taken.items() if records}
        if self._is_missed(here):
            return None
        return min(heads, key=lambda head: (taken[head.topic], _time_of(heads[head]), head))

    def _is_missed(self, here: Collection[str]) -> bool:
        # To ask what lags takes a moment, and all topics are here nearly always.
        lagging = self._behind() if len(here) < len(self._weights) else ()
        now, missing = self._clock(), {partition.topic for partition in lagging} - set(here)
        self._missing_since = {topic: self._missing_since.get(topic, now) for topic in missing}
        return any(now - since < PATIENCE_S for since in self._missing_since.values())


def draining(pick: Pick) -> Pick:
    """Return the policy for when everything was sent: it never waits, but takes the oldest chunk instead."""

    def drain(heads: Mapping[Partition, Chunk]) -> Partition | None:
        chosen = pick(heads)
        return chosen or min(heads, key=lambda partition: (_time_of(heads[partition]), partition), default=None)

    return drain
