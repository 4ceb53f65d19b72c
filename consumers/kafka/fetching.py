"""Fetching one incarnation: from given positions into a given hand-off, until it ends or is cancelled.

Owns the positions of its incarnation and at most one chunk per partition that the hand-off has refused. It is one task
on the consumer's loop. One iteration handles one poll, some milliseconds of work:

1. Admission checks the partitions that are doubted. When this changes which partitions may be read, they are assigned
   again, each at its position.
2. New partitions join at their beginnings, or are only reported where they may not join.
3. Chunks that the hand-off refused are offered again. Of each partition that is replayed from the archive, the next
   chunk is sent if there is room; one whose archive ends is doubted, so that it is recognised before Kafka is read.
4. The partitions to poll are chosen: admitted, not replayed, not finished, no chunk held, room in the hand-off. When
   there are none, the task waits for room and does not poll.
5. The chosen partitions are polled. A failure moves no position except past offsets that are counted as lost. A
   partition whose position lies before Kafka's first offset is replayed from the archive, if that has it.
6. What was polled is dropped if a doubt was raised meanwhile, as it may come from another topic of the same name. The
   positions have not moved, so step 1 seeks back to them.
7. Each partition's records become one chunk that begins exactly at the position, and covers the offsets without a
   record that were polled behind them. The position moves to the chunk's end before the chunk is offered. A chunk that
   is refused is held, and nothing more of its partition is polled.
8. Offsets without a record that came alone, such as an aborted transaction at the end, are passed by empty chunks.

The task ends at `until` (`SendEnd.end`), at an error that does not pass (`SendEnd.fail`), when the receiver has closed
the hand-off, or when it is cancelled.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace.consumers.errors import (
    ArchiveAwayError,
    DataLossError,
    HandoffClosed,
    MillraceError,
    SourceError,
    UnreachableError,
)
from millrace.consumers.fingerprints import Fingerprint
from millrace.consumers.handoff import SendEnd
from millrace.consumers.kafka.admission import Admission
from millrace.consumers.kafka.chunking import FetchedRecord, chunk_of, empty_chunk, records_between
from millrace.consumers.kafka.client import KafkaClient, OffsetGoneError, PollError
from millrace.consumers.kafka.options import KafkaOptions
from millrace.consumers.kafka.replaying import NO_HISTORY, History, Replaying
from millrace.consumers.kafka.statistics import SourceMeter
from millrace.consumers.records import Chunk, Partition

log = logging.getLogger(__name__)


_POLL_MS = 100
_POLL_BESIDE_FULL_MS = 10
"""Used while some partition waits for room: room that appears in the hand-off cannot interrupt a poll."""
_LOOK_EVERY_S = 0.5
_SWEEP_EVERY_S = 0.1
_RETRY_S = 0.5
_REPEAT_S = 60.0
"""How often the log repeats that the archive is away."""
_RETRIES = 20
"""After this many failed polls in a row, fetching ends with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incarnation:
    """What to fetch, from where, and where to send it."""

    number: int
    positions: Mapping[Partition, int]
    fingerprints: Mapping[Partition, Fingerprint | None]
    """The fingerprint of each partition's last settled record; None where none was recorded."""
    until: Mapping[Partition, int] | None
    """The offset to stop at, by partition, itself not read; None for an incarnation without an end."""
    handoff: SendEnd


class Fetching:
    """The task that fetches one incarnation."""

    def __init__(
        self,
        incarnation: Incarnation,
        *,
        client: KafkaClient,
        options: KafkaOptions,
        meter: SourceMeter,
        room: asyncio.Event,
        history: History = NO_HISTORY,
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
        self._replaying = Replaying(history, incarnation.number)
        self._look_due = self._sweep_due = self._away_due = 0.0
        self._failures = 0

    async def run(self) -> None:
        """Iterate until the end. Every error reaches the receiver through the hand-off."""
        try:
            self._meter.begin(self._number, self._positions)
            while not self._at_end():
                await self._iterate()
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

    async def _iterate(self) -> None:
        """Do the steps 1 to 8 of the module's docstring once."""
        if await self._admission.look(self._positions):  # (1)
            self._assign_all()
        await self._look_for_new_partitions()  # (2)
        for chunk in list(self._held.values()):  # (3)
            self._offer(chunk)
        replayed = await self._replay()
        polled_ones = [p for p in self._positions if self._admission.admits(p) and p not in self._replaying]  # (4)
        unfinished = [p for p in polled_ones if not self._finished(p)]
        ready = [p for p in unfinished if p not in self._held and self._handoff.has_room(p)]
        # The client would take an empty list for all partitions, the full ones included.
        if not ready:
            if not replayed:
                await self._wait_for_room()
            return
        try:
            waits_for_room = len(ready) < len(unfinished) or self._replaying.partitions
            timeout_ms = 0 if replayed else _POLL_BESIDE_FULL_MS if waits_for_room else _POLL_MS
            polled = await self._client.poll(ready, timeout_ms)  # (5)
        except OffsetGoneError as gone:
            await self._handle_gone_offset(gone)
            return
        except PollError as error:
            await self._seek_again(error)
            return
        if self._client.doubted:  # (6)
            return
        if polled:
            self._failures = 0
        await self._send_records(polled)  # (7)
        await self._pass_empty_ends(ready, idle=not polled)  # (8)
        await asyncio.sleep(0)  # a poll that finds records buffered does not yield to the loop by itself

    async def _replay(self) -> bool:
        """Send the next chunk of each replayed partition that has room. Return whether anything was done."""
        done = False
        for partition in self._replaying.partitions:
            if partition in self._held or self._finished(partition) or not self._handoff.has_room(partition):
                continue
            start = self._positions[partition]
            try:
                chunk = await self._replaying.next_chunk(partition, start, self._stop_at(partition))
            except ArchiveAwayError as error:
                await self._wait_for_archive(error)
                continue
            if chunk is None:
                self._admission.doubt([partition])
            else:
                self._send(chunk)
            done = True
        return done

    async def _send_records(self, polled: Mapping[Partition, Sequence[FetchedRecord]]) -> None:
        fetched_at = time.monotonic()
        for partition, records in polled.items():
            start = self._positions[partition]
            # The client's position is past control records as well, which the poll does not return.
            reached = max(await self._client.position(partition), start)
            end, until = self._limited(partition, reached)
            wanted = records_between(records, start, until)
            # A poll in flight across a seek may return records of the old position.
            if records[0].offset < start:
                self._meter.stale(sum(record.offset < start for record in records))
            if wanted:
                self._send(chunk_of(wanted, partition, self._number, start=start, end=end, fetched_at=fetched_at))
            elif end > start:
                self._send(empty_chunk(partition, self._number, start=start, end=end, fetched_at=fetched_at))

    async def _pass_empty_ends(self, partitions: Sequence[Partition], *, idle: bool) -> None:
        """Send empty chunks for the offsets without a record that the client has passed without returning anything."""
        now = time.monotonic()
        # This costs a call to the client per partition: too much after each poll that returns records.
        if not idle and now < self._sweep_due:
            return
        self._sweep_due = now + _SWEEP_EVERY_S
        for partition in partitions:
            start = self._positions[partition]
            if partition in self._held or self._finished(partition):
                continue
            end, _ = self._limited(partition, await self._client.position(partition))
            if end > start:
                self._send(empty_chunk(partition, self._number, start=start, end=end, fetched_at=now))

    def _send(self, chunk: Chunk) -> None:
        # The position moves even if the chunk is refused: the chunk is held then, and will not be fetched again.
        self._positions[chunk.partition] = chunk.end
        self._admission.fetched(chunk)
        self._offer(chunk)

    def _offer(self, chunk: Chunk) -> None:
        """Offer the chunk, and hold it if the hand-off refuses it."""
        if self._handoff.offer(chunk):
            self._held.pop(chunk.partition, None)
            self._meter.fetched(chunk)
        else:
            self._held[chunk.partition] = chunk

    async def _wait_for_room(self) -> None:
        try:
            async with asyncio.timeout(_LOOK_EVERY_S):
                await self._room.wait()
        except TimeoutError:
            return
        # Before the next look at the hand-off, so that room which appears after that look sets it again.
        self._room.clear()

    # The end of a run that has one.

    def _limited(self, partition: Partition, end: int) -> tuple[int, int | None]:
        """Return how far a chunk that would reach `end` may reach, and the offset to stop at (None: no end)."""
        until = self._stop_at(partition)
        return (end if until is None else min(end, max(until, self._positions[partition]))), until

    def _stop_at(self, partition: Partition) -> int | None:
        return None if self._until is None else self._until.get(partition)

    def _finished(self, partition: Partition) -> bool:
        return self._until is not None and self._positions[partition] >= self._until.get(partition, 0)

    def _at_end(self) -> bool:
        drained = self._until is not None and not self._held and self._admission.complete
        return drained and all(self._finished(p) or self._admission.is_gone(p) for p in self._positions)

    # Failed polls.

    async def _seek_again(self, error: PollError) -> None:
        """Seek every partition back to its position: a failed poll may have passed records without returning them."""
        self._failures += 1
        if self._failures >= _RETRIES:
            raise SourceError(f"fetching fails again and again: {error}; is the log of the broker sound?")
        self._meter.trouble(f"a poll failed: {error}")
        for partition, position in self._positions.items():
            if self._admission.admits(partition) and partition not in self._replaying:
                self._client.seek(partition, position)
        await asyncio.sleep(_RETRY_S)

    async def _handle_gone_offset(self, gone: OffsetGoneError) -> None:
        """Pass offsets that retention removed, or doubt a partition that ends before its position."""
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
            try:
                await self._read_before_kafka(partition, position, first)
            except ArchiveAwayError as error:
                self._client.seek(partition, position)
                await self._wait_for_archive(error)
        elif position > end:
            self._admission.doubt([partition])
        else:
            await self._seek_again(PollError(str(gone)))

    async def _read_before_kafka(self, partition: Partition, position: int, first: int) -> None:
        """Replay the offsets before Kafka's first from the archive; pass those that it does not have either."""
        settled = self._admission.settled(partition)
        if await self._replaying.begin(partition, position, self._stop_at(partition), settled):
            # Without it, as the client would ask Kafka for it again and again.
            self._assign_all()
            return
        archived = await self._replaying.first_behind(partition, position)
        self._pass_lost(partition, first if archived is None else min(first, archived))
        self._client.seek(partition, self._positions[partition])

    async def _wait_for_archive(self, error: ArchiveAwayError) -> None:
        """Wait a moment before the archive is asked once more: nothing is passed that it may have."""
        self._meter.trouble(str(error))
        if time.monotonic() >= self._away_due:
            self._away_due = time.monotonic() + _REPEAT_S
            log.warning("Reading waits for the archive: %s", error)
        await asyncio.sleep(_RETRY_S)

    def _pass_lost(self, partition: Partition, first: int) -> None:
        """Send the offsets before `first` as lost, or raise DataLossError where the settings ask to fail."""
        position = self._positions[partition]
        if self._options.out_of_range == "fail":
            raise DataLossError(
                f"offsets {position}..{first - 1} of {partition} are gone by retention: set kafka.out_of_range: "
                "earliest to go on and count the gap, or rewind to an offset that Kafka still has"
            )
        end, _ = self._limited(partition, first)
        log.warning("Offsets %d to %d of %s are gone by retention and count as lost", position, end - 1, partition)
        now = time.monotonic()
        self._send(empty_chunk(partition, self._number, start=position, end=end, fetched_at=now, lost=end - position))

    # New partitions.

    async def _look_for_new_partitions(self) -> None:
        now = time.monotonic()
        if self._options.only_given or now < self._look_due:
            return
        self._look_due = now + _LOOK_EVERY_S
        known = set(self._client.partitions())
        new = known - self._positions.keys()
        # A run with an end has one offset per partition to stop at, and none for a partition that appears later.
        if self._options.freeze_partitions or self._until is not None:
            self._meter.waiting(new)
        elif new:
            try:
                beginnings = await self._client.beginnings(new)
            except MillraceError as error:
                self._meter.trouble(f"a new partition could not join yet: {error}")
                return
            log.info("New partitions join: %s", ", ".join(f"{p} at {beginnings[p]}" for p in sorted(beginnings)))
            self._positions |= beginnings
            self._meter.joined(beginnings)
            self._assign_all()

    def _assign_all(self) -> None:
        """Share the hand-off among all partitions, and assign those that are admitted at their positions."""
        self._handoff.set_partitions(max(1, len(self._positions)))
        # An assignment drops the client's buffers and positions of all partitions, so every one is sought again.
        read = (p for p in self._positions if self._admission.admits(p) and p not in self._replaying)
        self._client.assign({p: self._positions[p] for p in read})
