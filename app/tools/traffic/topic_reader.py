"""Reads what Kafka holds after a run: dead letters and committed offsets. Runs an event loop on the caller's thread."""

import asyncio
from collections import Counter
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.structs import ConsumerRecord

from millrace.consumers.reasons import Reason

_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Letter:
    """Where a record that was set aside comes from, and why."""

    partition: int
    offset: int
    reason: Reason
    topic: str


def dead_letters(bootstrap: str, topic: str) -> Counter[Letter]:
    """Return every letter of a topic with one partition, and how often it came."""
    return asyncio.run(_letters(bootstrap, topic))


def committed(bootstrap: str, group: str, topic: str, partitions: int) -> dict[int, int | None]:
    """Return the committed offset of each partition; None where there is none."""
    return asyncio.run(_committed(bootstrap, group, topic, partitions))


async def _letters(bootstrap: str, topic: str) -> Counter[Letter]:
    at, found = TopicPartition(topic, 0), Counter[Letter]()
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False)
    async with asyncio.timeout(_WITHIN_S), consumer:
        consumer.assign([at])
        end = (await consumer.end_offsets([at]))[at]
        while await consumer.position(at) < end:
            records = (await consumer.getmany(at, timeout_ms=500)).get(at, [])
            found.update(map(_letter, records))
    return found


def _letter(record: "ConsumerRecord[bytes, bytes]") -> Letter:
    headers = dict(record.headers)
    return Letter(
        int(headers["millrace.partition"]),
        int(headers["millrace.offset"]),
        Reason(headers["millrace.reason"].decode()),
        headers["millrace.topic"].decode(),
    )


async def _committed(bootstrap: str, group: str, topic: str, partitions: int) -> dict[int, int | None]:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)
    async with asyncio.timeout(_WITHIN_S), consumer:
        return {number: await consumer.committed(TopicPartition(topic, number)) for number in range(partitions)}
