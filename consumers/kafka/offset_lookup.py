"""What start and until come to in the topics: offsets, asked of Kafka once.

Owns nothing; runs on the consumer's loop; not bounded by itself, each question is.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from consumers.errors import ConfigError
from consumers.kafka.positions import Ago, At, Committed, Earliest, Latest, Now, Offsets, Start, Until
from consumers.records import Partition


class PartitionOffsets(Protocol):
    """Who can be asked about the partitions of the topics."""

    def partitions(self) -> tuple[Partition, ...]:
        """All of them."""

    async def beginnings(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The first offset of each."""

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """One past the last offset of each."""

    async def at_time(self, partitions: Iterable[Partition], timestamp_ms: int) -> dict[Partition, int | None]:
        """The first offset of each at or after a time."""


class CommittedPositions(Protocol):
    """Who can be asked about the group's commits."""

    async def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int | None]:
        """What stands committed."""


async def resolve_start(
    start: Start, log: PartitionOffsets, commits: CommittedPositions, *, now_s: float
) -> dict[Partition, int]:
    """The offset of every partition to start from."""
    partitions = log.partitions()
    match start:
        case Earliest():
            return await log.beginnings(partitions)
        case Latest():
            return await log.ends(partitions)
        case Ago(seconds):
            return await _at_time(log, max(0, round((now_s - seconds) * 1000)))
        case At(timestamp_ms):
            return await _at_time(log, timestamp_ms)
        case Committed():
            return await _committed(log, commits)
        case Offsets(offsets):
            chosen = _complete(offsets, partitions, "start")
            _check_not_past(chosen, await log.ends(partitions))
            return chosen


async def resolve_until(until: Until, log: PartitionOffsets) -> dict[Partition, int]:
    """The offset of every partition to stop at, itself no longer read."""
    match until:
        case Now():
            return await log.ends(log.partitions())
        case At(timestamp_ms):
            return await _at_time(log, timestamp_ms)
        case Offsets(offsets):
            return _complete(offsets, log.partitions(), "until")


async def _at_time(log: PartitionOffsets, timestamp_ms: int) -> dict[Partition, int]:
    ends = await log.ends(log.partitions())
    found = await log.at_time(ends, timestamp_ms)
    return {partition: _or(found[partition], end) for partition, end in ends.items()}


async def _committed(log: PartitionOffsets, commits: CommittedPositions) -> dict[Partition, int]:
    """Where a group has commits, a partition without one was never read: it starts at its first offset."""
    found = await commits.committed(log.partitions())
    if all(offset is None for offset in found.values()):
        raise ConfigError("the group has committed nothing for these topics: set kafka.start to earliest or latest")
    beginnings = await log.beginnings(found)
    return {partition: _or(offset, beginnings[partition]) for partition, offset in found.items()}


def _or(offset: int | None, otherwise: int) -> int:
    return otherwise if offset is None else offset


def _complete(offsets: Mapping[Partition, int], partitions: Iterable[Partition], setting: str) -> dict[Partition, int]:
    known = set(partitions)
    if unknown := sorted(set(offsets) - known):
        raise ConfigError(f"{setting} names {unknown[0]}, which is not there: there are {_listed(known)}")
    if unnamed := sorted(known - set(offsets)):
        raise ConfigError(f"{setting} names no offset for {_listed(unnamed)}: name every partition")
    return dict(offsets)


def _check_not_past(chosen: Mapping[Partition, int], ends: Mapping[Partition, int]) -> None:
    for partition, offset in chosen.items():
        if offset > ends[partition]:
            raise ConfigError(f"start names offset {offset} of {partition}, which ends at {ends[partition]}")


def _listed(partitions: Iterable[Partition]) -> str:
    return ", ".join(map(str, sorted(partitions)))
