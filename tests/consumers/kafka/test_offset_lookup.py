"""What `start` and `until` mean, looked up in a log that does not change."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast

import pytest

from millrace.consumers.errors import ConfigError
from millrace.consumers.kafka.client import GroupCommits, KafkaClient
from millrace.consumers.kafka.positions import Ago, At, Committed, Earliest, Latest, Now, Offsets, Start
from millrace.consumers.kafka.source import resolve_start, resolve_until
from millrace.consumers.records import Partition

A, B = Partition("t", 0), Partition("t", 1)


@dataclass
class StillLog:
    """Record n of each partition has the time n seconds."""

    first: dict[Partition, int] = field(default_factory=lambda: {A: 2, B: 0})
    end: dict[Partition, int] = field(default_factory=lambda: {A: 10, B: 5})

    def partitions(self) -> tuple[Partition, ...]:
        return tuple(self.end)

    async def beginnings(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return {partition: self.first[partition] for partition in partitions}

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return {partition: self.end[partition] for partition in partitions}

    async def at_time(self, partitions: Iterable[Partition], timestamp_ms: int) -> dict[Partition, int | None]:
        offset = timestamp_ms // 1000
        return {p: max(offset, self.first[p]) if offset < self.end[p] else None for p in partitions}


LOG = cast("KafkaClient", StillLog())


@dataclass
class StillCommits:
    offsets: dict[Partition, int | None]

    async def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int | None]:
        return {partition: self.offsets.get(partition) for partition in partitions}


def start_at(start: Start, committed: dict[Partition, int | None] | None = None) -> dict[Partition, int]:
    commits = cast("GroupCommits", StillCommits(committed or {}))
    return asyncio.run(resolve_start(start, LOG, commits, now_s=10.0))


@pytest.mark.parametrize(
    ("start", "offsets"),
    [
        (Earliest(), {A: 2, B: 0}),
        (Latest(), {A: 10, B: 5}),
        (At(7000), {A: 7, B: 5}),
        (At(0), {A: 2, B: 0}),
        (Ago(6.0), {A: 4, B: 4}),
        (Ago(1e9), {A: 2, B: 0}),
        (Offsets({A: 10, B: 0}), {A: 10, B: 0}),
    ],
)
def test_a_start_resolves_to_an_offset_of_every_partition(start: Start, offsets: dict[Partition, int]) -> None:
    assert start_at(start) == offsets


def test_a_partition_without_a_commit_starts_at_its_first_offset() -> None:
    assert start_at(Committed(), {B: 3}) == {A: 2, B: 3}
    assert start_at(Committed(), {A: 0, B: 3}) == {A: 0, B: 3}


def test_a_group_without_any_commit_is_refused_as_a_start() -> None:
    with pytest.raises(ConfigError, match=r"set kafka\.start to earliest or latest"):
        start_at(Committed())


@pytest.mark.parametrize(
    ("offsets", "error"),
    [
        ({A: 3}, "start names no offset for t:1"),
        ({A: 3, B: 3, Partition("t", 9): 3}, "start names t:9, which is not there: there are t:0, t:1"),
        ({A: 11, B: 3}, "start names offset 11 of t:0, which ends at 10"),
    ],
)
def test_impossible_offsets_are_refused_with_what_exists(offsets: dict[Partition, int], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        start_at(Offsets(offsets))


def test_until_means_the_ends_a_time_or_offsets_that_may_lie_ahead() -> None:
    assert asyncio.run(resolve_until(Now(), LOG)) == {A: 10, B: 5}
    assert asyncio.run(resolve_until(At(6000), LOG)) == {A: 6, B: 5}
    assert asyncio.run(resolve_until(Offsets({A: 99, B: 1}), LOG)) == {A: 99, B: 1}
