"""Opens and closes producers within a bounded time, whatever the brokers do. Everything here runs on a loop."""

import asyncio
import contextlib

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

_SPARE_S = 2.0


async def start_producer(producer: AIOKafkaProducer, within_s: float) -> None:
    """Start the producer, or close all of it: a start that is cancelled half-way would leave its connection open."""
    starting = asyncio.ensure_future(producer.start())
    try:
        await asyncio.shield(starting)
    except BaseException:
        with contextlib.suppress(KafkaError, OSError, TimeoutError):
            async with asyncio.timeout(within_s):  # the brokers may take any time to give it its id
                await starting
        await close_producer(producer)
        raise


async def close_producer(producer: AIOKafkaProducer) -> None:
    """Close the producer, with what it has not sent."""
    try:
        async with asyncio.timeout(_SPARE_S):
            await producer.stop()
    except (KafkaError, TimeoutError):  # `stop` flushes first, which never ends while the broker is away
        with contextlib.suppress(KafkaError):
            await producer._sender.close()  # noqa: SLF001 - no public method ends its task without a flush
        await producer.client.close()
