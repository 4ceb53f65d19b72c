"""Reads refused records again where they came from, for letters of a thread that no longer has the records' bytes.

Owns one Kafka client of its own, which joins no group, and runs on the loop of the dead letters. Reading is bounded in
time and bytes: a letter whose record does not come in time is sent without it, and says why. A topic that was created
again between the refusal and the reading gives its record at the same offset.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from millrace.consumers.dead_letters.letter import Absence, DeadLetter
from millrace.consumers.errors import text_of
from millrace.consumers.kafka.chunking import FetchedRecord
from millrace.consumers.kafka.client import KafkaClient, OffsetGoneError, PollError
from millrace.consumers.kafka.options import KafkaOptions
from millrace.consumers.records import Partition

log = logging.getLogger(__name__)

_WITHIN_S = 2.0
"""Longest time to read the records of one window of letters."""
_REST_S = 10.0
"""How long nothing is read after records did not come in time: the letters must not fall behind."""
_MOST_WAITING = 5000
"""While more letters wait, nothing is read: a save waits 30 s for them, and each 500 may take 2 s to read."""
_MOST_BYTES = 4 * 1024 * 1024
"""Bytes after which the rest of a window is left for its next attempt, which comes when these are acknowledged."""
_FETCH_BYTES = 64 * 1024
"""One record is wanted of each fetch. A batch that is larger still arrives whole."""
_POLL_RECORDS = 64
_POLL_MS = 200
_RETRY_S = 0.1
_CLOSE_S = 1.0

_Wanted = dict[Partition, deque[int]]
"""The offsets of each partition that are still to be read, ascending."""
_Records = dict[tuple[Partition, int], FetchedRecord | None]


class OriginReader:
    """Completes letters by their records. Everything here runs on one loop."""

    def __init__(self, kafka: KafkaOptions, clock: Callable[[], float] = time.monotonic) -> None:
        # The same topics and isolation level, so that exactly what the source read is read again.
        self._options = replace(
            kafka, fetch_bytes=_FETCH_BYTES, fetch_total_bytes=4 * _FETCH_BYTES, chunk_records=_POLL_RECORDS
        )
        self._clock = clock
        self._client: KafkaClient | None = None
        self._rests_until = float("-inf")
        self._without = Counter[Absence]()

    @property
    def connected(self) -> bool:
        """Whether a connection is open, which `close` would end."""
        return self._client is not None

    async def complete(self, letters: Mapping[int, DeadLetter], waiting: int) -> dict[int, DeadLetter]:
        """Return these letters with their records, or with why they have none; at least one of them is complete.

        Letters that do not fit into memory beside the others are returned as they are, to be completed later.
        `waiting` is the number of letters in the backlog.
        """
        unread = {index: letter for index, letter in letters.items() if letter.absent is Absence.UNREAD}
        if not unread:
            return dict(letters)
        held = sum(letter.nbytes for index, letter in letters.items() if index not in unread)
        if held >= _MOST_BYTES:
            return dict(letters)
        if waiting > _MOST_WAITING:
            return {**letters, **self._give_up(unread, Absence.TOO_MANY)}
        if self._clock() < self._rests_until:
            return {**letters, **self._give_up(unread, Absence.LATE)}
        return {**letters, **await self._read_in_time(unread)}

    async def close(self) -> None:
        """Close the connection; the next letters open one, without a rest."""
        self._rests_until = float("-inf")
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await client.close()

    async def _read_in_time(self, unread: Mapping[int, DeadLetter]) -> dict[int, DeadLetter]:
        places = {index: (letter.partition, letter.offset) for index, letter in unread.items()}
        records: _Records = {}
        failure: str | None = None
        try:
            async with asyncio.timeout(_WITHIN_S):
                # Each partition's offsets in the order in which they are read.
                wanted: _Wanted = {}
                for partition, offset in sorted(set(places.values())):
                    wanted.setdefault(partition, deque()).append(offset)
                await self._read(wanted, records)
        except TimeoutError:
            failure = f"Kafka did not give them within {_WITHIN_S:g} s"
        except Exception as error:  # noqa: BLE001 - no error of the client may hold a letter back
            failure = text_of(error)
        if failure is not None:
            await self.close()
            self._rests_until = self._clock() + _REST_S
        found = {index: records[place] for index, place in places.items() if place in records}
        removed = {index: unread[index] for index, record in found.items() if record is None}
        # Without a failure the others are left as they are, because the memory for this attempt was used up.
        late = {} if failure is None else {index: unread[index] for index in unread if index not in found}
        return {
            **{
                index: unread[index]._replace(
                    timestamp_ms=record.timestamp,
                    key=record.key,
                    value=record.value,
                    headers=record.headers,
                    absent=None,
                )
                for index, record in found.items()
                if record is not None
            },
            **self._give_up(removed, Absence.REMOVED),
            **self._give_up(late, Absence.LATE, f" ({failure})"),
        }

    async def _read(self, wanted: _Wanted, records: _Records) -> None:
        """Add to `records` what is at each offset, None where Kafka has nothing there any more."""
        if self._client is None:
            self._client = KafkaClient(self._options)
            await self._client.connect(_WITHIN_S)
        client = self._client
        client.assign({partition: offsets[0] for partition, offsets in wanted.items()})
        nbytes = 0
        while wanted and nbytes < _MOST_BYTES:
            for partition, (position, polled) in (await _poll(client, wanted)).items():
                by_offset, offsets = {record.offset: record for record in polled}, wanted[partition]
                while offsets and offsets[0] < position:
                    record = by_offset.get(offsets[0])
                    records[partition, offsets.popleft()] = record
                    nbytes += 0 if record is None else len(record.value or b"") + len(record.key or b"")
                if not offsets:
                    del wanted[partition]
                elif offsets[0] != await client.position(partition):
                    client.seek(partition, offsets[0])

    def _give_up(self, letters: Mapping[int, DeadLetter], why: Absence, more: str = "") -> dict[int, DeadLetter]:
        """Return the letters without their records, and log how many there were so far."""
        if letters:
            self._without[why] += len(letters)
            counts = ", ".join(f"{count} {reason}" for reason, count in self._without.items())
            log.warning("dead letters that say only where their records are, so far: %s%s", counts, more)
        return {index: letter._replace(absent=why) for index, letter in letters.items()}


async def _poll(client: KafkaClient, wanted: _Wanted) -> dict[Partition, tuple[int, Sequence[FetchedRecord]]]:
    """Poll once. Return how far each partition is read now, and the records that came."""
    try:
        polled = await client.poll(wanted, _POLL_MS)
    except OffsetGoneError as gone:
        first = (await client.beginnings([gone.partition]))[gone.partition]
        return {gone.partition: (max(first, gone.offset + 1), ())}
    except PollError:
        for partition, offsets in wanted.items():
            client.seek(partition, offsets[0])
        await asyncio.sleep(_RETRY_S)
        return {}
    return {partition: (await client.position(partition), polled.get(partition, ())) for partition in wanted}
