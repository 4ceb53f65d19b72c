"""The stream of blocks that the trainer learns: the boundary between training and what feeds it.

The service implements it with Kafka, hand-off, feed and dataset; the trainer knows none of these. One stream serves one
incarnation: it begins at given positions, and once closed it is never opened again.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from millrace.consumers.fingerprints import Fingerprint
from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import CallTarget, Delivery, Suspect, Turn
from millrace.training.ledger.ledger import Skip


class StreamEnded(Exception):  # noqa: N818 - the regular end of a stream, as StopIteration is
    """The stream has handed out everything up to its limit."""


class TopicsRecreated(Exception):  # noqa: N818 - not an error for the trainer, which restarts the partitions
    """Topics that were learnt were deleted and created again; their partitions restart from the first record."""

    def __init__(self, beginnings: Mapping[Partition, int]) -> None:
        super().__init__(f"created again: {', '.join(map(str, beginnings))}")
        self.beginnings = beginnings
        """The first offset of each of their partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStart:
    """Where and how a stream begins."""

    incarnation: int
    positions: Mapping[Partition, int]
    skips: Sequence[Skip]
    fingerprints: Mapping[Partition, Fingerprint | None] = field(default_factory=dict)
    """The fingerprint of each settled partition, or None where none was recorded."""
    turn: Turn | None
    """The turn of the strict rotation, in deterministic mode; else None."""
    learnt: int
    """Records learnt by this process before; they count against a limit on records."""
    settled: int = 0
    """Records settled by this process before; whatever else was fetched for earlier streams is read again."""
    target: CallTarget
    """The size of the blocks to come, which the trainer changes with the duration of calls; exact streams ignore it."""
    suspects: Sequence[Suspect] = ()
    """The offsets on which `preprocess` raised: blocks with any of them are delivered without it."""


class BlockStream(Protocol):
    """Blocks of one incarnation."""

    def take(self) -> Delivery | None:
        """Return the next block, or None after a tick without one.

        Raises StreamEnded at the end, TopicsRecreated if partitions have to restart, and PreprocessError for a block on
        which the user's `preprocess` raised.
        """
        ...

    def draw_ahead(self) -> None:
        """Begin to draw the next block while a call runs; `take` then returns it."""
        ...

    def close(self) -> None:
        """Stop what feeds the stream, then drop what was drawn ahead; a second call does nothing."""
        ...


class StreamSource(Protocol):
    """What opens streams, one an incarnation."""

    def newcomers(self, known: Collection[Partition]) -> Mapping[Partition, int]:
        """Return the partitions that are not among those known, each with the offset where it begins."""
        ...

    def open(self, start: StreamStart, /) -> BlockStream:
        """Begin to feed a stream from these positions."""
        ...


class Hold(Protocol):
    """What may hold the learning without a command; the trainer asks before each block, and knows no reason itself."""

    @property
    def reason(self) -> str | None:
        """Why it has to wait; None where it need not. Never waits itself."""
        ...

    def let_pass(self, *, assume_absent: bool = False) -> None:
        """Let what is held pass, because a person has asked for it; never waits.

        `assume_absent`: labels that have not come will not come.
        """
        ...


class NoHold:
    """Holds nothing."""

    reason: str | None = None

    def let_pass(self, *, assume_absent: bool = False) -> None:
        """Do nothing."""
