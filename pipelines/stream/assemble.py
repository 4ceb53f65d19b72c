"""Assembler: it turns decoded chunks into blocks. A block is what one training call takes.

Owns the rows between decoding and the dataset: the block that is being filled and the chunks that wait for it. It has
no thread and no clock: the feed calls it on the generator's thread and passes the time. It has no bound either: the
feed stops adding chunks when they hold too many bytes. It ends when it is dropped, or at the limit on rows.

A block closes when it is full, when `max_wait` has run out since its oldest chunk was fetched, when it is flushed, and
at the limit. There a chunk is split between two rows, and the next block continues with the rest of it. With
`whole_batches` rows join the block a batch at a time: those that do not fill a batch wait beside it, even at a flush.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from millrace.consumers.errors import ConfigError
from millrace.consumers.records import Partition
from millrace.pipelines.schema import Schema
from millrace.pipelines.stream.blocks import Block, CallTarget
from millrace.pipelines.stream.decode import Decoded
from millrace.pipelines.stream.open_block import Closing, OpenBlock
from millrace.pipelines.stream.row_order import Arrival, Mixture, Rotation, RotationOptions, Turns
from millrace.pipelines.stream.slices import Remainder, Skipped, SkipRange, cut_out

Shape = Callable[[Decoded], tuple[Decoded, Sequence[Skipped]]]
"""Makes rows of a chunk's records, and returns with them the records that give none, sorted by offset."""
_ROWLESS_WAIT_S = 1.0
"""Without `max_wait`: how long a block waits that has no row yet, as where all records are filtered."""
Finish = Callable[[Block], Block]
"""Makes of a block that has all of its rows the one that is to be learnt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssembleOptions:
    """How blocks are made."""

    batch_size: int
    """B: rows of one step."""
    batches_per_call: int
    """K: batches of one call, at most; a shuffle over more rows than that raises it."""
    max_wait_s: float | None = None
    """The longest time from fetch to block, seconds; None waits until the block is full."""
    shuffle: int = 0
    """The least number of rows that a block permutes; 0 keeps their order."""
    seed: int = 0
    limit: int | None = None
    """Total rows to take; None for no limit."""
    whole_batches: bool = False
    """Whether rows that do not fill a batch wait for more, whatever the time; otherwise absent rows fill it up."""
    rotation: RotationOptions | None = None
    """Strict rotation over the partitions, for deterministic mode; None takes rows as they arrive, or by `weights`."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """What each topic weighs where rows of several wait; nothing where they come as they arrive."""
    finish: Finish | None = None
    """Called with each block, in their sequence; None where blocks are learnt as they close."""

    def __post_init__(self) -> None:
        """Refuse impossible values with a ConfigError."""
        for name in ("batch_size", "batches_per_call"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: {getattr(self, name)} is too few; make it 1 or more")
        if self.shuffle < 0 or (self.limit is not None and self.limit < 1):
            raise ConfigError(f"shuffle {self.shuffle} must not be negative, the limit {self.limit} at least 1")
        if self.rotation is not None and self.max_wait_s is not None:
            raise ConfigError(
                f"max_wait: {self.max_wait_s} s would make blocks depend on time; deterministic mode needs null"
            )

    @property
    def capacity(self) -> int:
        """The most rows of a full block."""
        return self.rows(self.batches_per_call)

    def rows(self, batches: int) -> int:
        """Return the rows of a full block of this many batches, or of more where the shuffle needs more."""
        return self.batch_size * max(batches, -(-self.shuffle // self.batch_size))


class Assembler:
    """Makes the blocks of one incarnation."""

    def __init__(
        self,
        schema: Schema,
        options: AssembleOptions,
        partitions: Sequence[Partition],
        incarnation: int,
        skips: Sequence[SkipRange] = (),
        target: CallTarget | None = None,
        shape: Shape | None = None,
    ) -> None:
        """Make blocks of rows of this schema; `shape` makes these rows of the records that no skip cuts out."""
        self.incarnation = incarnation
        self.dropped = 0
        """Offsets of chunks of older incarnations; they are not learnt."""
        self.held_rows = 0
        """Rows added and not yet taken."""
        self._schema, self._options, self._skips = schema, options, tuple(skips)
        self._shape = shape
        self._target = target or CallTarget(options.batches_per_call)
        self._table = {partition: index for index, partition in enumerate(sorted(partitions))}
        self._turns = _turns(options, partitions)
        self._reached: dict[Partition, int] = {}
        self._waiting_bytes = 0
        self._blocks = 0
        self._left = options.limit
        if self._left is not None and options.whole_batches:
            self._left -= self._left % options.batch_size
        self._open = self._new_block()
        self._batch = OpenBlock(schema, options.batch_size, options.batch_size) if options.whole_batches else None
        """With `whole_batches`: the rows that do not fill a batch yet, and the offsets behind the first of them."""
        self._joined_at = self._turns.turn

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """The partitions in the order of the table: blocks hold the index into it. Partitions seen later come last."""
        return tuple(self._table)

    @property
    def held_bytes(self) -> int:
        """The approximate memory of the open block and the chunks that wait."""
        return self._waiting_bytes + self._open.nbytes + (self._batch.nbytes if self._batch else 0)

    @property
    def finished(self) -> bool:
        """Whether the limit's last row has been taken."""
        return self._left == 0

    @property
    def full(self) -> bool:
        """Whether the open block has all the rows that it can take."""
        return self._open.room == 0 and not self.finished

    def add(self, decoded: Decoded) -> None:
        """Add a decoded chunk. Raise ValueError unless it begins where the partition's previous chunk ended."""
        if decoded.incarnation < self.incarnation:
            self.dropped += decoded.end - decoded.start
            return
        reached = self._reached.get(decoded.partition, decoded.start)
        if decoded.incarnation != self.incarnation or decoded.start != reached:
            raise ValueError(
                f"a chunk of {decoded.partition} from {decoded.start} of incarnation {decoded.incarnation} does not "
                f"follow {reached} of incarnation {self.incarnation}"
            )
        rows, left_out = cut_out(decoded, self._skips)
        if self._shape is not None:
            cut = left_out
            rows, shaped_out = self._shape(rows)
            left_out = sorted([*cut, *shaped_out]) if cut else [*shaped_out]
        remainder = Remainder(rows, left_out)
        self._turns.add(remainder)
        self._reached[decoded.partition] = decoded.end
        # A new partition comes last, so that the places in blocks that are under way keep their meaning.
        self._table.setdefault(decoded.partition, len(self._table))
        self.held_rows += remainder.rows
        self._waiting_bytes += remainder.decoded.nbytes
        self._fill()

    def deadline(self) -> float | None:
        """Return the latest time for the open block to close, on the clock of `fetched_at`; None for no such time."""
        if not self._open.covers:
            return None
        if self._options.max_wait_s is None:
            # No step depends on when offsets without a row settle, and a stream of such offsets fills no block.
            return None if self._open.rows else self._open.fetched_at + _ROWLESS_WAIT_S
        return self._open.fetched_at + self._options.max_wait_s

    def ready(self, now: float) -> bool:
        """Return whether a block can be taken."""
        deadline = self.deadline()
        return self.full or (deadline is not None and now >= deadline)

    def wanted(self) -> Partition | None:
        """Return the partition that the rotation waits for, or None if it waits for none."""
        return None if self.full or self.finished else self._turns.wanted()

    @property
    def rotates(self) -> bool:
        """Whether rows come in strict rotation, so that it matters which partition is fetched."""
        return self._options.rotation is not None

    def waiting(self, partition: Partition) -> int:
        """Return how many chunks of a partition wait for a place in a block."""
        return self._turns.waiting(partition)

    def take(self, now: float, *, flush: bool = False) -> Block | None:
        """Close and return the open block, or None if it is not ready. A flush closes it in any state."""
        if flush:
            self._fill(flush=True)
        if not (self.ready(now) or (flush and self._open.covers)):
            return None
        closing = Closing(
            number=self._blocks,
            incarnation=self.incarnation,
            seed=self._options.seed,
            shuffle=self._options.shuffle > 0,
            turn=self._turns.turn if self._batch is None else self._joined_at,
        )
        block = self._open.close(closing)
        self._blocks += 1
        self.held_rows -= block.facts.rows
        if self._left is not None:
            self._left -= block.facts.rows
        self._open = self._new_block()
        # Chunks that wait may fill the next block already, and perhaps no other chunk comes.
        self._fill(flush=flush)
        return block if self._options.finish is None else self._options.finish(block)

    def _new_block(self) -> OpenBlock:
        most = self._options.batches_per_call
        # Strict rotation ignores the target: its blocks must not depend on how long calls take.
        capacity = self._options.rows(most if self.rotates else max(1, min(self._target.batches, most)))
        capacity = capacity if self._left is None else min(capacity, self._left)
        return OpenBlock(self._schema, self._options.batch_size, capacity)

    def _fill(self, *, flush: bool = False) -> None:
        while self._open.room and (turn := self._turns.next(flush=flush)):
            remainder, share = turn
            rows = min(remainder.rows, share, (self._batch or self._open).room)
            piece = remainder.cut(rows)
            # A chunk stays in memory as a whole until its last row is copied out of it.
            if remainder.exhausted:
                self._waiting_bytes -= remainder.decoded.nbytes
            self._turns.took(rows)
            index = self._table[remainder.decoded.partition]
            if self._batch is None:
                self._open.add(index, piece)
                continue
            self._batch.add(index, piece)
            # Offsets without a row settle at once, unless rows before them still wait.
            if not self._batch.rows or not self._batch.room:
                self._open.append(self._batch)
                self._batch = OpenBlock(self._schema, self._options.batch_size, self._options.batch_size)
                self._joined_at = self._turns.turn


def _turns(options: AssembleOptions, partitions: Sequence[Partition]) -> Turns:
    if options.rotation is not None:
        return Rotation(partitions, options.rotation)
    return Mixture(options.weights) if options.weights else Arrival()
