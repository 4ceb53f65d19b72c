"""What Kafka's retention does, at once: records before an offset are removed."""

import asyncio
from collections.abc import Mapping

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete


def delete_before(bootstrap: str, topic: str, offsets: Mapping[int, int]) -> None:
    """Remove the records before an offset, by partition."""

    async def run() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            targets = {TopicPartition(topic, number): RecordsToDelete(offset) for number, offset in offsets.items()}
            await admin.delete_records(targets)
        finally:
            await admin.close()

    asyncio.run(run())
