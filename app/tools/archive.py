"""The archiver: a process of its own that writes what the topics hold to shards, and resumes where the last ones end.

Owns the source with its thread `consumer`, the hand-off, and the open shards; shards are written on the main thread.
While the disk is full, or the object store is away, the main thread waits, the hand-off fills, and the source stops
polling; while Kafka is away, the source waits. Nothing is committed: the listing of the archive says where each
partition resumes. It ends when it is asked to, or at `until`: then the open shards are closed. When it is killed, Kafka
still has what no closed shard holds.
"""

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from millrace.app.settings import Settings
from millrace.app.settings.connection import kafka_options
from millrace.consumers.archive.archive_store import Place
from millrace.consumers.archive.archiver import ArchiveOptions, Archiver
from millrace.consumers.archive.shards import Shard, listing, next_offsets, remove_leftovers
from millrace.consumers.archive.stores import store_at
from millrace.consumers.errors import (
    ArchiveAwayError,
    ConfigError,
    DataLossError,
    HandoffBroken,
    HandoffEmpty,
    HandoffEnded,
    MillraceError,
    first_clause,
)
from millrace.consumers.fingerprints import Fingerprint
from millrace.consumers.handoff import Handoff, ReceiveEnd
from millrace.consumers.kafka.positions import Earliest, Until
from millrace.consumers.kafka.source import KafkaSource
from millrace.consumers.records import Partition

log = logging.getLogger(__name__)

_CONNECT_S = 15.0
_STOP_S = 5.0
_TICK_S = 0.5
_ROOM_RETRY_S = 1.0
_REPEAT_S = 60.0
"""How often the log repeats that the disk is full, or that Kafka is away."""
HANDOFF_SHARE, SHARDS_SHARE = 0.35, 0.45
"""Portions of the memory limit; the client's buffers and what arrow makes of a piece get the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """What of the topics is archived."""

    positions: Mapping[Partition, int]
    ends: Mapping[Partition, int] | None
    """The offset before which each partition ends; None goes on."""
    fingerprints: Mapping[Partition, Fingerprint | None]
    """The last record before each position, of the partitions that have one."""


class GivenUpError(MillraceError, RuntimeError):
    """The archiver was asked to end while the disk was full, or the object store away."""


def archive_place(settings: Settings) -> Place:
    """Return the archive's folder or URL. Raises ConfigError where none is set."""
    if settings.archive.path is None:
        raise ConfigError(
            "archive.path is not set, so there is no archive: name a folder for it in the config file, or a URL as in "
            "s3://bucket/clicks"
        )
    return settings.archive.path


def archive(settings: Settings, until: Until | None, asked: threading.Event) -> None:
    """Archive until `asked` is set, or up to `until`."""
    place = archive_place(settings)
    try:
        with store_at(place).lock(asked.wait):
            if left := remove_leftovers(place):
                log.info("removed %d files that an earlier archiver has left half written", left)
            shards = [shard for shard in listing(place) if shard.partition.topic in settings.kafka.topics]
            with _source(settings) as source:
                _run(settings, source, shards, until, asked)
    except OSError as error:
        if isinstance(error, MillraceError):
            raise
        raise ConfigError(f"archive.path: cannot write to {place}: {error.strerror or error}") from error


def _run(
    settings: Settings, source: KafkaSource, shards: list[Shard], until: Until | None, asked: threading.Event
) -> None:
    positions = {**source.resolve_start(Earliest()), **next_offsets(shards)}
    extent = Extent(
        positions=positions,
        ends=None if until is None else source.resolve_until(until),
        fingerprints={shard.partition: shard.fingerprint for shard in shards},
    )
    archive = settings.archive
    options = ArchiveOptions(
        place=archive_place(settings),
        format=archive.format,
        shard_bytes=archive.shard_size,
        shard_age_s=archive.shard_age,
        memory_bytes=int(settings.memory.limit * SHARDS_SHARE),
    )
    archiver = Archiver(options, _Obstacle(store_at(archive_place(settings)).room(), asked).wait)
    try:
        fill(archiver, source, extent, settings.memory.limit, asked)
    except HandoffBroken as broken:
        if not isinstance(broken.why, DataLossError):
            raise
        raise DataLossError(
            f"{first_clause(str(broken.why))}. The shards in {archive_place(settings)} go on from other records than "
            "Kafka has now: move the topic's folder away, or archive into another one (archive.path)"
        ) from broken


def fill(archiver: Archiver, source: KafkaSource, extent: Extent, memory_limit: int, asked: threading.Event) -> None:
    """Archive an extent of the topics, or until `asked` is set; whatever ends it, no shard stays open."""
    partitions = max(1, len(extent.positions))
    with closing(Handoff(capacity_bytes=int(memory_limit * HANDOFF_SHARE), partitions=partitions)) as handoff:
        source.begin(1, extent.positions, handoff, extent.ends, extent.fingerprints)
        topics = sorted({partition.topic for partition in extent.positions})
        log.info(
            "archiving %s from %s",
            ", ".join(topics),
            ", ".join(f"{partition} at {offset}" for partition, offset in sorted(extent.positions.items())),
        )
        try:
            _receive(handoff, archiver, _Outages(source), asked)
            archiver.close_all()
        except HandoffBroken:
            archiver.close_all()
            raise
        finally:
            if given_up := archiver.abandon_all():
                log.warning("%d records are in no closed shard: the next start reads them from Kafka again", given_up)
            totals = archiver.totals
            log.info("archived %d records in %d shards; %d were lost", totals.records, totals.shards, totals.lost)


def _receive(handoff: ReceiveEnd, archiver: Archiver, outages: "_Outages", asked: threading.Event) -> None:
    """Archive chunks until the stream ends, or the process is asked to."""
    while not asked.is_set():
        try:
            archiver.add(handoff.receive(_TICK_S))
        except HandoffEmpty:
            outages.look()
        except HandoffEnded:
            return
        archiver.close_aged()


@contextmanager
def _source(settings: Settings) -> Iterator[KafkaSource]:
    # What retention has removed is a gap of the archive, and a reason to go on: the rest must not be lost too.
    source = KafkaSource(replace(kafka_options(settings.kafka), out_of_range="earliest", on_recreated="fail"))
    source.start(_CONNECT_S)
    try:
        yield source
    finally:
        source.stop(_STOP_S)


@dataclass(slots=True)
class _Obstacle:
    """Waits while the disk is full, or the object store away."""

    folder: Path
    """Where what is being written needs room."""
    asked: threading.Event
    reported_at: float = -_REPEAT_S

    def wait(self, error: OSError) -> None:
        """Wait a moment before the next attempt, and log now and then why. Raises GivenUpError at a stop."""
        away = isinstance(error, ArchiveAwayError)
        if time.monotonic() - self.reported_at >= _REPEAT_S:
            self.reported_at = time.monotonic()
            what = str(error) if away else f"{error.strerror}: waiting for room in {self.folder}"
            log.warning("%s; nothing is lost while Kafka has it", what)
        if self.asked.wait(_ROOM_RETRY_S):
            raise GivenUpError(
                f"{error}; what was read and is in no shard, the next start reads from Kafka again"
                if away
                else f"{self.folder} has no room for what was read: make room and start the archiver again"
            )


@dataclass(slots=True)
class _Outages:
    """Logs now and then that Kafka is away."""

    source: KafkaSource
    reported_at: float = -_REPEAT_S

    def look(self) -> None:
        """Log the source's trouble, if it has any."""
        found = self.source.statistics()
        if not found.connected and found.last_error and time.monotonic() - self.reported_at >= _REPEAT_S:
            self.reported_at = time.monotonic()
            log.warning("Kafka is away: %s", found.last_error)
