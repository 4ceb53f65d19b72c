"""Blocks: what one call takes, and the facts about it that the ledger settles.

Owns the shared types between assemble, dataset and training; runs anywhere; TensorFlow is not imported here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from consumers.fingerprints import Fingerprint
from consumers.reasons import Reason
from consumers.records import Int64s, Partition
from pipelines.schema import Column


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The one contiguous range of offsets of a partition that a block covers. All of its counts add up to it."""

    partition: Partition
    index: int
    """The partition's place in the incarnation's table: what the block's `partitions` column holds."""
    start: int
    end: int
    learnt: int
    """Rows of the block."""
    set_aside: Mapping[Reason, int] = field(default_factory=dict)
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Offsets cut out of history, by the order that said so."""
    gaps: int = 0
    """Offsets at which Kafka holds no record: compacted, aborted, control records."""
    lost: int = 0
    """Offsets that retention removed before they were read."""
    fingerprint: Fingerprint | None = None
    """Of the last chunk that ends in it; None where none does."""
    truncated: Mapping[str, int] = field(default_factory=dict)
    """Of its rows, those of which a list was cut to its bound, by feature. They are learnt all the same."""

    def balanced(self) -> bool:
        """Whether every offset of the span is accounted for exactly once."""
        parts = self.learnt + sum(self.set_aside.values()) + sum(self.skipped.values()) + self.gaps + self.lost
        return parts == self.end - self.start


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
