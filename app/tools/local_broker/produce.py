"""Writes the lines of a file to a topic.

The caller's thread reads, and between reads drives an event loop until the broker has what was read: so Ctrl-C is
heard while a read waits, and nothing piles up when the broker is slow.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from millrace.app.tools.local_broker.topics import partitions_of
from millrace.consumers.errors import MillraceError, TopicMissingError, UnreachableError, text_of

_READ_BYTES = 256 * 1024
_SLICES_PER_S = 20
_LARGEST_SLICE = 5_000


class Readable(Protocol):
    """A binary file that returns what there is, without waiting for more."""

    def read1(self, size: int = ..., /) -> bytes:
        """Return at most `size` bytes; none at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRate:
    """The rate, and the number of records."""

    rate: float | None = None
    """Records a second; None for as fast as it goes."""
    count: int | None = None
    """Records at most; None for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was written."""

    topic: str
    partitions: int
    records: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.records:,} records to {self.topic} ({self.partitions} partitions) in {self.seconds:.1f} s"

    def as_json(self) -> dict[str, Any]:
        """Return the report for a program."""
        return asdict(self)


def produce_lines(bootstrap_servers: str, topic: str, source: Readable, pace: ProduceRate) -> Report:
    """Write each line as one record, the partitions in turn."""
    partitions = partitions_of(bootstrap_servers, topic)
    if partitions == 0:
        raise TopicMissingError(f"topic {topic!r} does not exist on {bootstrap_servers}; create it with --create")
    started, written = time.monotonic(), 0
    with asyncio.Runner() as runner:
        writer = _LineWriter(topic, partitions)
        try:
            runner.run(writer.open(bootstrap_servers))
            for lines in _slices(_lines(source), pace):
                if pace.rate is not None:
                    moment = started + written / pace.rate
                    time.sleep(max(0.0, moment - time.monotonic()))
                runner.run(writer.write(lines))
                written += len(lines)
        finally:
            runner.run(writer.close())
    return Report(topic=topic, partitions=partitions, records=written, seconds=round(time.monotonic() - started, 3))


def _lines(source: Readable) -> Iterator[list[bytes]]:
    """Give the lines as they come, those of one read together. The last needs no newline."""
    rest = b""
    while part := source.read1(_READ_BYTES):
        *whole, rest = (rest + part).split(b"\n")
        yield whole
    if rest:
        yield [rest]


def _slices(reads: Iterator[list[bytes]], pace: ProduceRate) -> Iterator[Sequence[bytes]]:
    """Cut what was read into the pieces that are written at once: small ones where the pace is slow."""
    size = _LARGEST_SLICE if pace.rate is None else max(1, min(_LARGEST_SLICE, int(pace.rate / _SLICES_PER_S)))
    left = pace.count
    if left == 0:
        return
    for lines in reads:
        taken = lines if left is None else lines[:left]
        yield from (taken[at : at + size] for at in range(0, len(taken), size))
        if left is not None:
            left -= len(taken)
            if left == 0:
                return


class _LineWriter:
    """A producer whose errors are ours."""

    def __init__(self, topic: str, partitions: int) -> None:
        self._topic, self._partitions, self._next = topic, partitions, 0
        self._producer: AIOKafkaProducer | None = None

    async def open(self, bootstrap_servers: str) -> None:
        self._producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers, max_batch_size=512 * 1024)
        try:
            await self._producer.start()
        except KafkaError as error:
            raise UnreachableError(f"no Kafka answers at {bootstrap_servers} any more: {text_of(error)}") from error

    async def write(self, lines: Sequence[bytes]) -> None:
        assert self._producer is not None
        try:
            waiting = []
            for line in lines:
                waiting.append(await self._producer.send(self._topic, line, partition=self._next))
                self._next = (self._next + 1) % self._partitions
            await asyncio.gather(*waiting)
        except KafkaError as error:
            raise MillraceError(
                f"the broker does not take records for topic {self._topic!r}: {text_of(error)}"
            ) from error

    async def close(self) -> None:
        if self._producer is not None:
            await self._producer.stop()
