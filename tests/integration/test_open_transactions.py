"""A transaction that stays open: what lies behind it is lag, and the partition is a problem with a name."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from millrace.app.monitoring.observer import Observer
from millrace.app.monitoring.snapshot import take
from millrace.app.monitoring.status import lag_answer, status_of
from millrace.app.monitoring.throughput import throughput_of
from millrace.consumers.handoff import Handoff
from millrace.consumers.kafka.source import KafkaOptions, KafkaSource, SourceStatistics
from millrace.consumers.records import Partition
from millrace.training.telemetry.phases import Phase
from tests.app.api_rig import P0, running

pytestmark = pytest.mark.broker


@contextmanager
def open_transaction(broker: str, topic: str) -> Iterator[None]:
    """Write one record in a transaction that stays open as long as the block runs, then abort it."""
    with asyncio.Runner() as runner:

        async def begin() -> AIOKafkaProducer:
            producer = AIOKafkaProducer(bootstrap_servers=broker, transactional_id=f"open-{topic}")
            await producer.start()
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"open")
            return producer

        async def end(producer: AIOKafkaProducer) -> None:
            await producer.abort_transaction()
            await producer.stop()

        producer = runner.run(begin())
        try:
            yield
        finally:
            runner.run(end(producer))


def test_records_behind_an_open_transaction_are_lag_and_the_partition_is_named(
    broker: str,
    topic: Callable[..., str],
    produce: Callable[..., Any],
    wait_for: Callable[..., Any],
    tmp_path: Path,
) -> None:
    name = topic()
    here = Partition(name, 0)
    produce(name, [b"before"] * 100)
    source = KafkaSource(KafkaOptions(bootstrap_servers=(broker,), topics=(name,), group_id=f"g-{name}"))
    source.start(30)

    def seen(end: int) -> SourceStatistics:
        wait_for(lambda: source.statistics().lag.partitions[here].end == end)
        return source.statistics()

    try:
        handoff = Handoff(capacity_bytes=1 << 20)
        source.begin(1, {here: 0}, handoff)
        with open_transaction(broker, name):
            produce(name, [b"behind"] * 399)
            held = seen(500)
            reached = 0
            while reached < 100:
                reached = handoff.receive(20).end
            assert reached == 100
            transaction = held.open_transactions[here]
            assert (transaction.offset, held.lag.partitions[here].readable_end, held.lag_records) == (100, 100, 0)
            assert seen(500).open_transactions[here] == transaction, "it is the same one as long as it begins there"
            with running(tmp_path) as rig:
                snapshot = take(rig.service)
            settled = replace(snapshot.ledger.partitions[P0], start=0, position=100)
            snapshot = replace(
                snapshot,
                source=source.statistics(),
                ledger=replace(snapshot.ledger, partitions={here: settled}),
                phase=replace(snapshot.phase, phase=Phase.IDLE),
                at=transaction.since + 61,
            )
            observation = Observer(lambda: snapshot).look()
            lag = lag_answer(observation)
            assert lag.lag_records == 400
            assert (lag.partitions[str(here)].end, lag.partitions[str(here)].readable_end) == (500, 100)
            waits = "Waiting for the end of an open transaction: nothing behind it can be read."
            assert status_of(observation).verdict.startswith(f"An open transaction holds {here} at offset 100")
            view = throughput_of(observation)
            assert (view.bound_by, view.advice) == (None, waits), "no faster way to the brokers would help"
            (problem,) = observation.problems
            assert problem.problem == "open_transaction"
            assert f"holds {here} at offset 100 since" in problem.what
            assert f"abort --topic {name} --partition 0 --start-offset 100" in problem.fix
        over = seen(501)
        assert wait_for(lambda: not source.statistics().open_transactions)
        assert over.lag.partitions[here].end == 501
    finally:
        source.stop(10)
