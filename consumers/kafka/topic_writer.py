"""Writes records to a topic, each acknowledged by all replicas before its call returns.

Owns the thread that it is named for, with its event loop and a producer, which is replaced after each failure. It keeps
nothing: who calls `write` knows what is not written yet, and calls again.
"""

import asyncio
import contextlib
from collections.abc import Sequence

from aiokafka import AIOKafkaProducer
from aiokafka.errors import ClusterAuthorizationFailedError, KafkaError, TopicAuthorizationFailedError

from millrace.consumers.errors import SourceError, TopicMissingError, UnreachableError, text_of
from millrace.consumers.kafka.aiokafka_internals import close_producer, start_producer
from millrace.consumers.kafka.logins import refuse_wrong_login
from millrace.consumers.kafka.options import KafkaOptions
from millrace.consumers.kafka.rights import refused_topic, topic_is_missing
from millrace.consumers.log_limit import limit_loggers, limit_repeats
from millrace.consumers.loop_thread import LoopThread

_SPARE_S = 5.0
"""For a start that the time of a write has cut short, and for closing a producer."""
Record = tuple[bytes | None, bytes] | tuple[bytes | None, bytes, Sequence[tuple[str, bytes]]]
"""A key, a value, and headers where there are any."""


class TopicWriter:
    """Writes to one topic, which must exist. For one calling thread."""

    def __init__(self, kafka: KafkaOptions, topic: str, *, setting: str, thread: str) -> None:
        """Connect to nothing yet. `setting` names the topic's setting in errors."""
        self._kafka, self._topic, self._setting = kafka, topic, setting
        self._loop = LoopThread(thread)
        self._producer: AIOKafkaProducer | None = None

    def start(self) -> None:
        """Start the thread."""
        limit_repeats("aiokafka")
        limit_loggers("aiokafka", self._kafka.log_lines_per_minute)
        self._loop.start()

    def check(self, within_s: float) -> None:
        """Connect, write nothing. Raises UnreachableError, TopicMissingError, SourceError or ConfigError."""
        self._bounded(within_s, [])

    def write(self, key: bytes, value: bytes, within_s: float) -> None:
        """Return when the record is acknowledged. Raises as `check` does; the record may be in the topic even then."""
        self._bounded(within_s, [(key, value)])

    def write_all(self, records: Sequence[Record], within_s: float) -> None:
        """Return when all records are acknowledged. Raises as `check` does; some may be in the topic even then."""
        self._bounded(within_s, records)

    def stop(self, deadline_s: float = _SPARE_S) -> None:
        """Close the producer and end the thread."""
        with contextlib.suppress(TimeoutError, RuntimeError):
            self._loop.run(self._drop_producer(), deadline_s / 2)
        self._loop.stop(deadline_s / 2)

    def _bounded(self, within_s: float, records: Sequence[Record]) -> None:
        try:
            # Beyond the time of the work itself, for a start that is still under way, and for closing its producer.
            self._loop.run(self._work(within_s, records), within_s + 2 * _SPARE_S)
        except TimeoutError:
            raise self._unanswered(within_s) from None

    async def _work(self, within_s: float, records: Sequence[Record]) -> None:
        try:
            async with asyncio.timeout(within_s):
                producer = await self._ready_producer()
                sent = [
                    await producer.send(
                        self._topic, record[1], record[0], headers=list(record[2]) if len(record) > 2 else None
                    )
                    for record in records
                ]
                await asyncio.gather(*sent)
        except (TopicMissingError, SourceError):
            await self._drop_producer()  # so that the next call looks at the topic again
            raise
        except (ClusterAuthorizationFailedError, TopicAuthorizationFailedError):
            # Kafka gives a producer its id only if it may write to any topic at all.
            await self._drop_producer()
            raise refused_topic(self._kafka, "Write", self._topic) from None
        except TimeoutError:
            await self._drop_producer()
            raise self._unanswered(within_s) from None
        except (KafkaError, OSError) as error:
            # The next one begins anew: the sequence numbers of a producer that failed may be out of order.
            await self._drop_producer()
            await refuse_wrong_login(self._kafka)
            raise UnreachableError(f"{self._setting}: {self._topic}: {text_of(error)}") from error

    def _unanswered(self, within_s: float) -> UnreachableError:
        return UnreachableError(
            f"{self._setting}: {self._kafka.servers} has acknowledged nothing within {within_s:g} s; is the broker up?"
        )

    async def _ready_producer(self) -> AIOKafkaProducer:
        if self._producer is None:
            producer = AIOKafkaProducer(**self._kafka.client_settings(), acks="all", enable_idempotence=True)
            await start_producer(producer, _SPARE_S)
            self._producer = producer
            if await topic_is_missing(producer.client, self._kafka, self._topic):
                raise TopicMissingError(
                    f"{self._setting}: the topic {self._topic} is not at {self._kafka.servers}; create it: "
                    f"kafka-topics.sh --bootstrap-server {self._kafka.servers} --create --topic {self._topic} "
                    "--partitions 1"
                )
        return self._producer

    async def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await close_producer(producer)
