"""Which member of a group this process is, how long it waits for the others, and the report of what all said. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace.training.group.agreement import Flag, Word
from millrace.training.telemetry.group_report import CHIEF, GroupReport, MemberReport, member_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The place of this process in its group."""

    index: int
    addresses: Sequence[str]
    """Where each member listens for the others, by its number."""
    timeout_s: float
    """How long the others may take in one exchange or step before they count as lost."""

    @property
    def workers(self) -> int:
        return len(self.addresses)

    @property
    def is_chief(self) -> bool:
        return self.index == CHIEF

    @property
    def name(self) -> str:
        """What messages call this member."""
        return member_name(self.index)


_STATES: Mapping[Flag, str] = {
    Flag.ENDED: "ended",
    Flag.STOP: "stopping",
    Flag.HELD: "held",
    Flag.PAUSED: "paused",
    Flag.REOPEN: "reopening",
}


def report_of(membership: Membership, words: Sequence[Word] = (), missing: Sequence[int] = ()) -> GroupReport:
    """Return the group by what its members said last."""
    return GroupReport(
        index=membership.index,
        addresses=tuple(membership.addresses),
        members=tuple(map(_member, words)),
        missing=tuple(missing),
    )


def _member(word: Word) -> MemberReport:
    return MemberReport(
        partitions=word.partitions,
        lag_records=word.lag,
        learnt=word.learnt,
        waited_s=word.idled_ms / 1000,
        states=tuple(name for flag, name in _STATES.items() if flag in word.flags),
    )
