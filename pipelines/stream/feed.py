"""Feed: the body of the dataset's generator. It takes chunks from the hand-off, has them decoded, and gives blocks.

Owns the facts of blocks until the trainer asks for them. Runs on the thread of tf.data that calls the generator; any
other thread may call `stop`, `close`, `facts_of` and `statistics`.

Full: while it holds too many bytes the feed takes no chunk from the hand-off, which then fills and stops the source.
While the dataset's prefetch is full, tf.data does not call the generator. Empty: with no block to give, the feed gives
a tick, so that the trainer looks at its commands.

The feed ends when everything was sent (it then gives what is left, unless that waits for a whole batch), at the limit
on records, or when it is stopped or the hand-off is closed (what it holds is then discarded, counted, and read again
from Kafka). If the source or the decoding fails, it raises after the blocks that were complete.
"""

import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np

from millrace.consumers.errors import HandoffBroken, HandoffClosed, HandoffEmpty, HandoffEnded
from millrace.consumers.handoff import Pick, ReceiveEnd, joined
from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.stream.assemble import Assembler
from millrace.pipelines.stream.blocks import Block, BlockFacts
from millrace.pipelines.stream.decode import DecodePool, OnRefused, Refused
from millrace.pipelines.stream.row_order import RotationOrder, draining
from millrace.pipelines.stream.slices import SkipRange, within

log = logging.getLogger(__name__)

_POLL_S = 0.02
"""The longest wait for the decode pool while there is room for more: new chunks may come to the hand-off meanwhile."""


@dataclass(frozen=True, slots=True)
class Tick:
    """No block to learn just now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedOptions:
    """The bounds of what is between hand-off and trainer."""

    max_bytes: int
    """Of chunks in decoding, decoded rows and blocks together. One chunk is decoded whatever its size."""
    max_chunks: int = 8
    """Chunks that are decoded at the same time, or wait for it."""
    tick_s: float = 0.1
    """The longest time without an element, seconds."""
    portions: Callable[[Chunk], Sequence[Chunk]] | None = None
    """Cuts a chunk into some that are decoded, and may be held back, each by itself; None where none is cut."""
    grace_s: float = 0.05
    """How long a block that opens past `max_wait`, as in a backlog, still takes chunks in decoding, seconds."""


class Stage(StrEnum):
    """Where a record is; it is at one stage at a time."""

    DECODING = "decoding"
    ASSEMBLING = "assembling"
    UNDER_WAY = "under_way"
    HANDED = "handed"
    DISCARDED = "discarded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """Records of one partition. The law: received = decoding + assembling + under_way + handed + discarded."""

    received: int
    """Taken from the hand-off, in this incarnation."""
    decoding: int
    assembling: int
    """Decoded, and in no closed block yet."""
    under_way: int
    """In blocks that the dataset has got, prefetched or not, and the trainer has not."""
    handed: int
    """In blocks that the trainer has got: learnt, set aside, skipped, filtered, or in its call."""
    discarded: int
    """Dropped by a stop; they will be read again."""

    @property
    def held(self) -> int:
        """Records between the hand-off and the trainer."""
        return self.decoding + self.assembling + self.under_way

    def balanced(self) -> bool:
        """Return whether every record is at exactly one stage."""
        return self.received == self.held + self.handed + self.discarded


class Balances:
    """The balance of each partition. The feed's and the trainer's threads change it; any thread reads it."""

    def __init__(self) -> None:
        # One lock for all counters, so that a snapshot finds every record in one place.
        self._lock = threading.Lock()
        self._received: Counter[Partition] = Counter()
        self._at: dict[Stage, Counter[Partition]] = {stage: Counter() for stage in Stage}

    def receive(self, partition: Partition, records: int) -> None:
        """Count records that were received; they are being decoded."""
        with self._lock:
            self._received[partition] += records
            self._at[Stage.DECODING][partition] += records

    def move(self, partition: Partition, records: int, source: Stage, target: Stage) -> None:
        """Move records from one stage to another."""
        with self._lock:
            self._at[source][partition] -= records
            self._at[target][partition] += records

    def ahead(self, partition: Partition) -> int:
        """Return how many records of a partition were received and are in no closed block yet."""
        with self._lock:
            return self._at[Stage.DECODING][partition] + self._at[Stage.ASSEMBLING][partition]

    def discard(self, *stages: Stage) -> None:
        """Count all records at these stages as discarded."""
        with self._lock:
            for stage in stages:
                self._at[Stage.DISCARDED].update(self._at[stage])
                self._at[stage].clear()

    def snapshot(self) -> Mapping[Partition, Balance]:
        """Return all balances at one instant."""
        with self._lock:
            return {
                partition: Balance(received=received, **{stage.value: self._at[stage][partition] for stage in Stage})
                for partition, received in self._received.items()
            }


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedStatistics:
    """What a feed holds and has done."""

    waiting_records_s: float
    """Seconds spent in waiting for the hand-off: a large share of the time means that few records arrive."""
    waiting_decode_s: float
    """Seconds spent in waiting for the decode pool: a large share of the time means that decoding is the limit."""
    blocks: int
    """Blocks given to the dataset."""
    lacks: str | None = None
    """What the next chunk needs to be decoded and is not known yet, in a sentence; None where it lacks nothing."""
    decoding_bytes: int
    assembling_bytes: int
    under_way_bytes: int
    """In blocks that the dataset has got and the trainer has not."""
    held_rows: int
    """Decoded rows that are not in a closed block yet."""
    balances: dict[Partition, Balance]
    """Where the records of each partition are."""
    stale: int
    """Records of older incarnations that were dropped on arrival."""
    as_of: float
    """Monotonic clock, when this was read."""


class BlockFeed(Protocol):
    """What the dataset needs of a feed."""

    error: Exception | None
    """The error that ended it."""

    def __iter__(self) -> Iterator[Block | Tick]:
        """Iterate over the blocks, on the generator's thread."""
        ...

    def facts_of(self, number: int) -> BlockFacts:
        """Return the facts of a block that the trainer has got, once."""
        ...

    def drop_later(self, spent: object) -> None:
        """Drop the last reference to an object on the generator's thread."""
        ...

    def close(self) -> None:
        """Stop, and return when nothing of the feed runs any more."""
        ...


class Feed:
    """The blocks and ticks of one incarnation; can be iterated once."""

    def __init__(
        self,
        handoff: ReceiveEnd,
        pool: DecodePool,
        assembler: Assembler,
        options: FeedOptions,
        pick: Pick | None = None,
        clock: Callable[[], float] = time.monotonic,
        stopped: threading.Event | None = None,
    ) -> None:
        self.error: Exception | None = None
        """The error that ended the feed, kept here because tf.data loses the type of an exception."""
        self._handoff, self._pool, self._assembler, self._options = handoff, pool, assembler, options
        self._pick = RotationOrder(assembler.wanted, self._ahead) if assembler.rotates else pick
        self._draining = False
        self._clock = clock
        self._stopped = stopped or threading.Event()
        self._turning = threading.Lock()
        self._ending: Exception | None = None
        self._in_flight: Counter[Partition] = Counter()
        self._balances = Balances()
        self._under_way: dict[int, tuple[BlockFacts, int]] = {}
        self._gave_at = -math.inf
        self._opened_at = -math.inf
        self._waiting_records_s = self._waiting_decode_s = 0.0
        self._blocks = self._stale = 0
        self._spent: deque[object] = deque()

    # Any thread.

    @property
    def stopped(self) -> bool:
        """Whether it was asked to stop."""
        return self._stopped.is_set()

    @property
    def expects(self) -> bool:
        """Whether it holds records that will be in a block: decoding, decoded, or in a block that nobody has taken."""
        return bool(self._pool.in_flight or self._assembler.held_rows or self._under_way)

    def stop(self) -> None:
        """End the feed soon, whatever it waits for; it discards what it holds."""
        self._stopped.set()
        self._handoff.wake()

    def close(self, timeout: float = 10.0) -> None:
        """Stop, and return when nothing of the feed runs any more: from then on the iterator may be dropped.

        Raises RuntimeError if that takes longer than `timeout` seconds.
        """
        self.stop()
        if not self._turning.acquire(timeout=timeout):
            raise RuntimeError(f"the feed did not stop within {timeout} s; its decoder or the dead letters hang")
        try:
            self._discard()
            self._under_way.clear()
            self._balances.discard(Stage.UNDER_WAY)
        finally:
            self._turning.release()

    def facts_of(self, number: int) -> BlockFacts:
        """Return the facts of a block that the trainer has got from the dataset; a second call raises KeyError."""
        facts, _ = self._under_way.pop(number)
        self._move_spans(facts, Stage.UNDER_WAY, Stage.HANDED)
        return facts

    def ahead(self, partition: Partition) -> int:
        """Return how many records of a partition were taken from the hand-off and are in no closed block yet."""
        return self._balances.ahead(partition)

    def statistics(self) -> FeedStatistics:
        """Return what the feed holds and has done."""
        decoding = self._pool.statistics()
        return FeedStatistics(
            waiting_records_s=self._waiting_records_s,
            waiting_decode_s=self._waiting_decode_s,
            blocks=self._blocks,
            decoding_bytes=decoding.nbytes,
            lacks=decoding.lacks,
            assembling_bytes=self._assembler.held_bytes,
            under_way_bytes=self._under_way_bytes(),
            held_rows=self._assembler.held_rows,
            balances=dict(self._balances.snapshot()),
            stale=self._stale,
            as_of=self._clock(),
        )

    def drop_later(self, spent: object) -> None:
        """Drop the last reference to an object on the generator's thread: to free a block's tensors takes time."""
        self._spent.append(spent)

    # The generator's thread.

    def __iter__(self) -> Iterator[Block | Tick]:
        steps = self._steps()
        while True:
            with self._turning:  # `close` waits for this lock, so that nothing runs here once it has returned
                element = self._step(steps)
            if element is None:
                return
            yield element

    def _step(self, steps: Iterator[Block | Tick]) -> Block | Tick | None:
        """Return the next element, or None at the end; keep the error that ends the feed, and discard what is left."""
        self._spent.clear()
        try:
            element = next(steps, None)
        except Exception as error:
            self.error = error
            self._discard()
            # After a stop the dead letters refuse to wait for room and raise: an effect of the stop, not a failure.
            if self.stopped:
                return None
            raise
        self._gave_at = self._clock()
        if element is None:
            self._discard()
        return element

    def _steps(self) -> Iterator[Block | Tick]:
        """Yield what is due, until everything was sent, the limit is reached or the feed is stopped.

        1. Take chunks from the hand-off while there is room, and have them decoded.
        2. Add the chunks that are decoded by now to the open block, until it is full.
        3. Give the block if it is full or its time is over.
        4. At the end give the blocks that are left, or raise what broke the source.
        5. Give a tick if the trainer has had nothing to look at for `tick_s`.
        6. Otherwise wait for a chunk, decoded or not, until a block or a tick is due.
        """
        self._gave_at = self._clock()
        while not self.stopped and not isinstance(self._ending, HandoffClosed):
            # Before the decoded chunks are added, so that the decoders work while this thread copies rows.
            while self._has_room() and self._receive(0.0):  # (1)
                pass
            while self._pool.in_flight and not self._assembler.full and self._add_decoded(0.0):  # (2)
                pass
            now, closes_at = self._clock(), self._closes_at()
            # While the dataset has a block that the trainer has not taken, the trainer needs no tick.
            ticks_at = (now if self._under_way else self._gave_at) + self._options.tick_s
            if self._assembler.full or now >= closes_at:  # (3)
                if (block := self._assembler.take(now)) is not None:
                    self._opened_at = now
                    yield self._sent(block)
            elif self._assembler.finished or (self._ending is not None and not self._pool.in_flight):  # (4)
                yield from self._rest()
                return
            elif now >= ticks_at:  # (5)
                yield Tick()
            elif self._pool.in_flight:  # (6)
                timeout, held_s = max(0.0, min(ticks_at, closes_at) - now), self._pool.held_s
                self._add_decoded(min(timeout, _POLL_S) if self._has_room() else timeout)
                # What is decoded and held back waits for something outside, as for labels.
                held_s = self._pool.held_s - held_s
                self._waiting_records_s += held_s
                self._waiting_decode_s += max(0.0, self._clock() - now - held_s)
            else:
                self._receive(max(0.0, min(ticks_at, closes_at) - now))
                self._waiting_records_s += self._clock() - now

    def _rest(self) -> Iterator[Block]:
        """Yield the blocks that are left once everything was sent; raise what broke the source, if it is broken."""
        if isinstance(self._ending, HandoffBroken):
            raise self._ending
        ended = isinstance(self._ending, HandoffEnded)
        while ended and not self.stopped and (block := self._assembler.take(self._clock(), flush=True)) is not None:
            yield self._sent(block)
        if ended and not self.stopped and self._assembler.held_rows and not self._assembler.finished:
            left = self._assembler.held_rows
            log.info("Records left over for the next run, because they do not fill a batch: %d", left)

    def _has_room(self) -> bool:
        """Return whether another chunk may be taken. One is always decoded, however large it is."""
        if self._ending is not None or self._assembler.full or self._assembler.finished:
            return False
        decoding = self._pool.statistics()
        held = decoding.nbytes + self._assembler.held_bytes + self._under_way_bytes()
        return not decoding.chunks or (decoding.chunks < self._options.max_chunks and held < self._options.max_bytes)

    def _receive(self, timeout: float) -> bool:
        """Take a chunk and have it decoded; return False if there is none in time, or there will be none any more."""
        try:
            chunk = self._handoff.receive(timeout, self._pick)
        except HandoffEmpty:
            return False
        except HandoffEnded as ended:
            if self._pick is None or self._draining:
                self._ending = ended
                return False
            # Everything was sent, but the policy left chunks there, to wait for others that will never come.
            self._pick, self._draining = draining(self._pick), True
            return self._receive(0.0)
        except (HandoffClosed, HandoffBroken) as ending:
            self._ending = ending
            return False
        if not self._assembler.rotates:  # strict rotation takes exactly the chunks that it asks for
            chunk = joined([chunk, *self._handoff.take_behind(chunk, self._pool.row_nbytes)])
        if chunk.incarnation < self._assembler.incarnation:
            self._stale += len(chunk)
        else:
            self._balances.receive(chunk.partition, len(chunk))
            for portion in (chunk,) if self._options.portions is None else self._options.portions(chunk):
                self._in_flight[portion.partition] += 1
                self._pool.submit(portion)
        return True

    def _add_decoded(self, timeout: float) -> bool:
        """Add the next decoded chunk to the block; return False if there is none in time."""
        try:
            decoded = self._pool.next(timeout)
        except TimeoutError:
            return False
        self._in_flight[decoded.partition] -= 1
        records = len(decoded) + len(decoded.refused) + len(decoded.filtered)
        self._balances.move(decoded.partition, records, Stage.DECODING, Stage.ASSEMBLING)
        # No deadline: the open block is empty and opens with this chunk, or no time limits it.
        if self._assembler.deadline() is None:
            self._opened_at = self._clock()
        self._assembler.add(decoded)
        return True

    def _closes_at(self) -> float:
        """Return when the open block must be given even if it is not full; infinity for no time.

        This is its deadline, except in two cases. While chunks are in decoding and the trainer has not even taken the
        block before, the block stays open, because nothing would be learnt sooner. A block that was late when it
        opened, as in a backlog, first takes the chunks that are in decoding, for `grace_s`: otherwise every block of
        a backlog would hold a single chunk.
        """
        deadline = self._assembler.deadline()
        if deadline is None or (self._under_way and self._pool.in_flight):
            return math.inf
        late = deadline < self._opened_at and self._pool.in_flight
        return self._opened_at + self._options.grace_s if late else deadline

    def _sent(self, block: Block) -> Block:
        """Count a block as under way to the trainer, and return it."""
        self._blocks += 1
        # Before the block leaves: the trainer asks for its facts as soon as it has it.
        self._under_way[block.facts.number] = (block.facts, block.nbytes)
        self._move_spans(block.facts, Stage.ASSEMBLING, Stage.UNDER_WAY)
        return block

    def _move_spans(self, facts: BlockFacts, source: Stage, target: Stage) -> None:
        for span in facts.spans:
            self._balances.move(span.partition, span.records, source, target)

    def _discard(self) -> None:
        self._pool.discard()
        self._balances.discard(Stage.DECODING, Stage.ASSEMBLING)

    def _under_way_bytes(self) -> int:
        # A copy, because the trainer's thread takes facts out meanwhile.
        return sum(nbytes for _, nbytes in list(self._under_way.values()))

    def _ahead(self, partition: Partition) -> int:
        """Return how many chunks of a partition are in decoding or wait for a place in a block."""
        return self._in_flight[partition] + self._assembler.waiting(partition)


def unless_skipped(skips: Sequence[SkipRange], on_refused: OnRefused) -> OnRefused:
    """Return a callback that passes refused records on, but not skipped ones: these are no dead letters."""
    if not skips:
        return on_refused

    def pass_on(chunk: Chunk, refused: Sequence[Refused]) -> int:
        skipped = within(skips, chunk.partition, np.array([one.offset for one in refused])) >= 0
        left = np.flatnonzero(~skipped)
        accepted = on_refused(chunk, [refused[at] for at in left.tolist()]) if len(left) else 0
        return int(left[accepted]) if accepted < len(left) else len(refused)

    return pass_on
