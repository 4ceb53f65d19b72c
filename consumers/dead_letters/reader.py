"""Reads dead letters from their topic, to show what was set aside. It uses no group and commits nothing.

Runs an event loop on the caller's thread while it reads; each read is bounded in time.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from millrace.consumers.dead_letters.letter import HEADER_PREFIX
from millrace.consumers.errors import ConfigError, UnreachableError
from millrace.consumers.kafka.chunking import FetchedRecord
from millrace.consumers.kafka.client import KafkaClient, OffsetGoneError, PollError
from millrace.consumers.kafka.options import KafkaOptions
from millrace.consumers.records import Headers, Partition
from millrace.consumers.suggested_command import suggested_command

_WITHIN_S = 30.0
_CONNECT_S = 10.0
_POLL_MS = 200
_DEEPER = 8
"""The factor by which the search goes further back when it finds markers instead of letters."""
T = TypeVar("T")
Positions = Mapping[Partition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedLetter:
    """A dead letter as its topic holds it."""

    place: Partition
    """The partition of the dead letters' topic."""
    place_offset: int
    """The letter's offset there."""
    sent_ms: int
    """When it was sent, in milliseconds since 1970."""
    ours: Mapping[str, str]
    """The headers that millrace added: `topic`, `partition`, `offset`, `timestamp`, `reason`, `field`, `schema`,
    `detail`, `name`."""
    headers: Headers
    """The headers of the record itself."""
    key: bytes | None
    value: bytes | None

    @classmethod
    def of(cls, place: Partition, record: FetchedRecord) -> "ReceivedLetter":
        """Return the letter in a record of the topic, even if another program has written it."""
        # Our headers come before the record's own. Reversed, ours overwrite a header of the record with the same name.
        last_to_first = [(name, value) for name, value in reversed(record.headers) if name.startswith(HEADER_PREFIX)]
        ours = {name.removeprefix(HEADER_PREFIX): value for name, value in last_to_first}
        return cls(
            place=place,
            place_offset=record.offset,
            sent_ms=record.timestamp,
            ours={name: (value or b"").decode("utf-8", "replace") for name, value in ours.items()},
            headers=tuple((name, value) for name, value in record.headers if not name.startswith(HEADER_PREFIX)),
            key=record.key,
            value=None if ours.get("value") == b"null" else record.value,
        )

    @property
    def is_marker(self) -> bool:
        """Whether it is not a letter but a marker that names redriven records (`consumers.dead_letters.redrive`)."""
        return "redriven" in self.ours and "reason" not in self.ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Letters:
    """The newest letters of a topic."""

    total: int
    """The number of offsets in the topic: letters, markers, and gaps that transactions and compaction leave."""
    newest: tuple[ReceivedLetter, ...]
    """The letters, newest first."""


def newest_letters(options: KafkaOptions, count: int) -> Letters:
    """Return the newest `count` letters of the topic in the options."""
    return _with_client(options, lambda client: _newest(client, count))


def letter_at(options: KafkaOptions, place: Partition, offset: int) -> ReceivedLetter | None:
    """Return the letter at this partition and offset, None where the topic has none there or none any more."""

    async def read_one(client: KafkaClient) -> ReceivedLetter | None:
        if place not in client.partitions():
            listing = suggested_command("dead-letters", "list")
            raise ConfigError(f"{place} is no partition of the dead letters' topic; `{listing}` has them")
        end = (await client.ends([place]))[place]
        letters = await _read(client, {place: offset}, {place: min(offset + 1, end)}) if offset < end else []
        return next((letter for letter in letters if letter.place_offset == offset), None)

    return _with_client(options, read_one)


def _with_client(options: KafkaOptions, work: Callable[[KafkaClient], Awaitable[T]]) -> T:
    """Run the work with a connected client. Raises UnreachableError when it takes too long."""

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
    """Read `count` letters from the end of each partition, and return the newest of all of them.

    The end of a partition may hold markers instead of letters. A partition with too few letters is read again from
    further back.
    """
    partitions = client.partitions()
    beginnings, ends = await client.beginnings(partitions), await client.ends(partitions)
    letters = list[ReceivedLetter]()
    incomplete, depth = dict(ends), count
    while incomplete:
        starts = {partition: max(beginnings[partition], end - depth) for partition, end in incomplete.items()}
        read = [letter for letter in await _read(client, starts, incomplete) if not letter.is_marker]
        read_of = Counter(letter.place for letter in read)
        incomplete = {p: ends[p] for p, start in starts.items() if start > beginnings[p] and read_of[p] < count}
        letters += [letter for letter in read if letter.place not in incomplete]
        depth *= _DEEPER
    letters.sort(key=lambda letter: (letter.sent_ms, letter.place, letter.place_offset), reverse=True)
    total = sum(end - beginnings[partition] for partition, end in ends.items())
    return Letters(total=total, newest=tuple(letters[:count]))


async def _read(client: KafkaClient, starts: Positions, ends: Positions) -> list[ReceivedLetter]:
    """Return all letters between these positions."""
    return [letter async for letter in each_letter(client, starts, ends)]


async def each_letter(client: KafkaClient, starts: Positions, ends: Positions) -> AsyncIterator[ReceivedLetter]:
    """Yield the letters between these positions, in order within each partition.

    Raises TimeoutError when no more arrive. The time that the caller spends on a letter does not count.
    """
    left = {partition: start for partition, start in starts.items() if start < ends[partition]}
    client.assign(left)
    waited_since = time.monotonic()
    while left:
        polled = await _poll(client, left)
        if not polled and time.monotonic() - waited_since > _WITHIN_S:
            raise TimeoutError
        for partition, records in polled.items():
            for record in records:
                if record.offset < ends[partition]:
                    yield ReceivedLetter.of(partition, record)
        for partition in list(left):
            # Not the last record's offset: a topic that redrives write to ends in the control records of transactions.
            left[partition] = await client.position(partition)
            if left[partition] >= ends[partition]:
                del left[partition]
        if polled:
            waited_since = time.monotonic()


async def _poll(client: KafkaClient, left: dict[Partition, int]) -> Mapping[Partition, Sequence[FetchedRecord]]:
    """Poll once. After a failure, assign again, past what retention has removed, and return nothing."""
    try:
        return await client.poll(left, _POLL_MS)
    except PollError:
        client.assign(left)
    except OffsetGoneError as gone:  # removed by retention meanwhile
        left[gone.partition] = (await client.beginnings([gone.partition]))[gone.partition]
        client.assign(left)
    return {}
