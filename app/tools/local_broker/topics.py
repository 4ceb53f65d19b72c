"""Creates topics, on a broker that may have answered for the first time a moment ago.

Runs an event loop in a thread of its own, so it can be called from anywhere, a coroutine's thread included.
"""

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, KafkaTimeoutError, TopicAlreadyExistsError, for_code

from millrace.consumers.errors import ConfigError, UnreachableError, text_of

_WITHIN_S = 30.0
_PAUSE_S = 0.2


def create_topic(
    bootstrap_servers: str, name: str, partitions: int = 1, config: Mapping[str, str] | None = None
) -> None:
    """Create a topic with one replica. One that exists is an error, even with the same partitions."""
    with ThreadPoolExecutor(1, thread_name_prefix="create-topic") as pool:
        pool.submit(asyncio.run, _create(bootstrap_servers, name, partitions, dict(config or {}))).result()


def partitions_of(bootstrap_servers: str, name: str) -> int:
    """Return the number of a topic's partitions; 0 where there is no such topic."""
    with ThreadPoolExecutor(1, thread_name_prefix="look-for-topic") as pool:
        return pool.submit(asyncio.run, _count(bootstrap_servers, name)).result()


async def _count(bootstrap_servers: str, name: str) -> int:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    try:
        await admin.start()
        (topic,) = await admin.describe_topics([name])
    except KafkaError as error:
        raise UnreachableError(
            f"no Kafka answers at {bootstrap_servers}; is it running there? `millrace local broker` starts one"
        ) from error
    finally:
        await admin.close()
    return len(topic["partitions"])


async def _create(bootstrap_servers: str, name: str, partitions: int, config: dict[str, str]) -> None:
    end = time.monotonic() + _WITHIN_S
    while True:
        try:
            return await _try_to_create(bootstrap_servers, name, partitions, config)
        except TopicAlreadyExistsError as error:
            raise ConfigError(
                f"topic {name!r} exists on {bootstrap_servers}; use it, or choose another name"
            ) from error
        except KafkaError as error:
            if not error.retriable:
                raise ConfigError(
                    f"the broker refuses topic {name!r} with {partitions} partitions: {text_of(error)}"
                ) from error
            if time.monotonic() >= end:
                raise UnreachableError(
                    f"no broker at {bootstrap_servers} creates topic {name!r}: {text_of(error)}"
                ) from error
        await asyncio.sleep(_PAUSE_S)


async def _try_to_create(bootstrap_servers: str, name: str, partitions: int, config: dict[str, str]) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    try:
        await admin.start()
        answer = await admin.create_topics([NewTopic(name, partitions, 1, topic_configs=config)])
        for _, code, *message in answer.topic_errors:
            if code:
                raise for_code(code)(*message)
        await _until_served(admin, name, partitions)
    finally:
        await admin.close()


async def _until_served(admin: AIOKafkaAdminClient, name: str, partitions: int) -> None:
    """Wait for the leaders: the controller answers before the broker serves the new partitions."""
    end = time.monotonic() + _WITHIN_S
    while time.monotonic() < end:
        (topic,) = await admin.describe_topics([name])
        served = [partition for partition in topic["partitions"] if partition["error_code"] == 0]
        if len(served) == partitions:
            return
        await asyncio.sleep(_PAUSE_S / 10)
    raise KafkaTimeoutError(f"{name} has no leaders after {_WITHIN_S:.0f} s")
