"""What the members of a group said last of themselves, frozen, for any thread to read. One process alone has none."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from millrace.consumers.metric import PartFigures, counter, gauge

CHIEF = 0
"""The number of the member that holds the folder and takes commands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReport(PartFigures):
    """What one member said of itself in the newest exchange."""

    section: ClassVar = "The group"
    per: ClassVar = "worker"

    partitions: int
    """How many it reads."""
    lag_records: Annotated[int, gauge("group_worker_lag_records", "Bad: one is far above the others.")]
    """Offsets that a worker of the group has not learnt, from the chief alone, as are the next two."""
    learnt: Annotated[int, counter("group_worker_learnt", "Bad: one stands still while it has lag.")]
    """Records that a worker has learnt since the group met."""
    waited_s: Annotated[
        float,
        counter("group_worker_waited_seconds", "Bad: it grows much for all workers but one, which is the slow one."),
    ]
    """The time that a worker has waited for the others since the group met."""
    states: tuple[str, ...] = ()
    """Words such as `paused`, `held`, `ended` and `stopping`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport(PartFigures):
    """The group as one of its members sees it."""

    section: ClassVar = "The group"

    index: int
    """The number of this member."""
    addresses: tuple[str, ...]
    """Where each member meets the others, by its number."""
    members: tuple[MemberReport, ...] = ()
    """By their numbers; none before the first exchange."""
    missing: tuple[int, ...] = ()
    """The members that have not come to the chief, while this one waits for all."""

    @property
    def workers(self) -> Annotated[int, gauge("group_workers", "Bad: not as deployed.")]:
        """Workers of the group that learn this model. Absent without a group."""
        return len(self.addresses)

    @property
    def is_chief(self) -> bool:
        """Whether this member is the chief."""
        return self.index == CHIEF

    @property
    def chief(self) -> str:
        """Where the chief meets the others."""
        return self.addresses[CHIEF]

    @property
    def chief_host(self) -> str:
        """The host of the chief."""
        return self.chief.rpartition(":")[0]


def member_name(index: int) -> str:
    """Return what people call a member."""
    return "the chief" if index == CHIEF else f"worker {index}"
