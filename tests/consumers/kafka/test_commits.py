"""Commits that Kafka refuses: the newest is tried again, the others are overtaken, and few lines are said."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from consumers.kafka.commits import Committing, Positions
from consumers.records import Partition

PARTITION = Partition("clicks", 0)
LINES = 10


class Kafka:
    """Takes commits, or refuses them; and counts, as the source's meter does."""

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
    return Committing(kafka, kafka, "g", lines_per_minute=LINES, again_s=0.01)


async def _until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - nobody tells when a condition of any kind has come true
            await asyncio.sleep(0.001)


def test_what_was_refused_is_tried_again_until_kafka_takes_it_and_then_no_more() -> None:
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


def test_while_one_is_stuck_the_newest_overtakes_all_that_came_between() -> None:
    async def work() -> None:
        kafka = Kafka(refuses=False)
        committing = _committing(kafka)
        kafka.open.clear()
        calls = [asyncio.create_task(committing.commit({PARTITION: at})) for at in (1, 2, 3, 0)]
        await asyncio.sleep(0)
        kafka.open.set()
        assert await asyncio.gather(*calls) == [True, False, False, True]
        assert kafka.taken == [1, 0], "a rewind goes back, and is the newest all the same"

    asyncio.run(work())


def test_refusals_are_counted_each_and_said_a_few_times_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        kafka = Kafka(refuses=True)
        committing = _committing(kafka)
        for at in range(100):
            await committing.commit({PARTITION: at})
        assert kafka.refusals == 100

    caplog.set_level(logging.WARNING)
    asyncio.run(work())
    assert 0 < len(caplog.records) <= LINES
