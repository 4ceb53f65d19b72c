"""Headers whose names are not UTF-8, as clients in C or Go may send them; aiokafka's producer cannot."""

from collections.abc import Sequence
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy

Record = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes]]]
"""A key, a value and headers."""


class LatinName(str):
    """A header's name that is sent as Latin-1."""

    __slots__ = ()

    def encode(self, *_: str) -> bytes:
        """Return its bytes, whatever encoding is asked for."""
        return super().encode("latin-1")


FOREIGN = LatinName("größe")
READ_AS = "gr\ufffd\ufffde"
"""The same name as it is read."""


async def produce_foreign(broker: str, topic: str, records: Sequence[Record]) -> None:
    """Write the records as one batch to partition 0."""
    async with AIOKafkaProducer(bootstrap_servers=broker) as producer:
        batch: Any = producer.create_batch()
        # The C extension takes a name's own UTF-8, and asks no `encode`.
        batch._builder = _DefaultRecordBatchBuilderPy(2, 0, 0, -1, -1, 0, 1 << 20)
        for key, value, headers in records:
            batch.append(timestamp=None, key=key, value=value, headers=headers)
        await (await producer.send_batch(batch, topic, partition=0))
