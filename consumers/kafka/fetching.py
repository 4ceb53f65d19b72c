"""One incarnation's fetching: from given positions into a given hand-off, until told otherwise.

Owns the positions of its incarnation and at most one chunk a partition that the hand-off has refused. It is one task
on the consumer's loop; a turn takes what one poll returned, some milliseconds. Full, it polls only the partitions that
have room, and when none has, it waits for room and nobody polls. Which may be read at all, `admission` knows. It ends
by reaching `until` (`Handoff.end`), by an error that it may not live with (`Handoff.fail`), by the receiver's leaving,
or by being cancelled.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from consumers.errors import DataLossError, HandoffClosed, MillraceError, SourceError, UnreachableError
from consumers.fingerprints import Fingerprint
from consumers.handoff import SendEnd
from consumers.kafka.admission import Admission
from consumers.kafka.chunking import FetchedRecord, chunk_of, empty_chunk, records_between
from consumers.kafka.client import KafkaClient, OffsetGoneError, PollError
from consumers.kafka.options import KafkaOptions
from consumers.kafka.statistics import SourceMeter
from consumers.records import Chunk, Partition

log = logging.getLogger(__name__)

_POLL_MS = 100
_POLL_BESIDE_FULL_MS = 10
"""A poll cannot be woken by room that appears elsewhere, so it is short while some partition waits for room."""
_LOOK_EVERY_S = 0.5
_SWEEP_EVERY_S = 0.1
_RETRY_S = 0.5
_RETRIES = 20
"""Failed polls in a row before a passing trouble counts as a lasting one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incarnation:
    """What is to be fetched."""

    number: int
    positions: Mapping[Partition, int]
    fingerprints: Mapping[Partition, Fingerprint | None]
    """By what the partitions are known of which something is settled; None where no record is on file."""
    until: Mapping[Partition, int] | None
    handoff: SendEnd


class Fetching:
    """Fetches one incarnation."""

    def __init__(
        self,
        incarnation: Incarnation,
        *,
        client: KafkaClient,
        options: KafkaOptions,
        meter: SourceMeter,
        room: asyncio.Event,
    ) -> None:
        self._number = incarnation.number
        self._positions = dict(incarnation.positions)
        self._until = incarnation.until
        self._handoff = incarnation.handoff
        self._client = client
        self._options = options
        self._meter = meter
        self._room = room
        self._held: dict[Partition, Chunk] = {}
        self._admission = Admission(
            self._positions, incarnation.fingerprints, client=client, options=options, meter=meter
        )
        self._look_due = self._sweep_due = 0.0
        self._failures = 0

    async def run(self) -> None:
        """The task's body. Whatever goes wrong reaches the receiver."""
        try:
            self._meter.begin(self._number, self._positions)
            while not self._reached():
                await self._turn()
            self._handoff.end()
        except HandoffClosed:
            log.debug("The receiver of incarnation %d has left", self._number)
        except MillraceError as error:
            self._handoff.fail(error)
        except Exception as error:
            log.exception("Fetching failed unexpectedly")
            failure = SourceError(f"fetching failed unexpectedly ({type(error).__name__}): the log has its traceback")
            failure.__cause__ = error
            self._handoff.fail(failure)
        finally:
            self._meter.stopped()

    async def _turn(self) -> None:
        if await self._admission.look(self._positions):
            self._share_out()
        await self._look_at_partitions()
        self._offer_held()
        unfinished = [p for p in self._positions if self._admission.admits(p) and not self._finished(p)]
        ready = [p for p in unfinished if p not in self._held and self._handoff.has_room(p)]
        if not ready:
            await self._wait_for_room()
            return
        try:
            found = await self._client.poll(ready, _POLL_MS if len(ready) == len(unfinished) else _POLL_BESIDE_FULL_MS)
        except OffsetGoneError as gone:
            await self._out_of_range(gone)
        except PollError as error:
            await self._seek_again(error)
        else:
            if self._client.doubted:  # what was found may be of another topic: it is found again if it is not
                return
            if found:
                self._failures = 0
            await self._take_all(found)
            await self._sweep(ready, idle=not found)
            await asyncio.sleep(0)  # a poll that finds records at hand never lets the loop turn by itself

    async def _take_all(self, found: Mapping[Partition, Sequence[FetchedRecord]]) -> None:
        fetched_at = time.monotonic()
        for partition, records in found.items():
            start = self._positions[partition]
            reached = max(await self._client.position(partition), start)
            end, until = self._cut(partition, reached)
            wanted = records_between(records, start, until)
            if records[0].offset < start:
                self._meter.stale(sum(record.offset < start for record in records))
            if wanted:
                chunk = chunk_of(wanted, partition, self._number, start=start, end=end, fetched_at=fetched_at)
            elif end > start:
                chunk = empty_chunk(partition, self._number, start=start, end=end, fetched_at=fetched_at)
            else:
                continue
            self._send(chunk)

    async def _sweep(self, partitions: Sequence[Partition], *, idle: bool) -> None:
        """Pass the offsets at the end of a partition that hold no record: the client moves over them in silence."""
        now = time.monotonic()
        if not idle and now < self._sweep_due:
            return
        self._sweep_due = now + _SWEEP_EVERY_S
        for partition in partitions:
            start = self._positions[partition]
            if partition in self._held or self._finished(partition):
                continue
            end, _ = self._cut(partition, await self._client.position(partition))
            if end > start:
                self._send(empty_chunk(partition, self._number, start=start, end=end, fetched_at=now))

    def _send(self, chunk: Chunk) -> None:
        self._positions[chunk.partition] = chunk.end
        self._admission.fetched(chunk)
        if self._handoff.offer(chunk):
            self._meter.fetched(chunk)
        else:
            self._held[chunk.partition] = chunk

    def _offer_held(self) -> None:
        for partition, chunk in list(self._held.items()):
            if self._handoff.offer(chunk):
                self._meter.fetched(chunk)
                del self._held[partition]

    async def _wait_for_room(self) -> None:
        try:
            async with asyncio.timeout(_LOOK_EVERY_S):
                await self._room.wait()
        except TimeoutError:
            return
        self._room.clear()

    # Ends.

    def _cut(self, partition: Partition, end: int) -> tuple[int, int | None]:
        """Where a chunk may end at most, and the offset to stop at."""
        until = None if self._until is None else self._until.get(partition)
        return (end if until is None else min(end, max(until, self._positions[partition]))), until

    def _finished(self, partition: Partition) -> bool:
        return self._until is not None and self._positions[partition] >= self._until.get(partition, 0)

    def _reached(self) -> bool:
        drained = self._until is not None and not self._held and self._admission.complete
        return drained and all(map(self._finished, self._positions))

    # Trouble.

    async def _seek_again(self, error: PollError) -> None:
        """After a failed poll the client may stand past records that it never handed out."""
        self._failures += 1
        if self._failures >= _RETRIES:
            raise SourceError(f"fetching fails again and again: {error}; is the log of the broker sound?")
        self._meter.trouble(f"a poll failed: {error}")
        for partition, position in self._positions.items():
            if self._admission.admits(partition):
                self._client.seek(partition, position)
        await asyncio.sleep(_RETRY_S)

    async def _out_of_range(self, gone: OffsetGoneError) -> None:
        partition = gone.partition
        position = self._positions[partition]
        try:
            first = (await self._client.beginnings([partition]))[partition]
            end = (await self._client.ends([partition]))[partition]
        except UnreachableError as error:
            self._meter.unanswered(str(error))
            self._client.seek(partition, position)
            return
        if position < first:
            self._pass_lost(partition, first)
            self._client.seek(partition, first)
        elif position > end:
            self._admission.doubt([partition])
        else:
            await self._seek_again(PollError(str(gone)))

    def _pass_lost(self, partition: Partition, first: int) -> None:
        position = self._positions[partition]
        if self._options.out_of_range == "fail":
            raise DataLossError(
                f"offsets {position}..{first - 1} of {partition} are gone by retention: set kafka.out_of_range: "
                "earliest to go on and count the gap, or rewind to an offset that Kafka still has"
            )
        end, _ = self._cut(partition, first)
        log.warning("Offsets %d to %d of %s are gone by retention and count as lost", position, end - 1, partition)
        now = time.monotonic()
        self._send(empty_chunk(partition, self._number, start=position, end=end, fetched_at=now, lost=end - position))

    # Partitions that come and go.

    async def _look_at_partitions(self) -> None:
        now = time.monotonic()
        if now < self._look_due:
            return
        self._look_due = now + _LOOK_EVERY_S
        known = set(self._client.partitions())
        new = known - self._positions.keys()
        if self._options.freeze_partitions or self._until is not None:
            self._meter.waiting(new)
        elif new:
            await self._join(new)

    async def _join(self, new: set[Partition]) -> None:
        try:
            beginnings = await self._client.beginnings(new)
        except MillraceError as error:
            self._meter.trouble(f"a new partition could not join yet: {error}")
            return
        log.info("New partitions join: %s", ", ".join(f"{p} at {beginnings[p]}" for p in sorted(beginnings)))
        self._positions |= beginnings
        self._meter.joined(beginnings)
        self._share_out()

    def _share_out(self) -> None:
        """Assigning anew drops all positions of the client: seek them all."""
        self._handoff.set_partitions(max(1, len(self._positions)))
        self._client.assign({p: at for p, at in self._positions.items() if self._admission.admits(p)})
