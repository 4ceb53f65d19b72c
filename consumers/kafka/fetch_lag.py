"""The lag of fetching: how far the source is behind the end of its partitions, in records and in seconds.

What is published is the lag of learning, `app.monitoring.lag`.

Owns the arithmetic only: pure functions over offsets that others have read; runs anywhere. A record has the time that
its producer gave it. When that time is further in the future than clocks differ, the lag in seconds is not known.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from millrace.consumers.records import Partition

_CLOCKS_DIFFER_MS = 60_000
"""How far the clock of a producer may be ahead of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """How far behind one partition's reader is."""

    position: int
    """The next offset to read."""
    end: int | None
    """One past the last offset, the high watermark; None until Kafka has answered."""
    readable_end: int | None
    """One past the last offset that may be read. With read_committed the first open transaction begins there."""
    records: int
    """Offsets that may be read and are not. Gaps count, because they are not known before they are read."""
    seconds: float | None
    """Age of the newest record that was read, 0 when there is nothing more to read; None when not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far behind a reader of several partitions is."""

    records: int
    """The sum over the partitions."""
    seconds: float | None
    """The seconds of the partition that is furthest behind; None when known for no partition."""
    partitions: Mapping[Partition, PartitionLag]
    """The lag of each partition."""
    as_of: float
    """When this was read, in seconds since 1970."""


def is_in_future(time_ms: int, *, now_ms: int) -> bool:
    """Return whether the time is further ahead than clocks differ."""
    return time_ms > now_ms + _CLOCKS_DIFFER_MS


def partition_lag(
    *, position: int, end: int | None, fresh_ms: int | None, now_ms: int, readable_end: int | None = None
) -> PartitionLag:
    """Return the lag of one partition; without `readable_end` everything up to its end may be read.

    `fresh_ms` is the time up to which every record is known to be read. That is the later of the newest record's time
    and the moment when there was last nothing more to read. Thus the first record after a silent night does not appear
    as a lag of a whole night.
    """
    readable = end if readable_end is None else readable_end
    records = 0 if readable is None else max(0, readable - position)
    seconds: float | None = None
    if end is not None and records == 0:
        seconds = 0.0
    elif fresh_ms is not None and not is_in_future(fresh_ms, now_ms=now_ms):
        seconds = max(0, now_ms - fresh_ms) / 1000
    return PartitionLag(position=position, end=end, readable_end=readable, records=records, seconds=seconds)


def total_lag(partitions: Mapping[Partition, PartitionLag], *, as_of: float) -> Lag:
    """Return the lag of all partitions together."""
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
    readable_ends: Mapping[Partition, int] | None = None,
) -> Lag:
    """Return the lag of a reader whose next offsets are `positions`: those of the source, or those of the ledger."""
    partitions = {
        partition: partition_lag(
            position=position,
            end=ends.get(partition),
            fresh_ms=fresh_ms.get(partition),
            now_ms=round(now_s * 1000),
            readable_end=None if readable_ends is None else readable_ends.get(partition),
        )
        for partition, position in positions.items()
    }
    return total_lag(partitions, as_of=now_s)
