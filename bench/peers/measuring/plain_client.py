"""Records by confluent-kafka, for the peers that bring no client of their own."""

import uuid
from collections.abc import Iterator

from confluent_kafka import Consumer

WITHIN_S = 30.0


def batches(bootstrap: str, topic: str, size: int) -> Iterator[list[bytes]]:
    """Values of up to `size` records at a time, from the topic's beginning, until none come any more."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"peer-{uuid.uuid4()}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    while messages := consumer.consume(size, WITHIN_S):
        for message in messages:
            if message.error() is not None:
                raise SystemExit(str(message.error()))
        yield [message.value() for message in messages]
