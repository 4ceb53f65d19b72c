"""Resolves the settings `start` and `until` to offsets, by asking Kafka once.

Owns nothing; runs on the consumer's loop; sets no timeout, as each request to Kafka has its own.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from millrace.consumers.errors import ConfigError
from millrace.consumers.kafka.positions import Ago, At, Committed, Earliest, Latest, Now, Offsets, Start, Until
from millrace.consumers.records import Partition


class PartitionOffsets(Protocol):
    """Looks up offsets in the partitions of the topics."""

    def partitions(self) -> tuple[Partition, ...]:
        """Return all partitions of the topics."""

    async def beginnings(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the first offset of each partition."""

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return one past the last offset of each partition."""

    async def at_time(self, partitions: Iterable[Partition], timestamp_ms: int) -> dict[Partition, int | None]:
        """Return the first offset of each partition at or after a time, None where there is none."""


class CommittedPositions(Protocol):
    """Looks up the group's committed offsets."""

    async def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int | None]:
        """Return the committed offset of each partition, None where there is none."""


async def resolve_start(
    start: Start, log: PartitionOffsets, commits: CommittedPositions, *, now_s: float
) -> dict[Partition, int]:
    """Return the offset to start from, for every partition. Raises ConfigError when `start` does not fit the topics."""
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
    """Return the offset to stop before, for every partition. Raises ConfigError when `until` names others."""
    match until:
        case Now():
            return await log.ends(log.partitions())
        case At(timestamp_ms):
            return await _at_time(log, timestamp_ms)
        case Offsets(offsets):
            return _complete(offsets, log.partitions(), "until")


async def _at_time(log: PartitionOffsets, timestamp_ms: int) -> dict[Partition, int]:
    # No record is as late as the time in a partition that Kafka reports without an offset: the next one will be.
    ends = await log.ends(log.partitions())
    offsets = await log.at_time(ends, timestamp_ms)
    return {partition: end if (offset := offsets[partition]) is None else offset for partition, end in ends.items()}


async def _committed(log: PartitionOffsets, commits: CommittedPositions) -> dict[Partition, int]:
    committed = await commits.committed(log.partitions())
    if all(offset is None for offset in committed.values()):
        raise ConfigError("the group has committed nothing for these topics: set kafka.start to earliest or latest")
    # A group that has commits has never read a partition without one, so that partition starts at its first offset.
    beginnings = await log.beginnings(committed)
    return {partition: beginnings[partition] if offset is None else offset for partition, offset in committed.items()}


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
