"""A topic to which things happen: deleted, created again, shortened by retention, given partitions; and its account."""

import asyncio
from collections.abc import Awaitable, Callable

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from aiokafka.admin.records_to_delete import RecordsToDelete

from millrace.app.tools.local_broker.topics import create_topic
from millrace.app.tools.traffic.single_writer import Draws
from millrace.consumers.errors import ConfigError
from tests.faults.harness.topics import Topic
from tests.faults.harness.waiting import wait_until

_AT_ONCE = 1000
_WITHIN_S = 60.0


class ShiftingTopic(Topic):
    """The topic, its writer and its account."""

    def write_to(self, partition: int, records: int, draws: Draws | None = None) -> None:
        """Write so many to one partition, and return when the broker has them."""
        for first in range(0, records, _AT_ONCE):
            count = min(_AT_ONCE, records - first)
            self._loop.run(self._send(partition, count, draws or self._draws), _WITHIN_S)

    def delete(self) -> None:
        """Delete it."""
        self._administer(lambda admin: admin.delete_topics([self.name]))

    def create_again(self) -> None:
        """Create it under the same name, with an empty account; Kafka takes a moment until the name is free."""

        def created() -> bool:
            try:
                create_topic(self.bootstrap, self.name, self.partitions)
            except ConfigError:
                return False
            return True

        wait_until(created, f"the name {self.name} was free")
        self.verdicts = [[] for _ in range(self.partitions)]

    def shorten(self, partition: int, before: int) -> None:
        """Do at once as retention does in time."""
        at = {TopicPartition(self.name, partition): RecordsToDelete(before_offset=before)}
        self._administer(lambda admin: admin.delete_records(at))

    def grow(self, partitions: int) -> None:
        """Have so many partitions from now on."""
        self._administer(lambda admin: admin.create_partitions({self.name: NewPartitions(total_count=partitions)}))
        self._loop.run(self._until_it_has(partitions), _WITHIN_S)
        self.verdicts += [[] for _ in range(partitions - self.partitions)]
        self.partitions = partitions

    async def _until_it_has(self, partitions: int) -> None:
        """Wait until the writer knows of them."""
        assert self._producer is not None
        while len(await self._producer.partitions_for(self.name)) < partitions:
            await self._producer.client.force_metadata_update()

    def _administer(self, order: Callable[[AIOKafkaAdminClient], Awaitable[object]]) -> None:
        async def give() -> None:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
            await admin.start()
            try:
                await order(admin)
            finally:
                await admin.close()

        asyncio.run(give())
