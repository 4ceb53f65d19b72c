"""The hand-off: the thread-safe queue between the consumer's loop and the decoders, the end of `consumers`.

Owns the chunks that were fetched and not yet taken, one FIFO queue a partition under one lock. It has no thread of
its own: the sending end never blocks and may be used from an event loop, the receiving end waits in its own thread.
Full, it refuses a chunk (`offer` is False) and says so when room appears (`on_room`). Each partition has an equal
share of the bytes, so that a full one never keeps another from being filled: a receiver may wait for one given
partition. It ends in one of three ways, by the sender (`end`, `fail`) or by the receiver (`close`); what is dropped
is counted, so that always: offered = received + queued + discarded.
"""

import enum
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from consumers.errors import HandoffBroken, HandoffClosed, HandoffEmpty, HandoffEnded, MillraceError
from consumers.joining import JOINED_BYTES, JOINED_RECORDS, follows, together
from consumers.records import Chunk, Partition

Pick = Callable[[Mapping[Partition, Chunk]], Partition | None]
"""Given the first chunk of each partition that has one: which partition to take from, None to wait for more.

It is called under the hand-off's lock: quick, and without calling the hand-off."""


class _State(enum.Enum):
    OPEN = enum.auto()
    ENDED = enum.auto()
    BROKEN = enum.auto()
    CLOSED = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTotals:
    """Chunks with their records and bytes."""

    chunks: int = 0
    records: int = 0
    nbytes: int = 0

    def __add__(self, other: "ChunkTotals") -> "ChunkTotals":
        return ChunkTotals(
            chunks=self.chunks + other.chunks,
            records=self.records + other.records,
            nbytes=self.nbytes + other.nbytes,
        )

    def __sub__(self, other: "ChunkTotals") -> "ChunkTotals":
        return ChunkTotals(
            chunks=self.chunks - other.chunks,
            records=self.records - other.records,
            nbytes=self.nbytes - other.nbytes,
        )

    @classmethod
    def of(cls, chunk: Chunk) -> "ChunkTotals":
        """One chunk."""
        return cls(chunks=1, records=len(chunk), nbytes=chunk.nbytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffStatistics:
    """What a hand-off holds and has done. offered = received + queued + discarded."""

    queued: ChunkTotals
    """What waits to be received."""
    capacity_bytes: int
    """The bound of `queued`; only a chunk that is larger than its partition's share passes it, alone in its queue."""
    peak_bytes: int
    """The most that was ever queued."""
    partitions: int
    """Among how many the capacity is shared."""
    offered: ChunkTotals
    """What was ever taken from the sender."""
    received: ChunkTotals
    """What the receiver has got."""
    discarded: ChunkTotals
    """What was dropped by an ending while it was queued."""
    state: str
    """open, ended, broken or closed."""
    as_of: float
    """Monotonic clock, when this was read."""


class _Queue:
    """The chunks of one partition, oldest first."""

    __slots__ = ("entries", "nbytes")

    def __init__(self) -> None:
        self.entries: deque[tuple[int, Chunk]] = deque()
        self.nbytes = 0

    def push(self, serial: int, chunk: Chunk) -> None:
        self.entries.append((serial, chunk))
        self.nbytes += chunk.nbytes

    def pop(self) -> Chunk:
        _, chunk = self.entries.popleft()
        self.nbytes -= chunk.nbytes
        return chunk


class Handoff:
    """A queue of chunks with two ends, bounded in bytes."""

    def __init__(
        self, *, capacity_bytes: int, partitions: int = 1, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if capacity_bytes < 1 or partitions < 1:
            raise ValueError(f"capacity_bytes={capacity_bytes} and partitions={partitions} must both be at least 1")
        self._capacity = capacity_bytes
        self._partitions = partitions
        self._clock = clock
        self._arrived = threading.Condition(threading.Lock())
        self._queues: dict[Partition, _Queue] = {}
        self._heads: dict[Partition, Chunk] = {}
        self._refused: set[Partition] = set()
        self._state = _State.OPEN
        self._error: BaseException | None = None
        self._woken = False
        self._serial = 0
        self._on_room: Callable[[], None] | None = None
        self._offered = self._received = self._discarded = ChunkTotals()
        self._peak_bytes = 0

    # The sending end: any thread, never blocks.

    def offer(self, chunk: Chunk) -> bool:
        """Take the chunk, or say False when its partition is full. Raises HandoffClosed when the receiver has left.

        A chunk that is larger than its partition's share is taken when that partition's queue is empty.
        """
        with self._arrived:
            self._check_open()
            queue = self._queues.setdefault(chunk.partition, _Queue())
            if queue.entries and queue.nbytes + chunk.nbytes > self._share:
                self._refused.add(chunk.partition)
                return False
            if not queue.entries:
                self._heads[chunk.partition] = chunk
            queue.push(self._serial, chunk)
            self._serial += 1
            self._offered += ChunkTotals.of(chunk)
            self._peak_bytes = max(self._peak_bytes, self._queued.nbytes)
            self._arrived.notify()
            return True

    def has_room(self, partition: Partition) -> bool:
        """Whether the partition's queue is below its share. If not, `on_room` tells when to ask again."""
        with self._arrived:
            self._check_open()
            queue = self._queues.get(partition)
            if queue is None or queue.nbytes < self._share:
                return True
            self._refused.add(partition)
            return False

    def set_partitions(self, count: int) -> None:
        """Share the capacity among so many partitions from now on. What is queued stays."""
        if count < 1:
            raise ValueError(f"partitions={count} must be at least 1")
        with self._arrived:
            self._partitions = count
            callback = self._forget_refusals()
        _call(callback)

    def on_room(self, callback: Callable[[], None]) -> None:
        """Call back, outside of the lock, when a partition that was refused has room, or the receiver has left."""
        with self._arrived:
            self._on_room = callback

    def end(self) -> None:
        """All was sent: the receiver drains what is queued, then gets HandoffEnded."""
        with self._arrived:
            if self._state is _State.OPEN:
                self._state = _State.ENDED
                self._arrived.notify_all()

    def fail(self, error: BaseException) -> None:
        """The sender broke: what is queued is dropped, and the receiver gets HandoffBroken from the error."""
        with self._arrived:
            if self._state is _State.OPEN:
                self._state = _State.BROKEN
                self._error = error
                self._discard()
                self._arrived.notify_all()

    # The receiving end.

    def receive(self, timeout: float | None, pick: Pick | None = None) -> Chunk:
        """Wait for a chunk and take it, the oldest first, or as `pick` says.

        Raises HandoffEmpty after `timeout` seconds (None: never) or a `wake`, HandoffBroken, HandoffClosed, and
        HandoffEnded once all was sent and `pick` would take nothing of what is left: a receive without `pick` then
        drains the rest.
        """
        deadline = None if timeout is None else self._clock() + timeout
        with self._arrived:
            while (chunk := self._take(pick)) is None:
                self._wait(deadline)
            callback = self._room_made(chunk.partition)
        _call(callback)
        return chunk

    def take_behind(self, chunk: Chunk) -> list[Chunk]:
        """Take what is queued right behind a chunk that was received, as far as all together stay small."""
        behind = [chunk]
        with self._arrived:
            records, nbytes = len(chunk), chunk.nbytes
            while (head := self._heads.get(chunk.partition)) is not None and follows(head, behind[-1]):
                records, nbytes = records + len(head), nbytes + head.nbytes
                if records > JOINED_RECORDS or nbytes > JOINED_BYTES or not together(chunk, head):
                    break
                behind.append(self._pop(chunk.partition))
            callback = self._room_made(chunk.partition) if len(behind) > 1 else None
        _call(callback)
        return behind[1:]

    def wake(self) -> None:
        """Make the receive that waits, or else the next that would wait, raise HandoffEmpty at once."""
        with self._arrived:
            self._woken = True
            self._arrived.notify_all()

    def close(self) -> None:
        """Leave: what is queued is dropped and counted, and both ends get HandoffClosed from now on."""
        with self._arrived:
            if self._state is _State.CLOSED:
                return
            self._state = _State.CLOSED
            self._discard()
            self._arrived.notify_all()
            callback = self._on_room
        _call(callback)

    def statistics(self) -> HandoffStatistics:
        """What it holds and has done."""
        with self._arrived:
            return HandoffStatistics(
                queued=self._queued,
                capacity_bytes=self._capacity,
                peak_bytes=self._peak_bytes,
                partitions=self._partitions,
                offered=self._offered,
                received=self._received,
                discarded=self._discarded,
                state=self._state.name.lower(),
                as_of=self._clock(),
            )

    # Under the lock.

    @property
    def _share(self) -> int:
        return self._capacity // self._partitions

    @property
    def _queued(self) -> ChunkTotals:
        return self._offered - self._received - self._discarded

    def _check_open(self) -> None:
        if self._state is _State.CLOSED:
            raise HandoffClosed("the receiver has left the hand-off")
        if self._state is not _State.OPEN:
            raise RuntimeError(f"the hand-off has {self._state.name.lower()}; nothing can be sent after that")

    def _take(self, pick: Pick | None) -> Chunk | None:
        """The chunk to receive now, None to wait."""
        if self._state is _State.CLOSED:
            raise HandoffClosed("the hand-off is closed")
        if self._state is _State.BROKEN:
            exit_code = self._error.exit_code if isinstance(self._error, MillraceError) else 1
            raise HandoffBroken(str(self._error), exit_code=exit_code, why=self._error) from self._error
        partition = self._oldest() if pick is None else pick(MappingProxyType(self._heads))
        if partition is not None:
            return self._pop(partition)
        if self._state is _State.ENDED:
            raise HandoffEnded("all was sent")
        return None

    def _oldest(self) -> Partition | None:
        return min(self._heads, key=lambda partition: self._queues[partition].entries[0][0], default=None)

    def _pop(self, partition: Partition) -> Chunk:
        if partition not in self._heads:
            raise ValueError(f"pick chose {partition}, which has no chunk")
        queue = self._queues[partition]
        chunk = queue.pop()
        if queue.entries:
            self._heads[partition] = queue.entries[0][1]
        else:
            del self._heads[partition]
        self._received += ChunkTotals.of(chunk)
        return chunk

    def _wait(self, deadline: float | None) -> None:
        remaining = None if deadline is None else deadline - self._clock()
        if remaining is not None and remaining <= 0:
            raise HandoffEmpty("nothing arrived in time")  # it does not wait: a wake is for one that would
        if self._woken:
            self._woken = False
            raise HandoffEmpty("woken")
        self._arrived.wait(remaining)

    def _room_made(self, partition: Partition) -> Callable[[], None] | None:
        if partition not in self._refused:
            return None
        self._refused.discard(partition)
        return self._on_room

    def _forget_refusals(self) -> Callable[[], None] | None:
        refused, self._refused = self._refused, set()
        return self._on_room if refused else None

    def _discard(self) -> None:
        self._discarded += self._queued
        self._queues.clear()
        self._heads.clear()


def _call(callback: Callable[[], None] | None) -> None:
    if callback is not None:
        callback()
