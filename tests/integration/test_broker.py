"""The session's broker does what the other tests rely on, whichever of the three it is."""

import asyncio
from collections.abc import Callable

from aiokafka import AIOKafkaConsumer, TopicPartition


async def _read(broker: str, topic: str, partition: int, count: int) -> list[tuple[int, bytes | None, int]]:
    consumer = AIOKafkaConsumer(bootstrap_servers=broker, auto_offset_reset="earliest", enable_auto_commit=False)
    async with consumer:
        consumer.assign([TopicPartition(topic, partition)])
        records: list[tuple[int, bytes | None, int]] = []
        while len(records) < count:
            record = await asyncio.wait_for(consumer.getone(), timeout=20)
            records.append((record.offset, record.value, record.timestamp))
        return records


def test_produced_records_lie_in_order_at_the_offsets_that_were_returned(
    broker: str, topic: Callable[..., str], produce: Callable[..., list[tuple[int, int]]]
) -> None:
    name = topic(partitions=2, retention_ms=-1)
    values = [b"a", (1, b"b"), None, (1, None), b"c" * 300_000, b"d" * 300_000, b"e"]
    written = produce(name, values, timestamps=range(1000, 1007))
    assert written == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (0, 3), (0, 4)]
    assert asyncio.run(_read(broker, name, 1, 2)) == [(0, b"b", 1001), (1, None, 1003)]
    assert [(offset, value) for offset, value, _ in asyncio.run(_read(broker, name, 0, 5))] == [
        (0, b"a"),
        (1, None),
        (2, b"c" * 300_000),
        (3, b"d" * 300_000),
        (4, b"e"),
    ]
