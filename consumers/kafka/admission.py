"""Admission: which partitions of an incarnation may be read: those that have a leader and are the same as before.

Owns the set of doubted partitions of one incarnation and the fingerprint of the last record fetched from each. Part of
the task that fetches, on the consumer's loop. A partition is doubted at the beginning, whenever the client gets an
answer that does not fit or loses a connection, and while the partition has no leader. It is admitted once it has been
recognised. While the broker is away, for however long, nothing is read.

The client knows a topic only by its name, and a stored offset means nothing in a topic that was created again.
Therefore, before a partition is read from a position, the last settled record is read again and compared. That
replaces the client's assignment, which the caller must set again afterwards, and it is bounded in time.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from millrace.consumers.errors import DataLossError, TopicRecreatedError, UnreachableError
from millrace.consumers.fingerprints import Fingerprint, Sameness
from millrace.consumers.kafka.chunking import FetchedRecord, fingerprint_of
from millrace.consumers.kafka.client import KafkaClient, OffsetGoneError, PollError
from millrace.consumers.kafka.options import KafkaOptions
from millrace.consumers.kafka.statistics import SourceMeter
from millrace.consumers.records import Chunk, Partition

log = logging.getLogger(__name__)


_LOOK_EVERY_S = 0.5
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


async def recognise(client: KafkaClient, places: Mapping[Partition, ReadPosition]) -> dict[Partition, Identification]:
    """Return what each partition turns out to be, without those that did not answer in time.

    Replaces the client's assignment. Raises UnreachableError if Kafka does not answer at all.
    """
    firsts, ends = await client.beginnings(places), await _ends(client, places)
    settled = {partition: place.fingerprint for partition, place in places.items() if place.fingerprint is not None}
    readable = {p: mark.offset for p, mark in settled.items() if firsts[p] <= mark.offset < ends[p]}
    # Read the record at each offset: None if there is none. Those that do not answer in time are left out.
    records: dict[Partition, FetchedRecord | None] = {}
    if readable:
        client.assign(readable)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_READ_S):
                while waiting := {p: offset for p, offset in readable.items() if p not in records}:
                    records |= await _poll_once(client, waiting)
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


async def _ends(client: KafkaClient, places: Mapping[Partition, ReadPosition]) -> dict[Partition, int]:
    """Return the ends of the partitions, and wait a while for one that is before its position."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        ends = await client.ends(places)
        truncated = any(ends[partition] < place.position for partition, place in places.items())
        if not truncated or time.monotonic() >= deadline:
            return ends
        await asyncio.sleep(_RETRY_S)


async def _poll_once(client: KafkaClient, waiting: Mapping[Partition, int]) -> dict[Partition, FetchedRecord | None]:
    """Return the records that one poll has found, and None where the position has passed the offset without one."""
    try:
        polled = await client.poll(waiting, _POLL_MS)
    except OffsetGoneError as gone:
        return {gone.partition: None}
    except PollError:
        for partition, offset in waiting.items():
            client.seek(partition, offset)
        await asyncio.sleep(_RETRY_S)
        return {}
    passed = {partition for partition, offset in waiting.items() if await client.position(partition) > offset}
    return {
        partition: next((record for record in polled.get(partition, ()) if record.offset == waiting[partition]), None)
        for partition in passed
    }


class Admission:
    """Decides which partitions of one incarnation may be read."""

    def __init__(
        self,
        positions: Iterable[Partition],
        fingerprints: Mapping[Partition, Fingerprint | None],
        *,
        client: KafkaClient,
        options: KafkaOptions,
        meter: SourceMeter,
    ) -> None:
        self._fingerprints = dict(fingerprints)
        """Of each partition of which something was settled or fetched; None where no fingerprint was recorded."""
        self._client, self._options, self._meter = client, options, meter
        self._doubted = set(positions)
        self._reported_unknown: set[Partition] = set()
        """Partitions of which the log already says that they could not be recognised."""
        self._away_since: dict[Partition, float] = {}
        self._missing: tuple[Partition, ...] = ()
        self._gone: frozenset[Partition] = frozenset()
        self._look_due = 0.0

    def admits(self, partition: Partition) -> bool:
        return partition not in self._doubted

    @property
    def complete(self) -> bool:
        """Whether no partition is doubted that is still there."""
        return self._doubted <= self._gone

    def is_gone(self, partition: Partition) -> bool:
        """Return whether its topic has fewer partitions by now, so that nothing more comes of this one."""
        return partition in self._gone

    def doubt(self, partitions: Iterable[Partition]) -> None:
        """Read no more of these partitions until they are recognised."""
        self._doubted |= set(partitions)

    def fetched(self, chunk: Chunk) -> None:
        """Recognise the partition by this chunk's last record from now on."""
        if chunk.fingerprint is not None:
            self._fingerprints[chunk.partition] = chunk.fingerprint

    def settled(self, partition: Partition) -> Fingerprint | None:
        """Return the fingerprint of the last record that was settled or fetched; None where none is known."""
        return self._fingerprints.get(partition)

    async def look(self, positions: Mapping[Partition, int]) -> bool:
        """Check the doubted partitions. Return True when all must be assigned again at their positions.

        That is so when other partitions may be read than before, and whenever recognising has used the assignment.
        Raises TopicRecreatedError or DataLossError for a partition that cannot be read from its position.
        """
        now = time.monotonic()
        if self._client.take_doubt():
            self.doubt(positions)
        elif now < self._look_due:
            return False
        # The partitions without a leader are in doubt.
        away = {p: self._away_since.get(p, now) for p in positions.keys() - self._client.led()}
        changed, self._away_since = away.keys() != self._away_since.keys(), away
        self.doubt(away)
        # A broker that has just come back may not know its topics yet, so a partition is reported missing only later.
        patience_s = self._options.missing_after_ms / 1000
        missing = tuple(sorted(partition for partition, since in away.items() if now - since >= patience_s))
        known = set(self._client.partitions())
        topics = {partition.topic for partition in known}
        # Of a topic that is not there at all, nothing is known: it may come back as it was.
        gone = frozenset(partition for partition in missing if partition not in known and partition.topic in topics)
        if missing != self._missing or gone != self._gone:
            self._missing, self._gone = missing, gone
            self._meter.missing(missing, gone)
            self._report_missing([partition for partition in missing if partition not in gone], sorted(gone))
        present = {partition: positions[partition] for partition in self._doubted - self._away_since.keys()}
        if now < self._look_due:
            return changed
        # A doubt stops the reading at once, but one outage raises many doubts, so the requests that settle them are
        # limited in number.
        self._look_due = now + _LOOK_EVERY_S
        return (bool(present) and await self._recognise(present)) or changed

    async def _recognise(self, positions: Mapping[Partition, int]) -> bool:
        places = {p: ReadPosition(position=at, fingerprint=self._fingerprints.get(p)) for p, at in positions.items()}
        try:
            findings = await recognise(self._client, places)
        except UnreachableError as error:
            self._meter.unanswered(str(error))
            return False
        # A partition that gave no answer in time is not in the findings: it stays doubted and is asked again.
        self._doubted -= findings.keys()
        self._meter.recognised({p: finding.sameness for p, finding in findings.items() if p in self._fingerprints})
        _refuse(findings, fatal=self._options.on_recreated == "fail")
        # Log once which partitions could not be recognised although something was settled of them.
        unknown = sorted(p for p, finding in findings.items() if finding.sameness is Sameness.UNKNOWN)
        new = [partition for partition in unknown if partition in self._fingerprints.keys() - self._reported_unknown]
        if new:
            self._reported_unknown.update(new)
            names, seen = ", ".join(map(str, new)), findings[new[0]].seen
            log.warning("Taken on trust to be of the same topics as before: %s. %s %s", names, new[0], seen)
        return True

    def _report_missing(self, leaderless: Sequence[Partition], gone: Sequence[Partition]) -> None:
        """Log the missing partitions, and raise DataLossError when a topic has fewer partitions than before."""
        if not leaderless and not gone:
            log.warning("The partitions that were missing are there again")
        if leaderless:
            names = ", ".join(map(str, leaderless))
            log.warning("Kafka has no leader for %s: nothing is read of it until it is back", names)
        if gone and self._options.on_recreated == "fail":
            raise DataLossError(
                f"{gone[0]} is no longer there: was topic {gone[0].topic} created again with fewer partitions? "
                f"{_ways_out(gone[0].topic)}"
            )
        if gone:
            names = ", ".join(map(str, gone))
            log.warning("%s are no more: their topic has fewer partitions now. What was learnt of them stays", names)


def _refuse(findings: Mapping[Partition, Identification], *, fatal: bool) -> None:
    """Raise DataLossError or TopicRecreatedError when one of the partitions cannot be read from its position."""
    for partition, finding in sorted(findings.items()):
        if finding.sameness is Sameness.TRUNCATED:
            raise DataLossError(
                f"{partition} {finding.seen}, though it is the same topic: Kafka has lost its end, as an unclean "
                "election does. Rewind to a checkpoint from before that offset"
            )
    recreated = {p: finding for p, finding in findings.items() if finding.sameness is Sameness.DIFFERENT}
    if recreated:
        partition, finding = min(recreated.items())
        raise TopicRecreatedError(
            f"{partition} {finding.seen}: {partition.topic} is another topic under the same name, deleted and created "
            f"again. {_ways_out(partition.topic)}",
            {p: finding.first for p, finding in recreated.items()},
            fatal=fatal,
        )


def _ways_out(topic: str) -> str:
    return (
        f"To learn {topic} from its first record on set kafka.on_recreated: earliest; to begin with new weights give "
        "--start-over"
    )
