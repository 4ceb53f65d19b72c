"""Reads a topic as no group: what Kafka holds after a run, dead letters and committed offsets; a partition as it grows.

Runs an event loop on the caller's thread, while something is read. Commits nothing.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.structs import ConsumerRecord

from millrace.consumers.reasons import Reason

_WITHIN_S = 60.0

_MOST_AT_ONCE = 4000


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


class Follower:
    """A reader of one partition. A context manager: connected inside."""

    def __init__(self, bootstrap: str, topic: str, partition: int) -> None:
        self._bootstrap, self._at = bootstrap, TopicPartition(topic, partition)
        self._runner = asyncio.Runner()
        self._consumer: AIOKafkaConsumer | None = None

    def __enter__(self) -> Self:
        self._runner.run(self._connect())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._consumer is not None:
            self._runner.run(self._consumer.stop())
        self._runner.close()

    def seek(self, offset: int) -> None:
        """Continue from this offset; offsets that are gone from the topic are skipped."""
        assert self._consumer is not None
        self._consumer.seek(self._at, offset)

    def read(self, wait_s: float) -> list[tuple[int, bytes]]:
        """Return the next offsets with their values; waits at most `wait_s` seconds for some to come."""
        return self._runner.run(self._read(wait_s))

    async def _connect(self) -> None:
        # Without automatic commits and a group, other readers of the topic see nothing of this.
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
        )
        await self._consumer.start()
        self._consumer.assign([self._at])

    async def _read(self, wait_s: float) -> list[tuple[int, bytes]]:
        assert self._consumer is not None
        found = await self._consumer.getmany(self._at, timeout_ms=int(wait_s * 1000), max_records=_MOST_AT_ONCE)
        return [(record.offset, record.value or b"") for record in found.get(self._at, [])]
