"""Dead letters reach their topic with origin and reason, and are only then acknowledged."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.structs import ConsumerRecord

from millrace.consumers.dead_letters.backlog import BacklogOptions
from millrace.consumers.dead_letters.letter import DeadLetter
from millrace.consumers.dead_letters.producer import DeadLetterOptions, KafkaDeadLetters
from millrace.consumers.errors import TopicMissingError
from millrace.consumers.kafka.options import KafkaOptions
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition

pytestmark = pytest.mark.broker

Topic = Callable[..., str]


def options(broker: str, **settings: Any) -> KafkaOptions:
    return KafkaOptions(bootstrap_servers=(broker,), topics=("clicks",), group_id="g", **settings)


def letter(offset: int = 0, **held: Any) -> DeadLetter:
    record: dict[str, Any] = {"key": b"k", "value": b"{broken", "headers": (("trace", b"1"),), "field": None, **held}
    return DeadLetter(
        partition=Partition("clicks", 3),
        offset=offset,
        timestamp_ms=99,
        reason=Reason.MALFORMED,
        model="clicks-model",
        **record,
    )


def read(broker: str, topic: str, count: int) -> list[ConsumerRecord[bytes, bytes]]:
    async def run() -> list[ConsumerRecord[bytes, bytes]]:
        consumer = AIOKafkaConsumer(bootstrap_servers=broker, auto_offset_reset="earliest", enable_auto_commit=False)
        async with consumer:
            consumer.assign([TopicPartition(topic, 0)])
            return [await asyncio.wait_for(consumer.getone(), 20) for _ in range(count)]

    return asyncio.run(run())


def test_letters_arrive_in_order_as_they_were_with_origin_and_reason(broker: str, topic: Topic) -> None:
    name = topic()
    letters = KafkaDeadLetters(options(broker), DeadLetterOptions(topic=name))
    letters.start(30)
    for offset in range(1200):
        letters.put([letter(offset, field="price")])
    assert letters.sequence() == 1200
    assert letters.wait_acknowledged(1200, 30)
    statistics = letters.statistics()
    assert (statistics.acknowledged, statistics.waiting, statistics.waiting_bytes) == (1200, 0, 0)
    assert letters.stop(10) == 0
    found = read(broker, name, 1200)
    assert [dict(record.headers)["millrace.offset"] for record in found] == [b"%d" % offset for offset in range(1200)]
    assert (found[0].key, found[0].value) == (b"k", b"{broken")
    assert dict(found[0].headers) == {
        "millrace.topic": b"clicks",
        "millrace.partition": b"3",
        "millrace.offset": b"0",
        "millrace.timestamp": b"99",
        "millrace.reason": b"malformed",
        "millrace.field": b"price",
        "millrace.name": b"clicks-model",
        "trace": b"1",
    }


def test_letters_of_one_key_stand_where_kafkas_clients_put_that_key(broker: str, topic: Topic) -> None:
    name, other = topic(3), topic(3)
    keys = [b"key-%d" % number for number in range(30)]

    async def places(of: str) -> dict[bytes, int]:
        consumer = AIOKafkaConsumer(of, bootstrap_servers=broker, auto_offset_reset="earliest", group_id=None)
        async with consumer:
            found = [await asyncio.wait_for(consumer.getone(), 20) for _ in keys]
        return {record.key: record.partition for record in found}

    async def send() -> None:
        async with AIOKafkaProducer(bootstrap_servers=broker) as producer:
            for key in keys:
                await producer.send_and_wait(other, b"x", key)

    letters = KafkaDeadLetters(options(broker), DeadLetterOptions(topic=name))
    letters.start(30)
    for offset, key in enumerate(keys):
        letters.put([letter(offset, key=key)])
    assert letters.wait_acknowledged(len(keys), 30)
    assert letters.stop(10) == 0
    asyncio.run(send())
    assert asyncio.run(places(name)) == asyncio.run(places(other))


def test_letters_that_are_too_many_for_one_batch_of_the_topic_arrive_whole(broker: str, topic: Topic) -> None:
    name = topic(max_message_bytes=8_000)
    letters = KafkaDeadLetters(options(broker), DeadLetterOptions(topic=name))
    letters.start(30)
    for offset in range(40):
        letters.put([letter(offset, value=b"v" * 1_000)])
    assert letters.wait_acknowledged(40, 30)
    assert letters.statistics().shortened == 0
    assert letters.stop(10) == 0
    found = read(broker, name, 40)
    assert [dict(record.headers)["millrace.offset"] for record in found] == [b"%d" % offset for offset in range(40)]
    assert {record.value for record in found} == {b"v" * 1_000}


def test_letters_that_come_one_by_one_are_sent_several_at_a_time(
    broker: str, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, count, batches, send_batch = topic(), 60, list[object](), AIOKafkaProducer.send_batch

    async def counted(self: AIOKafkaProducer, batch: Any, *place: Any, **given: Any) -> Any:
        batches.append(batch)
        return await send_batch(self, batch, *place, **given)

    monkeypatch.setattr(AIOKafkaProducer, "send_batch", counted)
    letters = KafkaDeadLetters(options(broker), DeadLetterOptions(topic=name))
    letters.start(30)
    for offset in range(count):
        letters.put([letter(offset)])
        time.sleep(0.004)
    assert letters.wait_acknowledged(count, 30)
    assert letters.stop(10) == 0
    assert len(batches) < count / 2
    assert len(read(broker, name, count)) == count


def test_letters_that_take_longer_than_one_attempt_get_through(broker: str, topic: Topic) -> None:
    """One by one, as the topic takes no larger batch: what an attempt has delivered is not sent again by the next."""
    name = topic(max_message_bytes=8_000)
    letters = KafkaDeadLetters(options(broker, request_timeout_ms=200), DeadLetterOptions(topic=name))
    letters.start(30)
    for offset in range(500):
        letters.put([letter(offset, value=b"v" * 1_000)])
    assert letters.wait_acknowledged(500, 60)
    assert letters.stop(10) == 0

    async def end() -> int:
        async with AIOKafkaConsumer(bootstrap_servers=broker) as consumer:
            place = TopicPartition(name, 0)
            return int((await consumer.end_offsets([place]))[place])

    assert 500 <= asyncio.run(end()) < 1_000


def test_a_tombstone_and_a_giant_arrive_in_a_form_that_the_topic_takes(broker: str, topic: Topic) -> None:
    name = topic(max_message_bytes=100_000)
    letters = KafkaDeadLetters(options(broker), DeadLetterOptions(topic=name))
    letters.start(30)
    letters.put([letter(0, key=None, value=None)])
    letters.put([letter(1, value=b"a" * 200_000)])  # more than the topic takes
    letters.put([letter(2, value=b"b" * 20_000_000, key=b"k" * 2_000_000)])  # more than the client sends
    letters.put([letter(3)])
    assert letters.wait_acknowledged(4, 30)
    assert letters.statistics().shortened == 2
    assert letters.stop(10) == 0
    by_offset = {dict(record.headers)["millrace.offset"]: record for record in read(broker, name, 4)}
    assert set(by_offset) == {b"0", b"1", b"2", b"3"}
    assert dict(by_offset[b"0"].headers)["millrace.value"] == b"null"
    for offset, size in ((b"1", b"200000"), (b"2", b"20000000")):
        assert dict(by_offset[offset].headers)["millrace.value_bytes"] == size
        assert len(by_offset[offset].value or b"") < 100_000


def test_a_missing_topic_is_told_at_the_start(broker: str) -> None:
    letters = KafkaDeadLetters(options(broker), DeadLetterOptions(topic="no-dead-letters"))
    with pytest.raises(TopicMissingError, match=r"dead-letter topic no-dead-letters is not at .*--create"):
        letters.start(30)


def test_a_topic_that_goes_away_holds_letters_back_and_shows_why(
    broker: str, topic: Topic, wait_for: Callable[..., Any]
) -> None:
    name = topic()
    sink = DeadLetterOptions(topic=name, backlog=BacklogOptions(capacity_bytes=letter().nbytes))
    letters = KafkaDeadLetters(options(broker, request_timeout_ms=1000), sink)
    letters.start(30)
    letters.put([letter(0)])
    assert letters.wait_acknowledged(1, 30)

    async def delete() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker)
        await admin.start()
        await admin.delete_topics([name])
        await admin.close()

    asyncio.run(delete())
    letters.put([letter(1)])
    wait_for(lambda: letters.statistics().last_error)
    assert not letters.wait_acknowledged(2, 0)
    assert letters.put([letter(2)], stopped=lambda: True) == 0
    assert letters.stop(4) == 1
