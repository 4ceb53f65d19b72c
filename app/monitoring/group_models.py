"""What the answers show of a group of workers that learn one model. Owns shapes only."""

from collections.abc import Mapping

from millrace.app.monitoring.shapes import Shape, Tenths, Thousandths


class MemberView(Shape):
    """One worker of the group; what it has not said yet is left out."""

    name: str
    """`the chief`, or `worker 1` and so on."""
    address: str
    """Where it meets the others."""
    missing: bool | None = None
    """True while it is waited for: it has not come to the chief."""
    partitions: int | None = None
    """How many it reads."""
    lag_records: int | None = None
    """Offsets of these that it has not learnt."""
    learnt: int | None = None
    """Records since the group met."""
    records_per_s: Tenths | None = None
    """Records learnt per second over the last minute."""
    waited_s: Thousandths | None = None
    """Seconds since the group met in which it waited for the other workers."""
    waiting: Thousandths | None = None
    """The share of the last minute in which it waited for the other workers."""
    states: list[str] | None = None
    """paused, held, ended, stopping or reopening; left out where it is none of these."""


class GroupView(Shape):
    """The workers that learn one model together."""

    workers: int
    worker: int
    """The number of the one that gives this answer."""
    chief: str
    """Where the chief meets the others; its HTTP side, on the same host, takes the commands."""
    lag_records: int | None = None
    """Of all workers together."""
    records_per_s: Tenths | None = None
    """Of all workers together, over the last minute."""
    slowest: int | None = None
    """The number of the worker that the others wait for: the one that itself waited least in the last minute."""
    members: Mapping[str, MemberView]
    """By their numbers."""
