"""What the trainer draws blocks from, and how it asks for one: the seam between training and whatever feeds it.

The service implements it with Kafka, hand-off, feed and dataset; the trainer knows none of them. One stream is one
incarnation: it begins at positions and ends for good.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from consumers.fingerprints import Fingerprint
from consumers.records import Partition
from pipelines.blocks import BlockFacts, Turn
from pipelines.preprocess_bypass import Suspect
from training.ledger.ledger import Skip
from training.model.compiled_call import Rows


class StreamEnded(Exception):  # noqa: N818 - the regular end of a stream, as StopIteration is
    """All that was to be learnt has been handed out."""


class TopicsRecreated(Exception):  # noqa: N818 - what the stream meets, and may be lived with
    """Other topics stand under the names of some that were learnt, and are to be learnt from their first records."""

    def __init__(self, beginnings: Mapping[Partition, int]) -> None:
        super().__init__(f"begin anew: {', '.join(map(str, beginnings))}")
        self.beginnings = beginnings
        """Where each of their partitions begins."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One block: its rows as tensors, and its facts."""

    rows: Rows
    facts: BlockFacts
    prepare: Callable[[Rows], Rows] | None = None
    """Makes of any of the rows what the model takes, where they are as the records have them; may raise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStart:
    """Where a stream is to begin."""

    incarnation: int
    positions: Mapping[Partition, int]
    skips: Sequence[Skip]
    fingerprints: Mapping[Partition, Fingerprint | None] = field(default_factory=dict)
    """By what partitions of which something is settled are known again; None where no record is on file."""
    turn: Turn | None
    """Where the strict rotation stood, in deterministic mode."""
    learnt: int
    """Offsets learnt by this process before, against a limit on records."""
    settled: int = 0
    """Records settled by this process before; what else was fetched for the streams before is read again."""
    suspects: Sequence[Suspect] = ()
    """What has made `preprocess` raise: blocks with any of it are delivered as the records have them."""


class BlockStream(Protocol):
    """Blocks of one incarnation."""

    def take(self) -> Delivery | None:
        """The next block; None soon where there is nothing just now.

        StreamEnded at the end; TopicsRecreated where it cannot go on without a new beginning; PreprocessError for a
        block that the user's `preprocess` has raised on.
        """
        ...

    def draw_ahead(self) -> None:
        """Begin to draw the next block meanwhile, as a call is about to take its time; `take` then gives it."""
        ...

    def aim(self, batches: int) -> None:
        """Make the blocks that are yet to be begun of so many batches at most; exact streams take no hints."""
        ...

    def close(self) -> None:
        """Stop what feeds it, then drop what was drawn ahead. Twice is once."""
        ...


class StreamSource(Protocol):
    """What opens streams, one an incarnation."""

    def newcomers(self, known: Collection[Partition]) -> Mapping[Partition, int]:
        """Return the partitions that are not among those known, each with the offset where it begins."""
        ...

    def open(self, order: StreamStart) -> BlockStream:
        """Begin to feed a stream from these positions."""
        ...
