"""A range of the topics as a source: its records are read into shards of a folder of their own, which goes afterwards.

Owns the folder, below that of the checkpoints, whose lock the caller holds; what a killed process has left there is
removed first. Runs on the calling thread, with the source's thread `consumer` beside it while it reads.
"""

import logging
import math
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from millrace.app.settings import Settings
from millrace.app.settings.connection import kafka_history, kafka_options
from millrace.app.tools.archive import SHARDS_SHARE, Extent, fill
from millrace.app.tools.pretrain.shard_sources import ShardSource, from_archive
from millrace.consumers.archive.archiver import ArchiveOptions, Archiver
from millrace.consumers.errors import ConfigError, MillraceError
from millrace.consumers.kafka.positions import Now, Start, Until
from millrace.consumers.kafka.source import KafkaSource
from millrace.consumers.records import Partition

log = logging.getLogger(__name__)

_CONNECT_S, _STOP_S = 15.0, 5.0
_SHARDS = 64
"""About how many shards a range becomes: a tenth of it is a few of them, and several are read beside each other."""
_LEAST = 256
"""Records of a shard, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRange:
    """The records of the topics from one point to another."""

    start: Start
    until: Until


@contextmanager
def at_hand(source: ShardSource | TopicRange, settings: Settings, folder: Path) -> Iterator[ShardSource]:
    """Give the shards of a source. Those of a range are in `folder` until the end, and in no archive."""
    shutil.rmtree(folder, ignore_errors=True)
    if isinstance(source, ShardSource):
        yield source
        return
    try:
        yield _stored(source, settings, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _stored(wanted: TopicRange, settings: Settings, folder: Path) -> ShardSource:
    try:
        folder.mkdir(mode=0o700)  # records, as they are in Kafka: nobody else's to read
        return _read(wanted, settings, folder)
    except OSError as error:
        if isinstance(error, MillraceError):
            raise
        raise ConfigError(f"checkpoints.path: cannot write to {folder}: {error.strerror or error}") from error


def _read(wanted: TopicRange, settings: Settings, folder: Path) -> ShardSource:
    # What neither Kafka nor the archive has is no reason to learn nothing; it is said.
    options = replace(kafka_options(settings.kafka), out_of_range="earliest", on_recreated="fail")
    source = KafkaSource(options, kafka_history(settings))
    source.start(_CONNECT_S)
    try:
        starts, ends = source.resolve_start(wanted.start), source.resolve_until(wanted.until)
        require_range(starts, ends, source.resolve_until(Now()))
        offsets = sum(ends[partition] - start for partition, start in starts.items())
        archiver = Archiver(_options(settings, folder, max(_LEAST, offsets // _SHARDS)), _no_room)
        extent = Extent(positions=starts, ends=ends, fingerprints={})
        fill(archiver, source, extent, settings.memory.limit, threading.Event())
    finally:
        source.stop(_STOP_S)
    if archiver.totals.lost:
        log.warning("%d offsets of the range are gone from Kafka, and are not learnt", archiver.totals.lost)
    parts = [f"{start} to {ends[p] - 1} of {p}" for p, start in sorted(starts.items()) if start < ends[p]]
    what = f"the offsets {', '.join(parts)}" if parts else f"{wanted.start} until {wanted.until}"
    found = from_archive(folder, settings.kafka.topics, whole=False)
    return replace(found, what=what, positions=ends)


def require_range(starts: Mapping[Partition, int], ends: Mapping[Partition, int], now: Mapping[Partition, int]) -> None:
    """Raise ConfigError where the range ends before it begins, or behind the last record."""
    for partition, start in sorted(starts.items()):
        if ends[partition] < start:
            raise ConfigError(f"--until is before --from: {partition} would go from {start} to {ends[partition]}")
        if ends[partition] > now[partition]:
            raise ConfigError(f"--until names offset {ends[partition]} of {partition}, which ends at {now[partition]}")


def _options(settings: Settings, folder: Path, shard_records: int) -> ArchiveOptions:
    return ArchiveOptions(
        place=folder,
        format="parquet",
        shard_bytes=settings.archive.shard_size,
        shard_age_s=math.inf,
        shard_records=shard_records,
        memory_bytes=int(settings.memory.limit * SHARDS_SHARE),
    )


def _no_room(error: OSError) -> None:
    """Give up, so that a trainer whose checkpoints are on the same volume does not wait too."""
    raise ConfigError(
        f"checkpoints.path has no room for the records of the range ({error.strerror}): archive them on a larger "
        "volume by `millrace archive --until now`, and pretrain on that"
    ) from error
