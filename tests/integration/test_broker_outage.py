"""A broker that goes away and comes back: nothing ends, nothing is lost, nobody is drowned in log lines."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

from millrace.app.tools.local_broker import LocalBroker
from millrace.app.tools.local_broker.topics import create_topic
from millrace.consumers.dead_letters.letter import DeadLetter
from millrace.consumers.dead_letters.producer import DeadLetterOptions, KafkaDeadLetters
from millrace.consumers.handoff import Handoff
from millrace.consumers.kafka.positions import Committed, Earliest
from millrace.consumers.kafka.source import KafkaOptions, KafkaSource
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition

pytestmark = pytest.mark.broker

WaitFor = Callable[..., Any]


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[LocalBroker]:
    """Start a broker of this test's own, to be killed."""
    with LocalBroker(tmp_path) as local:
        yield local


def _letter(offset: int) -> DeadLetter:
    return DeadLetter(
        partition=Partition("clicks", 0),
        offset=offset,
        timestamp_ms=0,
        key=None,
        value=b"x",
        headers=(),
        reason=Reason.EMPTY,
        field=None,
        model="m",
    )


@pytest.mark.row(6)
@pytest.mark.slow
def test_source_and_dead_letters_survive_a_broker_that_is_killed_and_started_again(
    mortal: LocalBroker, wait_for: WaitFor, caplog: pytest.LogCaptureFixture
) -> None:
    """Also a source none of whose partitions has a leader, which misses the broker by its connections alone."""
    servers = mortal.bootstrap_servers
    for name in ("clicks", "letters", "gone"):
        create_topic(servers, name)
    partition = Partition("clicks", 0)
    options = KafkaOptions(
        bootstrap_servers=(servers,), topics=("clicks",), group_id="g", request_timeout_ms=2000, commit_timeout_ms=500
    )
    source, letters = KafkaSource(options), KafkaDeadLetters(options, DeadLetterOptions(topic="letters"))
    leaderless = KafkaSource(replace(options, topics=("gone",), group_id="other"))
    source.start(30)
    letters.start(30)
    leaderless.start(30)
    try:
        leaderless.begin(0, leaderless.resolve_start(Earliest()), Handoff(capacity_bytes=1 << 20))
        delete_topic(servers, "gone")
        handoff = Handoff(capacity_bytes=1 << 20)
        source.begin(0, source.resolve_start(Earliest()), handoff)
        letters.put([_letter(0)])
        assert letters.wait_acknowledged(1, 30)
        wait_for(lambda: source.commit({partition: 0}).result(20))

        wait_for(lambda: not leaderless.partitions(), timeout=60)
        assert leaderless.statistics().connected

        caplog.clear()
        mortal.kill()
        wait_for(lambda: not source.statistics().connected)
        wait_for(lambda: not leaderless.statistics().connected, timeout=60)
        letters.put([_letter(1)])
        wait_for(lambda: letters.statistics().last_error)
        assert source.commit({partition: 0}).result(20) is False
        again = Handoff(capacity_bytes=1 << 20)
        source.begin(1, {partition: 0}, again)
        handoff.close()
        assert source.statistics().fetching

        mortal.start()
        wait_for(lambda: source.statistics().connected, timeout=60)
        wait_for(lambda: leaderless.statistics().connected, timeout=60)
        assert letters.wait_acknowledged(2, 60)
        write(servers, 5)
        received = 0
        while received < 5:
            received += len(again.receive(30))
        wait_for(lambda: source.commit({partition: 5}).result(20), timeout=60)
        assert source.resolve_start(Committed()) == {partition: 5}
        per_logger = [record.name for record in caplog.records if record.name.startswith("aiokafka")]
        assert all(per_logger.count(name) <= 2 * options.log_lines_per_minute for name in per_logger)
    finally:
        leaderless.stop(5)
        letters.stop(5)
        source.stop(5)
    assert not [record for record in caplog.records if record.name == "asyncio" and record.levelno >= logging.ERROR]


def delete_topic(servers: str, name: str) -> None:
    """Delete a topic."""

    async def run() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=servers)
        await admin.start()
        try:
            await admin.delete_topics([name])
        finally:
            await admin.close()

    asyncio.run(run())


def write(servers: str, count: int) -> None:
    """Write with a client that was not there during the outage."""

    async def run() -> None:
        async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
            for _ in range(count):
                await producer.send_and_wait("clicks", b"x")

    asyncio.run(run())
