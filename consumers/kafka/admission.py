"""Admission: which partitions of an incarnation may be read: those that have a leader and are the same as before.

Owns the set of doubted partitions of one incarnation and the fingerprint of the last record fetched from each. Part of
the task that fetches, on the consumer's loop. A partition is doubted at the beginning, whenever the client gets an
answer that does not fit or loses a connection, and while the partition has no leader. It is admitted once it has been
recognised. While the broker is away, for however long, nothing is read.
"""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence

from millrace.consumers.errors import DataLossError, TopicRecreatedError, UnreachableError
from millrace.consumers.fingerprints import Fingerprint, Sameness
from millrace.consumers.kafka.client import KafkaClient
from millrace.consumers.kafka.options import KafkaOptions
from millrace.consumers.kafka.statistics import SourceMeter
from millrace.consumers.kafka.topic_identity import Identification, ReadPosition, recognise
from millrace.consumers.records import Chunk, Partition

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.5


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
        """Return whether the partition may be read."""
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
        changed = self._update_away(positions, now)
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
        self._report_unknown(findings)
        return True

    def _report_unknown(self, findings: Mapping[Partition, Identification]) -> None:
        """Log once which partitions could not be recognised although something was settled of them."""
        unknown = sorted(p for p, finding in findings.items() if finding.sameness is Sameness.UNKNOWN)
        new = [partition for partition in unknown if partition in self._fingerprints.keys() - self._reported_unknown]
        if new:
            self._reported_unknown.update(new)
            names, seen = ", ".join(map(str, new)), findings[new[0]].seen
            log.warning("Taken on trust to be of the same topics as before: %s. %s %s", names, new[0], seen)

    def _update_away(self, positions: Mapping[Partition, int], now: float) -> bool:
        """Doubt the partitions without a leader. Return whether others are without one than before."""
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
        return changed

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
