"""Commits that Kafka refuses: the newest is retried, older ones are dropped, and few lines are logged."""

import asyncio
import logging
from collections.abc import Callable
from typing import cast

import pytest

from millrace.consumers.kafka.client import GroupCommits
from millrace.consumers.kafka.commits import Committing, Positions
from millrace.consumers.kafka.statistics import SourceMeter
from millrace.consumers.records import Partition

PARTITION = Partition("clicks", 0)
LINES = 10


class Kafka:
    """Accepts or refuses commits, and counts them as the source's meter does."""

    def __init__(self, *, refuses: bool) -> None:
        self.refuses = refuses
        self.taken: list[int] = []
        self.refusals = 0
        self.open = asyncio.Event()
        self.open.set()

    async def commit(self, positions: Positions) -> str | None:
        await self.open.wait()
        if self.refuses:
            return "CommitFailedError"
        self.taken.append(positions[PARTITION])
        return None

    def committed(self, refusal: str | None) -> None:
        self.refusals += refusal is not None


def _committing(kafka: Kafka) -> Committing:
    client, meter = cast("GroupCommits", kafka), cast("SourceMeter", kafka)
    return Committing(client, meter, "g", lines_per_minute=LINES, again_s=0.01)


async def _until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - a condition of any kind has no event to wait for
            await asyncio.sleep(0.001)


def test_a_refused_commit_is_retried_until_kafka_accepts_it_and_no_longer() -> None:
    async def work() -> None:
        kafka = Kafka(refuses=True)
        committing = _committing(kafka)
        trying = asyncio.create_task(committing.keep_trying())
        assert not await committing.commit({PARTITION: 7})
        await _until(lambda: kafka.refusals >= 3)
        kafka.refuses = False
        await _until(lambda: kafka.taken)
        await asyncio.sleep(0.1)
        trying.cancel()
        assert kafka.taken == [7]

    asyncio.run(work())


def test_while_a_commit_is_stuck_the_newest_replaces_all_that_wait() -> None:
    async def work() -> None:
        kafka = Kafka(refuses=False)
        committing = _committing(kafka)
        kafka.open.clear()
        calls = [asyncio.create_task(committing.commit({PARTITION: offset})) for offset in (1, 2, 3, 0)]
        await asyncio.sleep(0)
        kafka.open.set()
        assert await asyncio.gather(*calls) == [True, False, False, True]
        assert kafka.taken == [1, 0], "a rewind goes back, yet its positions are the newest"

    asyncio.run(work())


def test_each_refusal_is_counted_and_only_the_first_of_a_kind_and_the_end_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        kafka = Kafka(refuses=True)
        committing = _committing(kafka)
        for offset in range(100):
            await committing.commit({PARTITION: offset})
        assert kafka.refusals == 100
        kafka.refuses = False
        for offset in range(3):
            await committing.commit({PARTITION: offset})

    caplog.set_level(logging.INFO)
    asyncio.run(work())
    assert caplog.messages == [
        "A commit of group g was refused: CommitFailedError; it will be tried again",
        "Kafka accepts the commits of group g again",
    ]
