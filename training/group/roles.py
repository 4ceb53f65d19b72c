"""What the trainer of one member works with, by role."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from millrace.consumers.dead_letters.letter import DeadLetters
from millrace.consumers.records import Partition
from millrace.training.commands import Commands
from millrace.training.group.one_state import GroupState
from millrace.training.recovery.crash_guard import InFlight
from millrace.training.recovery.step_errors import BlockRaised
from millrace.training.stream import BlockStream, Hold, NoHold, StreamSource, StreamStart
from millrace.training.trainer.save_figures import SaveFigures
from millrace.training.trainer.saving import Saving


class PolledStream(BlockStream, Protocol):
    """A stream that can say whether `take` would return at once."""

    @property
    def ready(self) -> bool:
        """Whether an element is drawn."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Wait until it is drawn, for so long at most; returns at once where nothing is being drawn."""
        ...

    @property
    def expects(self) -> bool:
        """Whether records are on their way."""
        ...


class PolledSource(StreamSource, Protocol):
    """What opens such streams, and knows how far behind it is."""

    def open(self, start: StreamStart, /) -> PolledStream:
        """Begin to feed a stream from these positions."""
        ...

    def unlearnt(self, positions: Mapping[Partition, int]) -> int:
        """Return how many offsets the partitions that are read here hold after these positions, as far as known."""
        ...

    def backlog(self, positions: Mapping[Partition, int]) -> Mapping[Partition, int]:
        """Return how many records each partition holds after these positions."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupParts:
    """What the trainer of a member works with."""

    state: GroupState
    figures: SaveFigures
    saving: Saving | None
    """The chief's; the others write nothing."""
    streams: PolledSource
    commands: Commands
    letters: DeadLetters
    in_flight: InFlight
    release_guard: Callable[[], None]
    hold: Hold = field(default_factory=NoHold)
    """What may hold this member's learning without a command."""
    suspects: Sequence[BlockRaised] = ()
    """Blocks on which a step raised before, at any member: they are searched before they come into a call of all."""
