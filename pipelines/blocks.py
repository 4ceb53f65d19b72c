"""Blocks: what one call takes, and the facts about it that the ledger settles.

Owns the shared types between assemble, dataset and training; runs anywhere; TensorFlow is not imported here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from consumers.fingerprints import Fingerprint
from consumers.records import Int64s, Partition
from pipelines.offset_counts import OffsetCounts
from pipelines.schema import Column


@dataclass(frozen=True, slots=True, kw_only=True)
class Span(OffsetCounts):
    """The one contiguous range of offsets of a partition that a block covers; `learnt` counts the block's rows."""

    partition: Partition
    index: int
    """The partition's place in the incarnation's table: what the block's `partitions` column holds."""
    start: int
    end: int
    fingerprint: Fingerprint | None = None
    """Of the last chunk that ends in it; None where none does."""

    @property
    def balanced(self) -> bool:
        """Whether every offset of the span is accounted for exactly once."""
        return self.offsets == self.end - self.start


class Turn(NamedTuple):
    """Where a strict rotation stands: whose rows come next, and how many of its share have been taken."""

    partition: Partition
    taken: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFacts:
    """What the ledger, the journal and the metrics know of a block: a few bytes, never its rows."""

    number: int
    """Counts from 0 in its incarnation; the tensor that travels with the rows carries it."""
    incarnation: int
    spans: tuple[Span, ...]
    batches: int
    """k: how many batches of B rows the call runs. 0 for a block of set-aside records alone."""
    rows: int
    seed: int
    """Of the shuffle; derived from the first offsets, so a replay shuffles alike."""
    fetched_at: float
    """Monotonic clock: when its oldest chunk was fetched."""
    oldest_ms: int
    newest_ms: int
    """Event times of its rows, milliseconds since 1970; 0 where it has no rows."""
    turn: Turn | None = None
    """Where the rotation stands after it, in deterministic mode; a checkpoint keeps it and a restart hands it back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRows:
    """The rows of a block, shaped [k, B, ...]. Absent rows are copies of present ones with offset -1 and weight 0."""

    features: Mapping[str, Column]
    labels: Mapping[str, Column]
    weights: npt.NDArray[np.float32]
    offsets: Int64s
    partitions: npt.NDArray[np.int32]
    event_times: Int64s


@dataclass(frozen=True, slots=True)
class Block:
    """One element of the dataset, one compiled call, one entry in the ledger."""

    facts: BlockFacts
    rows: BlockRows
    nbytes: int = 0
    """What it holds in memory, roughly."""
