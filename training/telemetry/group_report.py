"""What the members of a group said last of themselves, frozen, for any thread to read. One process alone has none."""

from dataclasses import dataclass

CHIEF = 0
"""The number of the member that holds the folder and takes commands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReport:
    """What one member said of itself in the newest exchange."""

    partitions: int
    """How many it reads."""
    lag_records: int
    """Offsets of these that it has not learnt."""
    learnt: int
    """Records that it has learnt since the group met."""
    waited_s: float
    """Seconds that it has waited for the others since then: the one with the least is the slowest."""
    states: tuple[str, ...] = ()
    """Words such as `paused`, `held`, `ended` and `stopping`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport:
    """The group as one of its members sees it."""

    index: int
    """The number of this member."""
    addresses: tuple[str, ...]
    """Where each member meets the others, by its number."""
    members: tuple[MemberReport, ...] = ()
    """By their numbers; none before the first exchange."""
    missing: tuple[int, ...] = ()
    """The members that have not come to the chief, while this one waits for all."""

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
