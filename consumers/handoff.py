"""The hand-off: the thread-safe queue between the consumer's loop and the decoders, the right edge of `consumers`.

Owns the chunks that were fetched and not yet received, one FIFO queue per partition under one lock. It has two ends and
no thread of its own: `SendEnd` never blocks and may be used from an event loop, `ReceiveEnd` waits in the receiver's
thread. When a partition's queue is full, `offer` returns False, and `on_room` calls back once there is room. Each
partition has an equal share of the bytes, so a full queue never keeps another from being filled, and a receiver may
wait for one given partition. The sender ends it by `end` or `fail`, the receiver by `close`. Chunks that an ending
drops are counted, so that this law always holds: offered = received + queued + discarded.
"""

import enum
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol

import numpy as np

from millrace.consumers.errors import HandoffBroken, HandoffClosed, HandoffEmpty, HandoffEnded, MillraceError
from millrace.consumers.records import Chunk, Partition

# Consecutive chunks are joined, so that many small ones are decoded as a few larger ones.
#
# At a thousand records a second Kafka answers with one or two records at a time, and decoding a chunk costs half a
# millisecond however small it is. In a backlog decoders wait for Python's lock, which they let go many times a chunk
# however large it is: with chunks of 16,384 records two of them decode a tenth more than with 4,096. Joining never
# waits: it takes only chunks that are queued already, so joined chunks grow with the backlog. It runs on the receiver's
# thread.
JOINED_RECORDS = 16_384
"""Most records of a joined chunk. Of twice as many JSON gains nothing."""
JOINED_BYTES = 4 * 1024 * 1024
"""Most bytes of a joined chunk, and of the rows that it becomes."""
_JOINED_MS = 1000
"""Longest time between the first record and the last, so that a backlog is still taken in order of time."""


def follows(chunk: Chunk, before: Chunk) -> bool:
    """Return whether a chunk starts where the other ends, with nothing lost in either."""
    # A lost range stays a chunk of its own: joined with others, its offsets could not be told from gaps.
    same_source = chunk.partition == before.partition and chunk.incarnation == before.incarnation
    return same_source and chunk.start == before.end and not chunk.lost and not before.lost


def together(first: Chunk, last: Chunk) -> bool:
    """Return whether the records from the first chunk to the last have about the same time."""
    return not len(first) or not len(last) or int(last.timestamps[-1]) - int(first.timestamps[0]) <= _JOINED_MS


def joined(chunks: Sequence[Chunk]) -> Chunk:
    """Return consecutive chunks as one chunk, which is as old as the oldest of them."""
    first, last = chunks[0], chunks[-1]
    if len(chunks) == 1:
        return first
    return replace(
        first,
        end=last.end,
        offsets=np.concatenate([chunk.offsets for chunk in chunks]),
        timestamps=np.concatenate([chunk.timestamps for chunk in chunks]),
        keys=[key for chunk in chunks for key in chunk.keys],
        values=[value for chunk in chunks for value in chunk.values],
        headers=[headers for chunk in chunks for headers in chunk.headers],
        nbytes=sum(chunk.nbytes for chunk in chunks),
        fetched_at=min(chunk.fetched_at for chunk in chunks),
        fingerprint=next((chunk.fingerprint for chunk in reversed(chunks) if chunk.fingerprint is not None), None),
    )


Pick = Callable[[Mapping[Partition, Chunk]], Partition | None]
"""Chooses the partition to receive from, given the first chunk of each partition that has one. None waits for more.

The hand-off calls it under its lock: it must be quick and must not call the hand-off."""


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
        return cls(chunks=1, records=len(chunk), nbytes=chunk.nbytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffStatistics:
    """What a hand-off holds and has done. offered = received + queued + discarded."""

    queued: ChunkTotals
    """Chunks that wait to be received."""
    capacity_bytes: int
    """The bound of `queued`. Only a chunk larger than its partition's share exceeds it, alone in its queue."""
    peak_bytes: int
    """The most bytes that were ever queued."""
    partitions: int
    """The number of partitions that share the capacity."""
    offered: ChunkTotals
    """Chunks that the sender offered and the hand-off accepted."""
    received: ChunkTotals
    """Chunks that the receiver took."""
    discarded: ChunkTotals
    """Chunks that an ending dropped while they were queued."""
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


class SendEnd(Protocol):
    """The end that the source uses. Any thread may call it, an event loop included: no method blocks."""

    def offer(self, chunk: Chunk) -> bool:
        """Accept the chunk, or return False when its partition is full. Raises HandoffClosed after `close`."""

    def has_room(self, partition: Partition) -> bool:
        """Return whether the partition's queue is below its share. If it is not, `on_room` calls back later."""

    def set_partitions(self, count: int) -> None:
        """Divide the capacity among `count` partitions from now on."""

    def on_room(self, callback: Callable[[], None]) -> None:
        """Set what is called when a partition that was refused has room, or the receiver has closed."""

    def end(self) -> None:
        """End normally: the receiver drains what is queued, then gets HandoffEnded."""

    def fail(self, error: BaseException) -> None:
        """End with an error: what is queued is dropped, and the receiver gets HandoffBroken."""


class ReceiveEnd(Protocol):
    """The end that the feed uses. One thread receives; any thread may wake, close or read statistics."""

    def receive(self, timeout: float | None, pick: Pick | None = None) -> Chunk:
        """Wait up to `timeout` seconds (None: without limit) for a chunk and take it."""

    def take_behind(self, chunk: Chunk, row_nbytes: int) -> list[Chunk]:
        """Take the queued chunks that directly follow a received one, while all together stay small.

        They also have to be small as rows, of `row_nbytes` each.
        """

    def wake(self) -> None:
        """Make the waiting `receive`, or the next one that would wait, raise HandoffEmpty at once."""

    def close(self) -> None:
        """Drop and count what is queued. Both ends get HandoffClosed from now on."""

    def statistics(self) -> HandoffStatistics:
        """Return what the hand-off holds and has done."""


class Handoff:
    """A queue of chunks, bounded in bytes: one object that is both a SendEnd and a ReceiveEnd."""

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

    # SendEnd: any thread, never blocks.

    def offer(self, chunk: Chunk) -> bool:
        """Accept the chunk, or return False when its partition is full. Raises HandoffClosed after `close`.

        A chunk that is larger than its partition's share is accepted when that partition's queue is empty.
        """
        with self._arrived:
            self._check_open()
            queue = self._queues.setdefault(chunk.partition, _Queue())
            # An empty queue takes a chunk of any size: one larger than the share would block its partition for ever.
            if queue.entries and queue.nbytes + chunk.nbytes > self._share:
                self._refused.add(chunk.partition)
                return False
            if not queue.entries:
                self._heads[chunk.partition] = chunk
            queue.push(self._serial, chunk)
            self._serial += 1
            self._offered += ChunkTotals.of(chunk)
            self._peak_bytes = max(self._peak_bytes, self._queued.nbytes)
            # One is enough: only one thread receives.
            self._arrived.notify()
            return True

    def has_room(self, partition: Partition) -> bool:
        """Return whether the partition's queue is below its share. If it is not, `on_room` calls back later."""
        with self._arrived:
            self._check_open()
            queue = self._queues.get(partition)
            if queue is None or queue.nbytes < self._share:
                return True
            self._refused.add(partition)
            return False

    def set_partitions(self, count: int) -> None:
        """Divide the capacity among `count` partitions from now on. Chunks that are queued stay queued."""
        if count < 1:
            raise ValueError(f"partitions={count} must be at least 1")
        with self._arrived:
            self._partitions = count
            # A smaller count makes the shares larger, so what was refused may have room now.
            callback = self._on_room if self._refused else None
            self._refused.clear()
        _call(callback)

    def on_room(self, callback: Callable[[], None]) -> None:
        """Set what is called, outside the lock, when a refused partition has room or the receiver has closed."""
        with self._arrived:
            self._on_room = callback

    def end(self) -> None:
        """End normally: the receiver drains what is queued, then gets HandoffEnded."""
        with self._arrived:
            if self._state is _State.OPEN:
                self._state = _State.ENDED
                self._arrived.notify_all()

    def fail(self, error: BaseException) -> None:
        """End with an error: what is queued is dropped, and the receiver gets HandoffBroken with the error's text."""
        with self._arrived:
            if self._state is _State.OPEN:
                self._state = _State.BROKEN
                self._error = error
                self._discard()
                self._arrived.notify_all()

    # ReceiveEnd: one thread receives.

    def receive(self, timeout: float | None, pick: Pick | None = None) -> Chunk:
        """Wait for a chunk and take it: the oldest, or the first of the partition that `pick` chooses.

        Raises HandoffEmpty after `timeout` seconds (None: never) or after a `wake`, HandoffBroken after `fail`,
        HandoffClosed after `close`. After `end` it raises HandoffEnded once `pick` chooses none of the chunks that are
        left; a `receive` without `pick` drains them.
        """
        deadline = None if timeout is None else self._clock() + timeout
        with self._arrived:
            while (chunk := self._take(pick)) is None:
                remaining = None if deadline is None else deadline - self._clock()
                if remaining is not None and remaining <= 0:
                    # Checked first: a `wake` is for a receive that would wait.
                    raise HandoffEmpty("nothing arrived in time")
                if self._woken:
                    self._woken = False
                    raise HandoffEmpty("woken")
                self._arrived.wait(remaining)
            callback = self._callback_for_room(chunk.partition)
        _call(callback)
        return chunk

    def take_behind(self, chunk: Chunk, row_nbytes: int) -> list[Chunk]:
        """Take the queued chunks that directly follow a received one, while all together stay small.

        They also have to be small as rows, of `row_nbytes` each.
        """
        behind = [chunk]
        with self._arrived:
            records, nbytes = len(chunk), chunk.nbytes
            while (head := self._heads.get(chunk.partition)) is not None and follows(head, behind[-1]):
                records, nbytes = records + len(head), nbytes + head.nbytes
                held = max(nbytes, records * row_nbytes)
                if records > JOINED_RECORDS or held > JOINED_BYTES or not together(chunk, head):
                    break
                behind.append(self._pop(chunk.partition))
            callback = self._callback_for_room(chunk.partition) if len(behind) > 1 else None
        _call(callback)
        return behind[1:]

    def wake(self) -> None:
        """Make the waiting `receive`, or the next one that would wait, raise HandoffEmpty at once."""
        with self._arrived:
            # A flag, because a notification is missed by a receive that has not begun to wait.
            self._woken = True
            self._arrived.notify_all()

    def close(self) -> None:
        """Drop and count what is queued. Both ends get HandoffClosed from now on."""
        with self._arrived:
            if self._state is _State.CLOSED:
                return
            self._state = _State.CLOSED
            self._discard()
            self._arrived.notify_all()
            callback = self._on_room
        _call(callback)

    def statistics(self) -> HandoffStatistics:
        """Return what the hand-off holds and has done, as of now."""
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

    # The methods below are called under the lock.

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
        """Pop the chunk to receive now, or return None to wait."""
        if self._state is _State.CLOSED:
            raise HandoffClosed("the hand-off is closed")
        if self._state is _State.BROKEN:
            exit_code = self._error.exit_code if isinstance(self._error, MillraceError) else 1
            raise HandoffBroken(str(self._error), exit_code=exit_code, why=self._error) from self._error
        if pick is None:
            partition = min(self._heads, key=lambda oldest: self._queues[oldest].entries[0][0], default=None)
        else:
            partition = pick(MappingProxyType(self._heads))
        if partition is not None:
            return self._pop(partition)
        if self._state is _State.ENDED:
            raise HandoffEnded("all was sent")
        return None

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

    def _callback_for_room(self, partition: Partition) -> Callable[[], None] | None:
        """Return the callback to call after the lock is released, or None when nothing of the partition was refused."""
        # Only a refused sender waits. Calling back after every chunk would wake its event loop for nothing.
        if partition not in self._refused:
            return None
        self._refused.discard(partition)
        return self._on_room

    def _discard(self) -> None:
        self._discarded += self._queued
        self._queues.clear()
        self._heads.clear()


def _call(callback: Callable[[], None] | None) -> None:
    if callback is not None:
        callback()
