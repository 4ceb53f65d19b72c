"""The crash-loop guard: a start that would probably die like those before it comes up paused, and says why.

A start makes no progress if it dies in the middle of a call (an abort, a segmentation fault, no memory) and the next
start resumes from the same checkpoint. `training.pause_after_crashes` of these in a row that had an offset in flight in
common point to a record; three times as many without a common offset point to something else. A death between two
calls, after a new checkpoint, or with an error does not count. Owns the record of this start; runs on the trainer's
thread.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import BlockFacts
from millrace.training.checkpoints.folder import Folder
from millrace.training.checkpoints.in_flight import Death, Range, StartRecord, deaths, forget
from millrace.training.checkpoints.lease import FolderLease

log = logging.getLogger(__name__)


InFlight = Callable[[BlockFacts], AbstractContextManager[None]]
"""Surrounds a call: if the process dies in it, the block's ranges stay on disk for the next start."""
_UNRELATED = 3
"""The factor on the number of deaths that it takes if they have no offset in common."""


def leave_no_record(_facts: BlockFacts) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashLoop:
    """Starts in a row that died in a call, none of which published a checkpoint."""

    starts: int
    number: int
    """The checkpoint that all of them resumed from."""
    suspects: Mapping[Partition, Range]
    """The offsets that were in flight each time; empty if there are none."""

    @property
    def ranges(self) -> list[str]:
        """The suspects as `topic:partition:first-last`, both ends included."""
        return [f"{partition}:{start}-{end - 1}" for partition, (start, end) in sorted(self.suspects.items())]

    def __str__(self) -> str:
        where = f"in flight each time: {', '.join(self.ranges)}" if self.suspects else "each at other offsets"
        return f"{self.starts} starts in a row died in a call, with no new checkpoint in between; {where}"


def crash_loop(starts: Sequence[Death], after: int) -> CrashLoop | None:
    """Return the crash loop that these deaths, latest first, amount to; None if there is none.

    Each death that shares offsets with all later ones narrows the suspects down to what they have in common.
    """
    if not starts:
        return None
    suspects, alike = starts[0].in_flight, 1
    for death in starts[1:]:
        later = death.in_flight
        both = {
            p: (max(suspects[p][0], later[p][0]), min(suspects[p][1], later[p][1]))
            for p in suspects.keys() & later.keys()
        }
        narrower = {partition: (start, end) for partition, (start, end) in both.items() if start < end}
        if not narrower:
            break
        suspects, alike = narrower, alike + 1
    if alike >= after:
        return CrashLoop(starts=alike, number=starts[0].number, suspects=suspects)
    if len(starts) >= _UNRELATED * after:
        return CrashLoop(starts=len(starts), number=starts[0].number, suspects={})
    return None


@dataclass(slots=True, kw_only=True)
class CrashGuard:
    """The guard of one start; without a record it neither pauses the start nor remembers its death."""

    loop: CrashLoop | None = None
    """Why this start has to be paused; None if it need not."""
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
    def of(cls, lease: FolderLease, number: int, after: int | None) -> "CrashGuard":
        """Judge the starts before one that resumes from this checkpoint; `after=None` switches the guard off."""
        if after is None:
            return cls()
        folder = lease.folder
        loop = crash_loop(deaths(folder, number, before_term=lease.term), after)
        try:
            record = StartRecord(folder.start(lease.term), number)
        except OSError as error:
            # The guard is an aid: a folder that takes no record must not stop the trainer.
            log.warning("the next start cannot see what this one had in flight: %s: %s", folder.starts, error.strerror)
            return cls(loop=loop, folder=folder)
        return cls(loop=loop, folder=folder, record=record)

    @property
    def in_flight(self) -> InFlight:
        """The context that surrounds each call."""
        return leave_no_record if self.record is None else self.record.in_flight

    def close(self, *, well: bool) -> None:
        """Close the record, as the process ends by itself; an end without an error also forgets the earlier deaths."""
        if self.record is not None:
            self.record.close()
        if well and self.folder is not None:
            forget(self.folder)
