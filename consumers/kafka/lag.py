"""Lag: how far behind the end of its partitions a reader is, in records and in seconds.

Owns the arithmetic only: pure functions over offsets that others have read; runs anywhere. Records bear the times that
their producers gave them. One that is beyond now by more than clocks differ says nothing: the seconds are not known.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from consumers.records import Partition

_CLOCKS_DIFFER_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """How far behind one partition's reader is."""

    position: int
    """The next offset to be read."""
    end: int | None
    """One past the last offset that may be read; None while Kafka has not said."""
    records: int
    """Offsets between the two; gaps count, as nobody knows of them before they are read."""
    seconds: float | None
    """Age of the newest record that was read, 0 when there is nothing more to read; None while not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far behind a reader of several partitions is."""

    records: int
    """The sum over the partitions."""
    seconds: float | None
    """Of the partition that is furthest behind; None while it is known of none."""
    partitions: Mapping[Partition, PartitionLag]
    """One by one."""
    as_of: float
    """Seconds since 1970, when this was read."""


def of_the_future(time_ms: int, *, now_ms: int) -> bool:
    """Whether no clock that is about right can have given this time."""
    return time_ms > now_ms + _CLOCKS_DIFFER_MS


def partition_lag(*, position: int, end: int | None, fresh_ms: int | None, now_ms: int) -> PartitionLag:
    """The lag of one partition. `fresh_ms` is up to when everything is known to be read.

    That is the time of the newest record that was read, or the moment when last there was nothing more to read,
    whichever is later: so one record after a silent night does not look like a night's lag.
    """
    records = 0 if end is None else max(0, end - position)
    seconds: float | None = None
    if end is not None and records == 0:
        seconds = 0.0
    elif fresh_ms is not None and not of_the_future(fresh_ms, now_ms=now_ms):
        seconds = max(0, now_ms - fresh_ms) / 1000
    return PartitionLag(position=position, end=end, records=records, seconds=seconds)


def total_lag(partitions: Mapping[Partition, PartitionLag], *, as_of: float) -> Lag:
    """The lag of all the partitions together."""
    known = [lag.seconds for lag in partitions.values() if lag.seconds is not None]
    return Lag(
        records=sum(lag.records for lag in partitions.values()),
        seconds=max(known, default=None),
        partitions=partitions,
        as_of=as_of,
    )


def lag_of(
    positions: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    fresh_ms: Mapping[Partition, int],
    *,
    now_s: float,
) -> Lag:
    """The lag of a reader that stands at `positions`: the source's own, or what the ledger has settled."""
    partitions = {
        partition: partition_lag(
            position=position, end=ends.get(partition), fresh_ms=fresh_ms.get(partition), now_ms=round(now_s * 1000)
        )
        for partition, position in positions.items()
    }
    return total_lag(partitions, as_of=now_s)
