"""Recognising partitions: whether they are those whose records were settled, or others under the same names.

The client knows a topic only by its name, and a stored offset means nothing in a topic that was created again.
Therefore, before a partition is read from a position, the last settled record is read again and compared.

Owns nothing; runs on the consumer's loop; replaces the client's assignment, which the caller must set again afterwards.
Bounded in time: a partition that has not answered in time is not among the results.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from millrace.consumers.fingerprints import Fingerprint, Sameness
from millrace.consumers.kafka.chunking import fingerprint_of
from millrace.consumers.kafka.client import OffsetGoneError, PollError
from millrace.consumers.kafka.fetched_columns import FetchedRecord
from millrace.consumers.records import Partition

_PATIENCE_S = 2.0
"""A leader that was just elected may not know its own end yet, so an end before the position is accepted this long."""
_RETRY_S = 0.2
_READ_S = 10.0
"""Longest time to read the settled records again."""
_POLL_MS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPosition:
    """The offset that a partition is to be read from, and the fingerprint of its last settled record."""

    position: int
    fingerprint: Fingerprint | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Identification:
    """What was found out about one partition."""

    sameness: Sameness
    first: int
    """The first offset that the partition has now."""
    seen: str
    """What was seen, as the rest of a sentence that begins with the partition's name."""


class PartitionReader(Protocol):
    """Looks up offsets of partitions, and reads them."""

    async def beginnings(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the first offset of each partition."""

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return one past the last offset of each partition."""

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Read these partitions from these positions."""

    def seek(self, partition: Partition, position: int) -> None:
        """Read on from this position."""

    async def position(self, partition: Partition) -> int:
        """Return the next offset to fetch."""

    async def poll(
        self, partitions: Iterable[Partition], timeout_ms: int
    ) -> Mapping[Partition, Sequence[FetchedRecord]]:
        """Return records as soon as there are any."""


async def recognise(log: PartitionReader, places: Mapping[Partition, ReadPosition]) -> dict[Partition, Identification]:
    """Return what each partition turns out to be, without those that did not answer in time.

    Raises UnreachableError where Kafka does not answer at all.
    """
    firsts, ends = await log.beginnings(places), await _ends(log, places)
    settled = {partition: place.fingerprint for partition, place in places.items() if place.fingerprint is not None}
    readable = {p: mark.offset for p, mark in settled.items() if firsts[p] <= mark.offset < ends[p]}
    records = await _read(log, readable)
    findings = {}
    for partition, place in places.items():
        # No answer in time proves nothing, so the partition is left out and the caller asks again.
        if partition in readable and partition not in records:
            continue
        sameness, seen = _compare(place.fingerprint, records.get(partition))
        if ends[partition] < place.position:
            sameness = Sameness.TRUNCATED if sameness is Sameness.SAME else Sameness.DIFFERENT
            seen = f"ends at offset {ends[partition]}, yet {place.position} is the next to be read"
        findings[partition] = Identification(sameness=sameness, first=firsts[partition], seen=seen)
    return _decide_by_topic(findings)


def _compare(kept: Fingerprint | None, record: FetchedRecord | None) -> tuple[Sameness, str]:
    if kept is None:
        return Sameness.UNKNOWN, "has no settled record on file to be known by"
    if record is None:
        return Sameness.UNKNOWN, f"no longer has the record at offset {kept.offset}, by which it would be known"
    if fingerprint_of(record) == kept:
        return Sameness.SAME, f"has the record at offset {kept.offset} that was settled"
    return Sameness.DIFFERENT, f"has another record at offset {kept.offset} than the one that was settled"


def _decide_by_topic(findings: Mapping[Partition, Identification]) -> dict[Partition, Identification]:
    """Call an unknown partition different when its topic has different partitions and none that is the same.

    A topic is created again as a whole.
    """
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
    """Return the ends of the partitions, and wait a while for one that is before its position."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        ends = await log.ends(places)
        truncated = any(ends[partition] < place.position for partition, place in places.items())
        if not truncated or time.monotonic() >= deadline:
            return ends
        await asyncio.sleep(_RETRY_S)


async def _read(log: PartitionReader, offsets: Mapping[Partition, int]) -> dict[Partition, FetchedRecord | None]:
    """Return the record at each offset, None where there is none, without those that did not answer in time."""
    records: dict[Partition, FetchedRecord | None] = {}
    if not offsets:
        return records
    log.assign(offsets)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_READ_S):
            while waiting := {partition: offset for partition, offset in offsets.items() if partition not in records}:
                records |= await _poll_once(log, waiting)
    return records


async def _poll_once(log: PartitionReader, waiting: Mapping[Partition, int]) -> dict[Partition, FetchedRecord | None]:
    """Return the records that one poll has found, and None where the position has passed the offset without one."""
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
    return {
        partition: next((record for record in polled.get(partition, ()) if record.offset == waiting[partition]), None)
        for partition in passed
    }
