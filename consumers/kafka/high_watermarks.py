"""The high watermarks of partitions: one past the last offset of each, whether it may be read or not.

Owns nothing; runs on the consumer's loop. aiokafka looks up the ends of partitions with the isolation level of its
fetches, which stops before the first open transaction, so this module sends a request of its own.
"""

import asyncio
from collections.abc import Iterable

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.offset import OffsetRequest

from consumers.records import Partition

_CONSUMER, _LATEST, _READ_UNCOMMITTED = -1, -1, 0
"""Kafka's codes: the asker is no replica, it asks for ends, and those of open transactions too."""


async def high_watermarks(client: AIOKafkaClient, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Return the high watermark of each partition; those for which no leader answers are left out."""
    by_leader: dict[int, dict[str, list[tuple[int, int]]]] = {}
    for partition in partitions:
        leader = client.cluster.leader_for_partition(TopicPartition(*partition))
        if leader not in {None, -1}:
            by_leader.setdefault(leader, {}).setdefault(partition.topic, []).append((partition.number, _LATEST))
    requests = {
        leader: OffsetRequest(_CONSUMER, _READ_UNCOMMITTED, list(topics.items()))
        for leader, topics in by_leader.items()
    }
    answers = await asyncio.gather(*(client.send(leader, request) for leader, request in requests.items()))
    return {
        Partition(topic, number): offset
        for answer in answers
        for topic, found in answer.topics
        for number, code, _, offset in found
        if code == 0
    }
