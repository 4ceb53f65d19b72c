"""Reads one partition of a topic as it grows, unseen by other readers: no group, no commits.

Runs an event loop on the caller's thread, while something is read.
"""

import asyncio
from types import TracebackType
from typing import Self

from aiokafka import AIOKafkaConsumer, TopicPartition

_MOST_AT_ONCE = 4000


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
