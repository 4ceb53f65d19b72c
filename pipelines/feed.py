"""Feed: the body of the dataset's generator: hand-off, decode pool, assembler, block after block.

Owns the blocks' facts until the trainer asks for them. Runs on the thread of tf.data that calls the generator; `stop`,
`close`, `facts_of` and `statistics` may be called from any other. When its bytes are too many it takes no chunk from
the hand-off, which then fills and stops the source; when the dataset's prefetch is full nobody calls it. With nothing
to give it gives a tick, so that the trainer comes round to its commands. It ends when all was sent (what is left is
flushed), at the limit, when it is stopped or the hand-off closed (what is left is discarded and counted, and read
again from Kafka), and it raises when the source or the decoding failed, after the blocks that were whole.
"""

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from consumers.errors import HandoffBroken, HandoffClosed, HandoffEmpty, HandoffEnded
from consumers.handoff import Pick, ReceiveEnd
from consumers.joining import joined
from consumers.records import Chunk, Partition
from pipelines.assemble import Assembler
from pipelines.blocks import Block, BlockFacts
from pipelines.chunk_order import RotationOrder, draining
from pipelines.decode import DecodePool, Refused
from pipelines.record_balance import Balance, Balances, Stage
from pipelines.slices import SkipRange, within

_POLL_S = 0.02
"""How often the hand-off is looked at while chunks are being decoded and there is room for more."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Nothing to learn just now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedOptions:
    """The bounds of what is between hand-off and trainer."""

    max_bytes: int
    """Of chunks being decoded, decoded rows and blocks together, beyond what one block needs."""
    max_chunks: int = 8
    """Chunks that are decoded at once or wait for it."""
    tick_s: float = 0.1
    """The longest time without an element."""
    grace_s: float = 0.05
    """How long a block waits for chunks being decoded, if it came too late for `max_wait` as a backlog does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedStatistics:
    """What a feed holds and has done."""

    waiting_records_s: float
    """Seconds spent waiting for the hand-off: much means that nothing arrives."""
    waiting_decode_s: float
    """Seconds spent waiting for the decode pool: much means that decoding is the limit."""
    blocks: int
    """Given to the dataset."""
    decoding_bytes: int
    assembling_bytes: int
    under_way_bytes: int
    """In blocks that the dataset has and the trainer has not."""
    held_rows: int
    """Decoded rows in no block yet."""
    balances: dict[Partition, Balance]
    """Records by partition and place."""
    stale: int
    """Records of older incarnations that were dropped on arrival."""
    as_of: float
    """Monotonic clock, when this was read."""


class Feed:
    """Blocks and ticks, of one incarnation, once."""

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
        """What ended it, if anything did: tf.data loses an exception's type."""
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
        """Whether it was told to stop."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """End soon, whatever it waits for. What it holds is discarded."""
        self._stopped.set()
        self._handoff.wake()

    def close(self, timeout: float = 10.0) -> None:
        """Stop, and return when nothing of it runs any more: from then on the iterator may be dropped."""
        self.stop()
        if not self._turning.acquire(timeout=timeout):
            raise RuntimeError(f"the feed did not stop within {timeout} s; its decoder or dead letters hang")
        try:
            self._discard()
            self._under_way.clear()
            self._balances.discard(Stage.UNDER_WAY)
        finally:
            self._turning.release()

    def facts_of(self, number: int) -> BlockFacts:
        """The facts of a block that the trainer has got from the dataset; they are given once."""
        facts, _ = self._under_way.pop(number)
        self._move_spans(facts, Stage.UNDER_WAY, Stage.HANDED)
        return facts

    def statistics(self) -> FeedStatistics:
        """What it holds and has done."""
        return FeedStatistics(
            waiting_records_s=self._waiting_records_s,
            waiting_decode_s=self._waiting_decode_s,
            blocks=self._blocks,
            decoding_bytes=self._pool.statistics().nbytes,
            assembling_bytes=self._assembler.held_bytes,
            under_way_bytes=self._under_way_bytes(),
            held_rows=self._assembler.held_rows,
            balances=dict(self._balances.snapshot()),
            stale=self._stale,
            as_of=self._clock(),
        )

    def let_go(self, spent: object) -> None:
        """Have something dropped on the generator's thread, as freeing a block's tensors takes the caller some time."""
        self._spent.append(spent)

    # The generator's thread.

    def __iter__(self) -> Iterator[Block | Tick]:
        steps = self._steps()
        while True:
            with self._turning:
                element = self._step(steps)
            if element is None:
                return
            yield element

    def _step(self, steps: Iterator[Block | Tick]) -> Block | Tick | None:
        self._spent.clear()
        try:
            element = next(steps, None)
        except Exception as error:
            self.error = error
            self._discard()
            if self.stopped:
                return None
            raise
        self._gave_at = self._clock()
        if element is None:
            self._discard()
        return element

    def _steps(self) -> Iterator[Block | Tick]:
        self._gave_at = self._clock()
        while not self.stopped and not isinstance(self._ending, HandoffClosed):
            self._top_up()
            self._absorb()
            if (block := self._due_block()) is not None:
                yield self._sent(block)
            elif self._assembler.finished or (self._ending is not None and not self._pool.in_flight):
                yield from self._rest()
                return
            elif (now := self._clock()) >= self._ticks_at(now):
                yield Tick()
            else:
                self._wait()

    def _ticks_at(self, now: float) -> float:
        """When the trainer should have something to look at; not while it has a block to take."""
        return (now if self._under_way else self._gave_at) + self._options.tick_s

    def _rest(self) -> Iterator[Block]:
        """What can still be given after the last chunk."""
        if isinstance(self._ending, HandoffBroken):
            raise self._ending
        ended = isinstance(self._ending, HandoffEnded)
        while ended and not self.stopped and (block := self._assembler.take(self._clock(), flush=True)) is not None:
            yield self._sent(block)

    def _top_up(self) -> None:
        while self._has_room() and self._receive(0.0):
            pass

    def _has_room(self) -> bool:
        if self._ending is not None or self._assembler.full or self._assembler.finished:
            return False
        decoding = self._pool.statistics()
        held = decoding.nbytes + self._assembler.held_bytes + self._under_way_bytes()
        return not decoding.chunks or (decoding.chunks < self._options.max_chunks and held < self._options.max_bytes)

    def _receive(self, timeout: float) -> bool:
        """Take a chunk and have it decoded; False if there is none, or none any more."""
        try:
            chunk = self._handoff.receive(timeout, self._pick)
        except HandoffEmpty:
            return False
        except HandoffEnded as ended:
            return self._drain(ended)
        except (HandoffClosed, HandoffBroken) as ending:
            self._ending = ending
            return False
        rotates = self._assembler.rotates  # it takes just what it asks for
        self._submit(chunk if rotates else joined([chunk, *self._handoff.take_behind(chunk)]))
        return True

    def _drain(self, ended: HandoffEnded) -> bool:
        """All was sent; a policy may have left some of it there, to wait for what will never come."""
        if self._pick is None or self._draining:
            self._ending = ended
            return False
        self._pick, self._draining = draining(self._pick), True
        return self._receive(0.0)

    def _submit(self, chunk: Chunk) -> None:
        if chunk.incarnation < self._assembler.incarnation:
            self._stale += len(chunk)
            return
        self._balances.receive(chunk.partition, len(chunk))
        self._in_flight[chunk.partition] += 1
        self._pool.submit(chunk)

    def _absorb(self) -> None:
        while self._pool.in_flight and not self._assembler.full and self._decoded(0.0):
            pass

    def _decoded(self, timeout: float) -> bool:
        """Add the next decoded chunk to the block; False if there is none in time."""
        try:
            decoded = self._pool.next(timeout)
        except TimeoutError:
            return False
        self._in_flight[decoded.partition] -= 1
        records = len(decoded) + len(decoded.refused)
        self._balances.move(decoded.partition, records, Stage.DECODING, Stage.ASSEMBLING)
        if self._assembler.deadline() is None:
            self._opened_at = self._clock()
        self._assembler.add(decoded)
        return True

    def _due_block(self) -> Block | None:
        now = self._clock()
        if not self._assembler.full and now < self._closes_at():
            return None
        block = self._assembler.take(now)
        self._opened_at = now
        return block

    def _closes_at(self) -> float:
        """At its deadline, but not while more is being decoded and the trainer has not even taken the block before.

        One that was late when it opened first takes what is being decoded, a short while.
        """
        deadline = self._assembler.deadline()
        if deadline is None or (self._under_way and self._pool.in_flight):
            return math.inf
        late = deadline < self._opened_at and self._pool.in_flight
        return self._opened_at + self._options.grace_s if late else deadline

    def _wait(self) -> None:
        began = self._clock()
        timeout = max(0.0, min(self._ticks_at(began), self._closes_at()) - began)
        if self._pool.in_flight:
            self._decoded(min(timeout, _POLL_S) if self._has_room() else timeout)
            self._waiting_decode_s += self._clock() - began
        else:
            self._receive(timeout)
            self._waiting_records_s += self._clock() - began

    def _sent(self, block: Block) -> Block:
        self._blocks += 1
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
        return sum(nbytes for _, nbytes in list(self._under_way.values()))

    def _ahead(self, partition: Partition) -> int:
        return self._in_flight[partition] + self._assembler.waiting(partition)


def unless_skipped(
    skips: Sequence[SkipRange], on_refused: Callable[[Chunk, Refused], None]
) -> Callable[[Chunk, Refused], None]:
    """Pass refused records on, except those that an order has skipped: they are no dead letters."""

    def passed_on(chunk: Chunk, refused: Refused) -> None:
        if within(skips, chunk.partition, np.array([refused.offset]))[0] < 0:
            on_refused(chunk, refused)

    return passed_on
