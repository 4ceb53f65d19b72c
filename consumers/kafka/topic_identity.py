"""Recognising partitions: whether they are those whose records were settled, or others under the same names.

The client knows topics by their names alone, and an offset that is kept means nothing in a topic that was created
again. So before a partition is read from a position, the last record that was settled of it is read once more.

Owns nothing; runs on the consumer's loop; takes the client's assignment, which must be set anew afterwards. Bounded:
who has not answered in time is not among the findings.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from consumers.fingerprints import Fingerprint, Sameness
from consumers.kafka.chunking import FetchedRecord, fingerprint_of
from consumers.kafka.client import OffsetGoneError, PollError
from consumers.records import Partition

_PATIENCE_S = 2.0
"""A leader that was just elected may not know its own end yet: so long an end before the position may pass."""
_RETRY_S = 0.2
_READ_S = 10.0
_POLL_MS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPosition:
    """Where a partition is to be read, and by what it is known."""

    position: int
    fingerprint: Fingerprint | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Identification:
    """What became of the question."""

    sameness: Sameness
    first: int
    """The first offset that the partition has now."""
    seen: str
    """What was seen, to follow the partition's name in a sentence."""


class PartitionReader(Protocol):
    """Who can be asked about partitions, and read them."""

    async def beginnings(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The first offset of each."""

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """One past the last offset of each."""

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Read these from there."""

    def seek(self, partition: Partition, position: int) -> None:
        """Go on from there."""

    async def position(self, partition: Partition) -> int:
        """The next offset to be fetched."""

    async def poll(
        self, partitions: Iterable[Partition], timeout_ms: int
    ) -> Mapping[Partition, Sequence[FetchedRecord]]:
        """Records, as soon as there are any."""


async def recognise(log: PartitionReader, places: Mapping[Partition, ReadPosition]) -> dict[Partition, Identification]:
    """What each partition turns out to be. Raises UnreachableError where Kafka does not answer at all."""
    firsts, ends = await log.beginnings(places), await _ends(log, places)
    kept = {partition: at.fingerprint for partition, at in places.items() if at.fingerprint is not None}
    there = {p: mark for p, mark in kept.items() if firsts[p] <= mark.offset < ends[p]}
    records = await _read(log, {partition: mark.offset for partition, mark in there.items()})
    findings = {}
    for partition, place in places.items():
        if partition in there and partition not in records:
            continue
        sameness, seen = _compared(place.fingerprint, partition in there, records.get(partition))
        if ends[partition] < place.position:
            sameness = Sameness.TRUNCATED if sameness is Sameness.SAME else Sameness.DIFFERENT
            seen = f"ends at offset {ends[partition]}, yet {place.position} is the next to be read"
        findings[partition] = Identification(sameness=sameness, first=firsts[partition], seen=seen)
    return _as_topics(findings)


def _compared(kept: Fingerprint | None, there: bool, record: FetchedRecord | None) -> tuple[Sameness, str]:
    if kept is None:
        return Sameness.UNKNOWN, "has no settled record on file to be known by"
    if not there or record is None:
        return Sameness.UNKNOWN, f"no longer has the record at offset {kept.offset}, by which it would be known"
    if fingerprint_of(record) == kept:
        return Sameness.SAME, f"has the record at offset {kept.offset} that was settled"
    return Sameness.DIFFERENT, f"has another record at offset {kept.offset} than the one that was settled"


def _as_topics(findings: Mapping[Partition, Identification]) -> dict[Partition, Identification]:
    """A topic is created again as a whole: a partition that cannot be told goes with one that can."""
    by_topic: dict[str, set[Sameness]] = {}
    for partition, finding in findings.items():
        by_topic.setdefault(partition.topic, set()).add(finding.sameness)
    return {
        partition: replace(finding, sameness=Sameness.DIFFERENT, seen="is of a topic that was created again")
        if finding.sameness is Sameness.UNKNOWN
        and Sameness.DIFFERENT in by_topic[partition.topic]
        and Sameness.SAME not in by_topic[partition.topic]
        else finding
        for partition, finding in findings.items()
    }


async def _ends(log: PartitionReader, places: Mapping[Partition, ReadPosition]) -> dict[Partition, int]:
    until = time.monotonic() + _PATIENCE_S
    while True:
        ends = await log.ends(places)
        before = any(ends[partition] < place.position for partition, place in places.items())
        if not before or time.monotonic() >= until:
            return ends
        await asyncio.sleep(_RETRY_S)


async def _read(log: PartitionReader, offsets: Mapping[Partition, int]) -> dict[Partition, FetchedRecord | None]:
    """The record at each offset, None where there is none; without those that did not answer in time."""
    found: dict[Partition, FetchedRecord | None] = {}
    if not offsets:
        return found
    log.assign(offsets)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_READ_S):
            while waiting := {partition: at for partition, at in offsets.items() if partition not in found}:
                found |= await _look(log, waiting)
    return found


async def _look(log: PartitionReader, waiting: Mapping[Partition, int]) -> dict[Partition, FetchedRecord | None]:
    """One poll's answers. A position that has moved on without a record has passed control records or a gap."""
    try:
        polled = await log.poll(waiting, _POLL_MS)
    except OffsetGoneError as gone:
        return {gone.partition: None}
    except PollError:
        for partition, offset in waiting.items():
            log.seek(partition, offset)
        await asyncio.sleep(_RETRY_S)
        return {}
    passed = {partition for partition, offset in waiting.items() if await log.position(partition) > offset}
    return {partition: _at(polled.get(partition, ()), waiting[partition]) for partition in passed}


def _at(records: Sequence[FetchedRecord], offset: int) -> FetchedRecord | None:
    return next((record for record in records if record.offset == offset), None)
