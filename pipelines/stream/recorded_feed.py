"""The feed of a rebuild: the blocks that a journal has recorded, made of the same records once more.

A block is made alone: of each partition exactly the range of offsets that was recorded, in the order of the strict
rotation from where it stood before. So it has the rows of the recorded block wherever chunks are cut now.

Owns the facts of blocks until the trainer asks for them. Runs on the thread of tf.data that calls the generator; any
other thread may call `close` and `facts_of`. It reads and decodes one block ahead of the dataset, no more, and ends
after the last block, at the first one that cannot be made, or when it is closed.
"""

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from millrace.consumers.errors import DataLossError
from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.formats.shared.protocol import Decoder
from millrace.pipelines.schema import Schema
from millrace.pipelines.stream.assemble import AssembleOptions, Assembler, Finish, Shape
from millrace.pipelines.stream.blocks import Block, BlockFacts, Turn
from millrace.pipelines.stream.decode import decode_chunk
from millrace.pipelines.stream.row_order import RotationOptions
from millrace.pipelines.stream.slices import SkipRange


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBlock:
    """A block that is to be made again."""

    name: str
    """What people call it, as in `block 3 of checkpoint 17`."""
    incarnation: int
    starts: Mapping[Partition, int]
    """Where each partition of the history stands before it."""
    ends: Mapping[Partition, int]
    """Where each partition stands after it."""
    rows: int
    turn: Turn | None
    """Where the strict rotation stands before it; None at the beginning of a history."""
    turn_after: Turn | None
    skips: Sequence[SkipRange] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedOptions:
    """How the blocks were made."""

    batch_size: int
    shuffle: int
    seed: int
    share: int
    """How many rows of a partition come before the rotation passes to the next."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """What each topic weighs; without, all partitions have the same share."""
    finish: Finish | None = None


class RecordSource(Protocol):
    """Where the records are."""

    def read(self, partition: Partition, start: int, end: int) -> Iterator[Chunk]:
        """Yield all records of [start, end), in order; each chunk begins where the last one ended.

        Raises DataLossError where they are not there. Each partition is read on from where it was read last.
        """
        ...

    def close(self) -> None:
        """Make a `read` that waits end soon, with any error."""
        ...


class RecordedFeed:
    """The blocks of a rebuild; can be iterated once."""

    def __init__(
        self,
        planned: Iterable[PlannedBlock],
        records: RecordSource,
        decoder: Decoder,
        schema: Schema,
        options: RecordedOptions,
        shape: Shape | None = None,
    ) -> None:
        self.error: Exception | None = None
        self._planned, self._records = planned, records
        self._decoder, self._schema, self._options, self._shape = decoder, schema, options, shape
        self._running = threading.Lock()
        self._closed = False
        self._facts: dict[int, BlockFacts] = {}
        self._spent: deque[object] = deque()

    def __iter__(self) -> Iterator[Block]:
        for number, planned in enumerate(self._planned):
            with self._running:  # `close` waits for this lock, so that nothing runs here once it has returned
                if self._closed:
                    return
                self._spent.clear()
                try:
                    block = self._made(number, planned)
                except Exception as error:
                    self.error = error
                    raise
                self._facts[number] = block.facts
            yield block

    def facts_of(self, number: int) -> BlockFacts:
        """Return the facts of a block that the trainer has got from the dataset; a second call raises KeyError."""
        return self._facts.pop(number)

    def drop_later(self, spent: object) -> None:
        """Drop the last reference to an object on the generator's thread."""
        self._spent.append(spent)

    def close(self) -> None:
        """Stop, and return when nothing of the feed runs any more: from then on the iterator may be dropped."""
        self._closed = True
        self._records.close()
        with self._running:
            self._facts.clear()

    def _made(self, number: int, planned: PlannedBlock) -> Block:
        options = self._options
        rotation = RotationOptions(
            share=options.share,
            weights=options.weights,
            start=planned.turn,
            positions=planned.starts,
            ends=planned.ends,
        )
        assembly = AssembleOptions(
            batch_size=options.batch_size,
            # With room to spare: the block ends where its records do, and not with its last row.
            batches_per_call=planned.rows // options.batch_size + 1,
            shuffle=options.shuffle,
            seed=options.seed,
            rotation=rotation,
            finish=options.finish,
        )
        table = list(planned.starts)
        assembler = Assembler(self._schema, assembly, table, planned.incarnation, planned.skips, shape=self._shape)
        for partition, end in planned.ends.items():
            if end > planned.starts[partition]:
                for chunk in self._records.read(partition, planned.starts[partition], end):
                    # What is read again is learnt by the incarnation of the plan, whichever read it.
                    decoded = decode_chunk(chunk, self._decoder)
                    assembler.add(replace(decoded, incarnation=planned.incarnation))
        block = assembler.take(0.0, flush=True)
        if block is None:
            raise DataLossError(f"{planned.name} covers no offset: the journal is not what was written")
        self._check(planned, block.facts)
        return Block(replace(block.facts, number=number), block.rows, block.nbytes)

    def _check(self, planned: PlannedBlock, made: BlockFacts) -> None:
        ends = {span.partition: span.end for span in made.spans}
        short = [p for p, end in planned.ends.items() if end > planned.starts[p] and ends.get(p) != end]
        if short or made.rows != planned.rows or made.turn != planned.turn_after:
            ranges = [
                f"{p}:{planned.starts[p]}-{end - 1}" for p, end in planned.ends.items() if end > planned.starts[p]
            ]
            raise DataLossError(
                f"{planned.name} had {planned.rows:,} rows, and {made.rows:,} are made of {', '.join(ranges[:4])} now: "
                "these are not the records that it was learnt from (compaction, a topic created again, another "
                "schema?)"
            )
