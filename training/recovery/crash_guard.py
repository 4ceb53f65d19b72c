"""The crash-loop brake: a start that would die like those before it comes up paused, and says of what.

A start that was killed in the middle of a call (an abort, a segmentation fault, the lack of memory) and after which the
next one goes on from the very same checkpoint has got nowhere. So many of these in a row, all with some offset in
flight, and a record is at fault; three times as many, and something is, though no offset was in flight each time. What
died between two calls, or ended with an error, counts for nothing, and neither does whoever was killed after a
checkpoint. Owns this start's record; runs on the trainer's thread.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from consumers.records import Partition
from pipelines.blocks import BlockFacts
from training.checkpoints.folder import Folder
from training.checkpoints.in_flight import Death, Range, StartRecord, deaths, forget
from training.checkpoints.lease import FolderLease

log = logging.getLogger(__name__)
InFlight = Callable[[BlockFacts], AbstractContextManager[None]]
"""Goes around a call, so that the death of the process in it leaves the block's ranges behind."""
_UNRELATED = 3
"""How many times as many deaths it takes where they have no offset in common."""


def leave_no_record(_facts: BlockFacts) -> AbstractContextManager[None]:
    """Nothing is left behind."""
    return nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashLoop:
    """Starts in a row that died in a call, and none of which got any further than the one before."""

    starts: int
    number: int
    """The checkpoint that all of them went on from."""
    suspects: Mapping[Partition, Range]
    """What was in flight each time; empty where no offset was."""

    @property
    def ranges(self) -> list[str]:
        """The suspects as people write them, both ends included."""
        return [f"{partition}:{start}-{end - 1}" for partition, (start, end) in sorted(self.suspects.items())]

    def __str__(self) -> str:
        where = f"in flight each time: {', '.join(self.ranges)}" if self.suspects else "each at other offsets"
        return f"{self.starts} starts in a row died in a call, with no new checkpoint in between; {where}"


def crash_loop(found: Sequence[Death], after: int) -> CrashLoop | None:
    """Judge deaths, the latest first: each that shares offsets with all later ones makes the suspects fewer."""
    if not found:
        return None
    suspects, alike = found[0].in_flight, 1
    for death in found[1:]:
        narrower = _common(suspects, death.in_flight)
        if not narrower:
            break
        suspects, alike = narrower, alike + 1
    if alike >= after:
        return CrashLoop(starts=alike, number=found[0].number, suspects=suspects)
    if len(found) >= _UNRELATED * after:
        return CrashLoop(starts=len(found), number=found[0].number, suspects={})
    return None


def _common(one: Mapping[Partition, Range], other: Mapping[Partition, Range]) -> dict[Partition, Range]:
    both = {p: (max(one[p][0], other[p][0]), min(one[p][1], other[p][1])) for p in one.keys() & other.keys()}
    return {partition: (start, end) for partition, (start, end) in both.items() if start < end}


@dataclass(slots=True, kw_only=True)
class CrashGuard:
    """The brake of one start; without a record it neither holds nor remembers anything."""

    loop: CrashLoop | None = None
    """Why this start has to be paused."""
    folder: Folder | None = None
    record: StartRecord | None = field(default=None, repr=False)
    holds: bool = field(init=False)
    """Whether the start is still paused for its crash loop, and no person has taken over."""

    def __post_init__(self) -> None:
        self.holds = self.loop is not None

    def release(self) -> None:
        """Stop holding, because a person has resumed the training or paused it for another reason."""
        self.holds = False

    @classmethod
    def of(cls, writer: FolderLease, number: int, after: int | None) -> "CrashGuard":
        """For a start that goes on from this checkpoint; None for `after` is no brake at all."""
        if after is None:
            return cls()
        folder = writer.folder
        loop = crash_loop(deaths(folder, number, before_term=writer.term), after)
        try:
            record = StartRecord(folder.start(writer.term), number)
        except OSError as error:
            log.warning("should this start die, nobody will know in what: %s: %s", folder.starts, error.strerror)
            return cls(loop=loop, folder=folder)
        return cls(loop=loop, folder=folder, record=record)

    @property
    def in_flight(self) -> InFlight:
        """What goes around a call."""
        return leave_no_record if self.record is None else self.record.in_flight

    def close(self, *, well: bool) -> None:
        """The process ends by itself. Where it ends well, as it was ordered to, the deaths before it are forgotten."""
        if self.record is not None:
            self.record.close()
        if well and self.folder is not None:
            forget(self.folder)
