"""The words of the members as a report that other threads, and people, can read. Pure."""

from collections.abc import Mapping, Sequence

from millrace.training.group.agreement import Flag, Word
from millrace.training.group.membership import Membership
from millrace.training.telemetry.group_report import GroupReport, MemberReport

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
