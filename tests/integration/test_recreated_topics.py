"""A name that another topic bears by now: recognised by one record, at a real broker, before anything is read of it."""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.client import AIOKafkaClient

from millrace.app.tools.local_broker.topics import create_topic
from millrace.consumers.errors import ConfigError, HandoffBroken, HandoffEnded, TopicRecreatedError
from millrace.consumers.fingerprints import Fingerprint, Sameness
from millrace.consumers.handoff import Handoff
from millrace.consumers.kafka.client import KafkaClient
from millrace.consumers.kafka.positions import Now
from millrace.consumers.kafka.source import KafkaOptions, KafkaSource
from millrace.consumers.records import Chunk, Partition
from tests.conftest import MakeTopic, Produce, WaitFor
from tests.faults.harness.fork_server import run_forked
from tests.integration.test_validate import Config, good

pytestmark = pytest.mark.broker

Open = Callable[..., AbstractContextManager[KafkaSource]]
OLD, NEW = b"old", b"new"


@pytest.fixture
def source(broker: str) -> Open:
    @contextmanager
    def opened(topic: str, **settings: Any) -> Iterator[KafkaSource]:
        options = KafkaOptions(
            bootstrap_servers=(broker,),
            topics=(topic,),
            group_id=f"g-{topic}",
            metadata_max_age_ms=200,
            missing_after_ms=500,
        )
        opened = KafkaSource(replace(options, **settings))
        opened.start(30)
        try:
            yield opened
        finally:
            opened.stop(10)

    return opened


def on_admin(broker: str, work: Callable[[AIOKafkaAdminClient], Any]) -> None:
    async def run() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker)
        await admin.start()
        try:
            await work(admin)
        finally:
            await admin.close()

    asyncio.run(run())


def delete(broker: str, topic: str) -> None:
    on_admin(broker, lambda admin: admin.delete_topics([topic]))


def create_again(broker: str, topic: str, wait_for: WaitFor, partitions: int = 1) -> None:
    """Create it again; Kafka takes a moment until the name is free."""

    def created() -> bool:
        try:
            create_topic(broker, topic, partitions)
        except ConfigError:
            return False
        return True

    wait_for(created, timeout=60)


def swap(broker: str, topic: str, records: int) -> None:
    """Put another topic in its place, and records into it, as fast as Kafka can."""

    async def run() -> None:
        async with AIOKafkaProducer(bootstrap_servers=broker) as producer, asyncio.timeout(60):
            await producer.partitions_for(topic)
            admin = AIOKafkaAdminClient(bootstrap_servers=broker)
            await admin.start()
            try:
                await admin.delete_topics([topic])
                while (await admin.create_topics([NewTopic(topic, 1, 1)])).topic_errors[0][1]:
                    pass  # the name is not free yet
            finally:
                await admin.close()
            await asyncio.gather(*[await producer.send(topic, NEW, partition=0) for _ in range(records)])

    asyncio.run(run())


def new_handoff() -> Handoff:
    return Handoff(capacity_bytes=1 << 20)


def receive_until(handoff: Handoff, reached: Mapping[Partition, int]) -> list[Chunk]:
    chunks: list[Chunk] = []
    ends: dict[Partition, int] = {}
    while any(ends.get(partition, 0) < offset for partition, offset in reached.items()):
        chunks.append(handoff.receive(20))
        ends[chunks[-1].partition] = chunks[-1].end
    return chunks


def learn(opened: KafkaSource, reached: Mapping[Partition, int]) -> dict[Partition, Fingerprint | None]:
    """Read from 0 up to these offsets; by what the partitions are known afterwards."""
    handoff = new_handoff()
    opened.begin(0, dict.fromkeys(reached, 0), handoff)
    chunks = receive_until(handoff, reached)
    handoff.close()
    return {chunk.partition: chunk.fingerprint for chunk in chunks}


def drained(handoff: Handoff) -> list[bytes | None]:
    values: list[bytes | None] = []
    while True:
        try:
            values += handoff.receive(20).values
        except HandoffEnded:
            return values


def test_a_topic_that_is_still_the_same_goes_on_and_is_known(topic: MakeTopic, produce: Produce, source: Open) -> None:
    name = topic()
    partition = Partition(name, 0)
    produce(name, [OLD] * 20)
    with source(name) as opened:
        known = learn(opened, {partition: 20})
        produce(name, [NEW] * 5)
        handoff = new_handoff()
        opened.begin(1, {partition: 20}, handoff, {partition: 25}, known)
        assert drained(handoff) == [NEW] * 5
        assert opened.statistics().recognised == {partition: Sameness.SAME}


@pytest.mark.parametrize("until", [None, 20], ids=["on and on", "until where it stands already"])
def test_a_topic_created_again_while_we_were_away_gives_no_record_and_is_named(
    broker: str, topic: MakeTopic, produce: Produce, source: Open, wait_for: WaitFor, until: int | None
) -> None:
    name = topic()
    partition = Partition(name, 0)
    produce(name, [OLD] * 20)
    with source(name) as opened:
        known = learn(opened, {partition: 20})
    delete(broker, name)
    create_again(broker, name, wait_for)
    produce(name, [NEW] * 30)
    with source(name) as opened:
        handoff = new_handoff()
        opened.begin(1, {partition: 20}, handoff, None if until is None else {partition: until}, known)
        with pytest.raises(HandoffBroken, match=rf"{name}:0 has another record at offset 19 .*on_recreated") as broken:
            handoff.receive(20)
    assert broken.value.exit_code == 4
    assert isinstance(broken.value.__cause__, TopicRecreatedError)
    assert broken.value.__cause__.beginnings == {partition: 0}
    assert handoff.statistics().offered.records == 0


def test_an_end_before_the_position_gives_a_topic_away_though_no_record_is_on_file(
    topic: MakeTopic, produce: Produce, source: Open
) -> None:
    name = topic()
    produce(name, [NEW] * 5)
    with source(name) as opened:
        handoff = new_handoff()
        opened.begin(0, {Partition(name, 0): 50}, handoff)
        with pytest.raises(HandoffBroken, match=rf"{name}:0 ends at offset 5, yet 50 is the next") as broken:
            handoff.receive(20)
    assert isinstance(broken.value.__cause__, TopicRecreatedError)


def test_a_topic_that_is_known_and_lost_its_end_is_no_other_topic(
    topic: MakeTopic, produce: Produce, source: Open
) -> None:
    name = topic()
    partition = Partition(name, 0)
    produce(name, [OLD] * 5)
    with source(name, on_recreated="earliest") as opened:
        known = learn(opened, {partition: 5})
        handoff = new_handoff()
        opened.begin(1, {partition: 9}, handoff, None, known)
        with pytest.raises(HandoffBroken, match="it is the same topic: Kafka has lost its end") as broken:
            handoff.receive(20)
    assert broken.value.exit_code == 4
    assert not isinstance(broken.value.__cause__, TopicRecreatedError), "no policy may begin it anew"


def test_a_partition_without_a_record_on_file_goes_with_its_topic(
    broker: str, topic: MakeTopic, produce: Produce, source: Open, wait_for: WaitFor
) -> None:
    name = topic(partitions=3)
    zero, one, two = (Partition(name, number) for number in range(3))
    produce(name, [(0, OLD)] * 20 + [(1, OLD)] * 20)
    with source(name) as opened:
        known = learn(opened, {zero: 20, one: 20})
    delete(broker, name)
    create_again(broker, name, wait_for, partitions=3)
    produce(name, [(number, NEW) for number in range(3)] * 30)
    with source(name) as opened:
        handoff = new_handoff()
        opened.begin(1, {zero: 20, one: 20, two: 0}, handoff, None, {zero: known[zero], one: None})
        with pytest.raises(HandoffBroken) as broken:
            handoff.receive(20)
    assert isinstance(broken.value.__cause__, TopicRecreatedError)
    assert broken.value.__cause__.beginnings == {zero: 0, one: 0, two: 0}


def test_a_topic_created_again_with_fewer_partitions_is_learnt_to_its_end(
    broker: str, topic: MakeTopic, produce: Produce, source: Open, wait_for: WaitFor
) -> None:
    name = topic(partitions=4)
    all_four = [Partition(name, number) for number in range(4)]
    produce(name, [(number, OLD) for number in range(4)] * 20)
    with source(name) as opened:
        known = learn(opened, dict.fromkeys(all_four, 20))
    delete(broker, name)
    create_again(broker, name, wait_for, partitions=2)
    produce(name, [(number, NEW) for number in range(2)] * 30)
    with source(name, on_recreated="earliest") as opened:
        until, handoff = opened.resolve_until(Now()), new_handoff()
        assert until == dict.fromkeys(all_four[:2], 30)
        opened.begin(1, dict.fromkeys(all_four, 20), handoff, until, known)
        with pytest.raises(HandoffBroken) as broken:
            handoff.receive(20)
        assert isinstance(broken.value.__cause__, TopicRecreatedError)
        begins = dict.fromkeys(all_four, 20) | broken.value.__cause__.beginnings
        handoff = new_handoff()
        opened.begin(2, begins, handoff, until, {partition: known[partition] for partition in all_four[2:]})
        assert drained(handoff) == [NEW] * 60
        assert opened.statistics().gone == frozenset(all_four[2:])


def test_partitions_that_were_gone_are_learnt_when_they_are_added_again(
    broker: str, topic: MakeTopic, produce: Produce, source: Open, wait_for: WaitFor
) -> None:
    name = topic(partitions=1)
    zero, one = Partition(name, 0), Partition(name, 1)
    with source(name, on_recreated="earliest") as opened:
        handoff = new_handoff()
        opened.begin(1, {zero: 0, one: 20}, handoff, None, {one: Fingerprint(19, 0, 0)})
        wait_for(lambda: opened.statistics().gone == {one})
        on_admin(broker, lambda admin: admin.create_partitions({name: NewPartitions(2)}))
        with pytest.raises(HandoffBroken) as broken:
            handoff.receive(30)
        assert isinstance(broken.value.__cause__, TopicRecreatedError)
        assert not broken.value.__cause__.fatal
        assert broken.value.__cause__.beginnings[one] == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_to_the_end_ends_though_its_topic_has_fewer_partitions_by_now(
    broker: str, topic: MakeTopic, produce: Produce, wait_for: WaitFor, tmp_path: Path
) -> None:
    name = topic(partitions=4)
    produce(name, [(number % 4, value) for number, value in enumerate(good(400))])
    config = Config(tmp_path, broker).write(name)
    config.write_text(
        config.read_text().replace("kafka: {", "kafka: {on_recreated: earliest, ") + "api: {listen: '127.0.0.1:0'}\n"
    )

    def run() -> str:
        done = run_forked(["run", "--until", "now", "-c", str(config)], cwd=tmp_path, env=os.environ)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    run()
    delete(broker, name)
    create_again(broker, name, wait_for, partitions=2)
    produce(name, [(number % 2, value) for number, value in enumerate(good(100))])
    said = run()
    assert f"{name}:2, {name}:3 are no more: their topic has fewer partitions now" in said
    assert f"{name}:2, {name}:3 are no more" in run(), "a later run ends as well"


def test_a_record_that_retention_removed_leaves_it_unknown_which_is_said_once(
    broker: str, topic: MakeTopic, produce: Produce, source: Open, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic()
    partition = Partition(name, 0)
    produce(name, [OLD] * 20)
    with source(name) as opened:
        known = learn(opened, {partition: 20})
        at = {TopicPartition(name, 0): RecordsToDelete(before_offset=20)}
        on_admin(broker, lambda admin: admin.delete_records(at))
        produce(name, [NEW] * 5)
        handoff = new_handoff()
        with caplog.at_level(logging.WARNING):
            opened.begin(1, {partition: 20}, handoff, {partition: 25}, known)
            assert drained(handoff) == [NEW] * 5
        assert opened.statistics().recognised == {partition: Sameness.UNKNOWN}
    said = [line for line in caplog.messages if line.startswith("Taken on trust")]
    assert len(said) == 1
    assert f"{name}:0 no longer has the record at offset 19" in said[0]


def test_an_offset_without_a_record_leaves_it_unknown_and_keeps_nobody_waiting(
    broker: str, topic: MakeTopic, source: Open
) -> None:
    """As compaction and aborted transactions leave it."""
    name = topic()
    partition = Partition(name, 0)

    async def write() -> None:
        async with AIOKafkaProducer(bootstrap_servers=broker, transactional_id=f"tx-{name}") as producer:
            for _ in range(2):
                await producer.begin_transaction()
                await producer.send(name, NEW)
                await producer.commit_transaction()

    asyncio.run(write())
    with source(name) as opened:
        for control_record in (1, 3):
            handoff = new_handoff()
            opened.begin(0, {partition: 4}, handoff, {partition: 4}, {partition: Fingerprint(control_record, 0, 0)})
            assert drained(handoff) == []
            assert opened.statistics().recognised == {partition: Sameness.UNKNOWN}


def test_a_topic_that_is_deleted_while_it_is_read_is_missed_and_waited_for(
    broker: str, topic: MakeTopic, produce: Produce, source: Open, wait_for: WaitFor, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic()
    partition = Partition(name, 0)
    produce(name, [OLD])
    with source(name) as opened:
        handoff = new_handoff()
        opened.begin(0, {partition: 0}, handoff)
        receive_until(handoff, {partition: 1})
        assert opened.commit({partition: 1}).result(20) is True
        with caplog.at_level(logging.WARNING):
            delete(broker, name)
            wait_for(lambda: opened.statistics().missing == (partition,))
        assert opened.statistics().fetching
        assert handoff.statistics().state == "open"
    assert sum(line.startswith("Kafka has no leader for") for line in caplog.messages) == 1


@pytest.mark.parametrize("records", [3, 40], ids=["fewer records", "more records"])
@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "when it is missed"])
def test_a_topic_recreated_under_the_reader_is_refused_and_no_record_is_taken(
    broker: str, topic: MakeTopic, produce: Produce, source: Open, wait_for: WaitFor, records: int, at_once: bool
) -> None:
    name = topic()
    partition = Partition(name, 0)
    produce(name, [OLD] * 20)
    with source(name) as opened:
        handoff = new_handoff()
        opened.begin(0, {partition: 0}, handoff)
        receive_until(handoff, {partition: 20})
        if at_once:
            swap(broker, name, records)
        else:
            delete(broker, name)
            wait_for(lambda: opened.statistics().missing)
            create_again(broker, name, wait_for)
            produce(name, [NEW] * records)
        with pytest.raises(HandoffBroken, match="is another topic under the same name") as broken:
            handoff.receive(30)
    assert broken.value.exit_code == 4
    assert handoff.statistics().offered.records == 20


def test_a_deleted_topic_disturbs_the_other_topics_not_at_all(
    broker: str, topic: MakeTopic, produce: Produce, source: Open, wait_for: WaitFor
) -> None:
    gone, stays = topic(), topic()
    with source(gone, topics=(gone, stays)) as opened:
        zero, one = Partition(gone, 0), Partition(stays, 0)
        produce(gone, [OLD])
        produce(stays, [OLD])
        handoff = new_handoff()
        opened.begin(0, {zero: 0, one: 0}, handoff)
        receive_until(handoff, {zero: 1, one: 1})
        delete(broker, gone)
        wait_for(lambda: opened.statistics().missing == (zero,))
        produce(stays, [NEW] * 10)
        assert receive_until(handoff, {one: 11})
        assert opened.commit({zero: 1, one: 11}).result(20) is True


def test_a_missing_topic_is_asked_for_now_and_then_and_not_all_the_time(
    broker: str, topic: MakeTopic, produce: Produce, source: Open, wait_for: WaitFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client library asks for a leader without a pause as long as a partition without one is assigned."""
    asked: list[object] = []
    looks: list[object] = []
    ask, ends = AIOKafkaClient._metadata_update, KafkaClient.ends

    async def counted_ask(self: AIOKafkaClient, *arguments: Any) -> Any:
        asked.append(self)
        return await ask(self, *arguments)

    async def counted_ends(self: KafkaClient, partitions: Iterable[Partition]) -> dict[Partition, int]:
        looks.append(self)
        return await ends(self, partitions)

    name = topic()
    partition = Partition(name, 0)
    produce(name, [OLD])
    with source(name) as opened:
        handoff = new_handoff()
        opened.begin(0, {partition: 0}, handoff)
        receive_until(handoff, {partition: 1})
        assert opened.commit({partition: 1}).result(20) is True
        delete(broker, name)
        wait_for(lambda: opened.statistics().missing)
        monkeypatch.setattr(AIOKafkaClient, "_metadata_update", counted_ask)
        monkeypatch.setattr(KafkaClient, "ends", counted_ends)
        wait_for(lambda: len(looks) >= 2 and len(set(asked)) == 2)
        asked.clear()
        wait_for(lambda: len(looks) >= 4)
        assert len(asked) < 80, "a look a second: by each client five times a second"
