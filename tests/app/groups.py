"""Groups of workers as one of them reports them, for tests of what people see."""

from millrace.training.telemetry.group_report import GroupReport, MemberReport

ADDRESSES = ("millrace-0.millrace:9911", "millrace-workers-0.millrace-workers:9911")


def group(index: int = 0, *members: MemberReport, missing: tuple[int, ...] = ()) -> GroupReport:
    """Return a group of two, seen by one of them."""
    return GroupReport(index=index, addresses=ADDRESSES, members=members, missing=missing)


def member(
    *, learnt: int = 0, waited_s: float = 0.0, lag_records: int = 0, partitions: int = 1, states: tuple[str, ...] = ()
) -> MemberReport:
    """Return what a worker says."""
    return MemberReport(partitions=partitions, lag_records=lag_records, learnt=learnt, waited_s=waited_s, states=states)
