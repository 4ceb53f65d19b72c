"""Blocks: the rows that one call takes, and the facts by which the ledger settles them.

Owns the types that assembler, dataset and trainer share. Used on any thread; TensorFlow is not imported here.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from millrace.consumers.fingerprints import Fingerprint
from millrace.consumers.records import Partition
from millrace.pipelines.stream.offset_counts import OffsetCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Span(OffsetCounts):
    """The one contiguous range of offsets of a partition that a block covers; `learnt` counts the block's rows."""

    partition: Partition
    index: int
    """The partition's place in the incarnation's table: what the block's `partitions` column holds."""
    start: int
    end: int
    fingerprint: Fingerprint | None = None
    """The fingerprint of the last chunk that ends in the span; None where none ends in it."""

    @property
    def balanced(self) -> bool:
        """Whether every offset of the span is accounted for exactly once."""
        return self.offsets == self.end - self.start


class Turn(NamedTuple):
    """Where a strict rotation stands: the partition whose rows come next, and how many of its share are taken."""

    partition: Partition
    taken: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFacts:
    """All that the ledger and the metrics need to know of a block: a few bytes, never its rows."""

    number: int
    """Counts from 0 in its incarnation. It travels with the rows, so that the facts can be found again."""
    incarnation: int
    spans: tuple[Span, ...]
    batches: int
    """k: how many batches of B rows the call runs. 0 for a block of set-aside records alone."""
    rows: int
    seed: int
    """The seed of the shuffle; derived from the first offsets, so that a replay shuffles in the same way."""
    fetched_at: float
    """When its oldest chunk was fetched, on the monotonic clock."""
    oldest_ms: int
    newest_ms: int
    """Event times of its rows, milliseconds since 1970; 0 where it has no rows."""
    turn: Turn | None = None
    """Where the rotation stands after it, in deterministic mode; checkpoints keep it for a restart."""
    appeared: tuple[tuple[str, bytes], ...] = ()
    """The classes that are new with it: the label and the text of each, in the sequence of their numbers."""
    unplaced: tuple[tuple[Partition, int], ...] = ()
    """The offsets of records whose class got no number. They count as rows and are not among them; settled, they are
    set aside."""
    decoding: tuple[float, float] = field(default=(0.0, 0.0), compare=False)
    """When the decoding of its oldest chunk began and ended, on the clock of `fetched_at`."""
    assembled_at: float = field(default=0.0, compare=False)
    """When it was complete, on the same clock."""


class Rows(NamedTuple):
    """The rows of a block, every column [k, B, ...]: NumPy arrays as assembled, tensors from the dataset on.

    A named tuple, because TensorFlow takes it apart and puts it together again by itself: the trainer's call gets the
    very columns that the dataset gave. Absent rows are copies of present ones with offset -1 and weight 0.
    """

    features: Mapping[str, Any]
    labels: Any
    """By name as assembled; from the dataset on a column, or a mapping of several; empty where there is none."""
    weights: Any
    """float32; 0 where the row is absent."""
    offsets: Any
    """int64; -1 where the row is absent."""
    partitions: Any
    """int32, places in the incarnation's table; -1 where the row is absent."""


@dataclass(frozen=True, slots=True)
class Block:
    """One element of the dataset, one compiled call, one entry in the ledger."""

    facts: BlockFacts
    rows: Rows
    nbytes: int = 0
    """Its approximate memory."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One block as the trainer gets it: its rows as tensors, and its facts."""

    rows: Rows
    facts: BlockFacts
    prepare: Callable[[Rows], Rows] | None = None
    """Applies `preprocess` to any of the rows, and may raise; None where the rows have been through it."""


@dataclass(slots=True)
class CallTarget:
    """The size of the blocks to come: the trainer sets it, the assembler reads it when it begins a block.

    One attribute, so that the two threads need no lock.
    """

    batches: int
    """At most this many batches a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """Offsets [start, end) of a partition, one of which has made `preprocess` raise."""

    partition: Partition
    start: int
    end: int

    def touches(self, spans: Iterable[Span]) -> bool:
        """Return whether any of the spans has rows that may be among these offsets."""
        return any(
            span.learnt and span.partition == self.partition and span.start < self.end and self.start < span.end
            for span in spans
        )


class Bypass:
    """Keeps the blocks that do not go through `preprocess`, because some of their rows have made it raise.

    Owns such blocks between the feed's thread, which puts them in, and the trainer's thread, which takes them out. An
    element without rows goes through the dataset in the place of each, so that the order of blocks stays. The bypass
    holds no more blocks than the dataset prefetches; blocks that are never taken end with it.
    """

    def __init__(self, suspects: Sequence[Suspect] = ()) -> None:
        self._suspects = tuple(suspects)
        # Without a lock: a block is put in before its number travels to the thread that takes it out.
        self._blocks: dict[int, Block] = {}

    def takes(self, block: Block) -> bool:
        """Keep the block if it is suspect, and return whether it is."""
        suspect = any(suspect.touches(block.facts.spans) for suspect in self._suspects)
        if suspect:
            self._blocks[block.facts.number] = block
        return suspect

    def take(self, number: int) -> Block | None:
        """Return the block of that number and forget it, or None if it was not kept."""
        return self._blocks.pop(number, None)
