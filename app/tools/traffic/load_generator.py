"""Writes a stream whose records are known by their offsets, at a given rate, from where the topic ends.

The thread is `flowing`, with an event loop of its own. It continues where the topic ends, so a killed stream gets no
gap; the producer is idempotent, so a retry writes nothing twice. Where the broker is slow the stream is late, and does
not catch up in a burst. An error ends it, and `error` reports it.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from millrace.consumers.errors import MillraceError
from millrace.consumers.loop_thread import LoopThread

Values = Callable[[int, int, int], Sequence[bytes]]
"""Returns the records of a partition: its number, the first offset, how many."""
_TURN_S = 0.1
_LATE_S = 1.0
_WITHIN_S = 30.0


class LoadGenerator:
    """The writer of one topic."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, values: Values, records_per_s: float) -> None:
        self._bootstrap, self._topic, self._partitions = bootstrap, topic, partitions
        self._values, self._rate = values, records_per_s / partitions
        self._loop = LoopThread("flowing")
        self._next = [0] * partitions
        self._task: Future[None] | None = None

    def start(self) -> None:
        """Find where the topic ends, and begin to write there."""
        self._loop.start()
        self._loop.run(self._find_ends(), _WITHIN_S)
        self._task = self._loop.submit(self._write())

    def stop(self, timeout_s: float) -> None:
        """End it; return when its thread has ended or the time is over."""
        if self._task is not None:
            self._task.cancel()
        self._loop.stop(timeout_s)

    @property
    def ends(self) -> tuple[int, ...]:
        """One past the last acknowledged offset of each partition."""
        return tuple(self._next)

    @property
    def error(self) -> MillraceError | None:
        """The error that ended it; None where there was none."""
        task = self._task
        if task is None or task.cancelled() or not task.done() or (error := task.exception()) is None:
            return None
        return MillraceError(f"the stream cannot be written any more: {str(error) or type(error).__name__}")

    async def _find_ends(self) -> None:
        every = [TopicPartition(self._topic, number) for number in range(self._partitions)]
        async with AIOKafkaConsumer(bootstrap_servers=self._bootstrap) as consumer:
            ends = await consumer.end_offsets(every)
        self._next = [ends[partition] for partition in every]

    async def _write(self) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            enable_idempotence=True,
            max_batch_size=1024 * 1024,
            compression_type="lz4",
        )
        await producer.start()
        try:
            began, firsts = time.monotonic(), self.ends
            while True:
                elapsed = time.monotonic() - began
                due = [first + int(elapsed * self._rate) for first in firsts]
                await asyncio.gather(*(self._send(producer, number, end) for number, end in enumerate(due)))
                late_s = time.monotonic() - began - elapsed - _TURN_S
                began += late_s if late_s > _LATE_S else 0.0
                await asyncio.sleep(max(0.0, -late_s))
        finally:
            await producer.stop()

    async def _send(self, producer: AIOKafkaProducer, partition: int, end: int) -> None:
        first = self._next[partition]
        if end <= first:
            return
        batch = producer.create_batch()
        for value in self._values(partition, first, end - first):
            batch.append(key=None, value=value, timestamp=None)
        sent = await (await producer.send_batch(batch, self._topic, partition=partition))
        if sent.offset != first:
            raise MillraceError(
                f"another program writes to {self._topic}: offset {sent.offset} came where {first} was due"
            )
        self._next[partition] = end
