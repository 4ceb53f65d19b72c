"""Reads dead letters back out of their topic, for whoever asks what was set aside: no group, no commits.

Runs an event loop on the caller's thread while something is read; each reading is bounded in time.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from consumers.dead_letters.letter import OURS
from consumers.errors import ConfigError, UnreachableError
from consumers.kafka.chunking import FetchedRecord
from consumers.kafka.client import KafkaClient, OffsetGoneError, PollError
from consumers.kafka.options import KafkaOptions
from consumers.records import Headers, Partition

_WITHIN_S = 30.0
_CONNECT_S = 10.0
_POLL_MS = 200
_DEEPER = 8
"""How much further back is looked where markers stand in place of letters."""
T = TypeVar("T")
Positions = Mapping[Partition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedLetter:
    """A dead letter as its topic holds it."""

    place: Partition
    """Of the dead letters' topic."""
    place_offset: int
    sent_ms: int
    """When it was sent, in milliseconds since 1970."""
    ours: Mapping[str, str]
    """What millrace said of it: `topic`, `partition`, `offset`, `timestamp`, `reason`, `field`, `name`."""
    headers: Headers
    """The record's own."""
    key: bytes | None
    value: bytes | None

    @classmethod
    def of(cls, place: Partition, record: FetchedRecord) -> "ReceivedLetter":
        """Out of a record of the topic, whoever has written it."""
        theirs_first = reversed(record.headers)  # ours stand before the record's own, and are the ones to believe
        ours = {name.removeprefix(OURS): value for name, value in theirs_first if name.startswith(OURS)}
        return cls(
            place=place,
            place_offset=record.offset,
            sent_ms=record.timestamp,
            ours={name: (value or b"").decode("utf-8", "replace") for name, value in ours.items()},
            headers=tuple((name, value) for name, value in record.headers if not name.startswith(OURS)),
            key=record.key,
            value=None if ours.get("value") == b"null" else record.value,
        )

    @property
    def is_marker(self) -> bool:
        """Whether it is none at all, but says which letters were sent on (`consumers.dead_letters.redrive`)."""
        return "redriven" in self.ours and "reason" not in self.ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Letters:
    """Some letters of a topic."""

    total: int
    """How many places the topic has now: letters, markers, and what transactions and compaction leave empty."""
    newest: tuple[ReceivedLetter, ...]
    """The newest first."""


def newest_letters(options: KafkaOptions, count: int) -> Letters:
    """The newest letters of the topic in the options."""
    return _with_client(options, lambda client: _newest(client, count))


def letter_at(options: KafkaOptions, place: Partition, offset: int) -> ReceivedLetter | None:
    """The letter at this place; None where the topic has none there, or none any more."""

    async def look(client: KafkaClient) -> ReceivedLetter | None:
        if place not in client.partitions():
            raise ConfigError(
                f"{place} is no partition of the dead letters' topic; `millrace dead-letters list` has them"
            )
        end = (await client.ends([place]))[place]
        found = await _read(client, {place: offset}, {place: min(offset + 1, end)}) if offset < end else []
        return next((letter for letter in found if letter.place_offset == offset), None)

    return _with_client(options, look)


def _with_client(options: KafkaOptions, work: Callable[[KafkaClient], Awaitable[T]]) -> T:
    async def run() -> T:
        client = KafkaClient(options)
        try:
            await client.connect(_CONNECT_S)
            async with asyncio.timeout(_WITHIN_S):
                return await work(client)
        except TimeoutError:
            raise UnreachableError(f"Kafka at {options.servers} did not give the letters in {_WITHIN_S:g} s") from None
        finally:
            await client.close()

    return asyncio.run(run())


async def _newest(client: KafkaClient, count: int) -> Letters:
    """The last of each partition; the newest of those."""
    partitions = client.partitions()
    beginnings, ends = await client.beginnings(partitions), await client.ends(partitions)
    found = list[ReceivedLetter]()
    lacking, depth = dict(ends), count
    while lacking:
        starts = {partition: max(beginnings[partition], end - depth) for partition, end in lacking.items()}
        read = [letter for letter in await _read(client, starts, lacking) if not letter.is_marker]
        many = Counter(letter.place for letter in read)
        lacking = {at: ends[at] for at, start in starts.items() if start > beginnings[at] and many[at] < count}
        found += [letter for letter in read if letter.place not in lacking]
        depth *= _DEEPER
    found.sort(key=lambda letter: (letter.sent_ms, letter.place, letter.place_offset), reverse=True)
    total = sum(end - beginnings[partition] for partition, end in ends.items())
    return Letters(total=total, newest=tuple(found[:count]))


async def _read(client: KafkaClient, starts: Positions, ends: Positions) -> list[ReceivedLetter]:
    """All letters between these positions."""
    return [letter async for letter in each_letter(client, starts, ends)]


async def each_letter(client: KafkaClient, starts: Positions, ends: Positions) -> AsyncIterator[ReceivedLetter]:
    """The letters between these positions, in the order of each partition. TimeoutError where no more come.

    Whoever takes them may take their time: only Kafka's counts.
    """
    left = {partition: start for partition, start in starts.items() if start < ends[partition]}
    client.assign(left)
    waited_since = time.monotonic()
    while left:
        polled = await _polled(client, left)
        if not polled and time.monotonic() - waited_since > _WITHIN_S:
            raise TimeoutError
        for partition, records in polled.items():
            for record in records:
                if record.offset < ends[partition]:
                    yield ReceivedLetter.of(partition, record)
        for partition in list(left):
            left[partition] = await client.position(partition)
            if left[partition] >= ends[partition]:
                del left[partition]
        if polled:
            waited_since = time.monotonic()


async def _polled(client: KafkaClient, left: dict[Partition, int]) -> Mapping[Partition, Sequence[FetchedRecord]]:
    try:
        return await client.poll(left, _POLL_MS)
    except PollError:
        client.assign(left)
    except OffsetGoneError as gone:  # removed by retention meanwhile
        left[gone.partition] = (await client.beginnings([gone.partition]))[gone.partition]
        client.assign(left)
    return {}
