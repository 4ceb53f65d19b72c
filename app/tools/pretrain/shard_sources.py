"""What to pretrain on: the archive's shards or TFRecord files, counted, and dealt between training and validation.

Everything is found and counted before anything is learnt; the newest rows are kept for the validation, and are never
trained on.
"""

import logging
import math
import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from millrace.app.settings import Settings
from millrace.app.settings.connection import kafka_history, kafka_options
from millrace.app.tools.archive import SHARDS_SHARE, Extent, fill
from millrace.consumers.archive.archive_store import Place
from millrace.consumers.archive.archiver import ArchiveOptions, Archiver
from millrace.consumers.archive.shard_copies import ShardCopies
from millrace.consumers.archive.shard_reader import complaint_about, offset_of_row
from millrace.consumers.archive.shards import Shard, listing, next_offsets
from millrace.consumers.archive.tfrecord_files import read_frames
from millrace.consumers.errors import ArchiveDamagedError, ConfigError, MillraceError
from millrace.consumers.kafka.positions import Now, Start, Until
from millrace.consumers.kafka.source import KafkaSource
from millrace.consumers.records import Partition
from millrace.pipelines.files.image_tree import ImageTree, image_tree
from millrace.pipelines.files.tfrecord_frames import count_records
from millrace.pipelines.files.visits import CountedShard, DamagedFile

VALIDATION = 0.1
"""The share of the rows that are validated on where nothing is said."""

log = logging.getLogger(__name__)

_CONNECT_S, _STOP_S = 15.0, 5.0
_SHARDS = 64
"""About how many shards a range becomes: a tenth of it is a few of them, and several are read beside each other."""
_LEAST, _IMAGES = 256, 256
"""Records of a shard of a range, at least; images of a shard, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRange:
    """The records of the topics from one point to another."""

    start: Start
    until: Until


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSource:
    """Shards, or parts of them, the oldest first."""

    what: str
    """What people call it."""
    shards: tuple[CountedShard, ...]
    archived: tuple[Shard, ...] = ()
    """The archive's own shards, at the same places; none where these are other files.

    Of one that was cut `shards` says which rows belong to the source.
    """
    positions: Mapping[Partition, int] | None = None
    """The offsets that follow; None where the files do not say."""
    damaged: tuple[DamagedFile, ...] = ()
    """The files that are left out."""
    images: ImageTree | None = None
    """The images, of which each shard has some, by their numbers."""

    @property
    def rows(self) -> int:
        """The records in all shards."""
        return sum(shard.rows for shard in self.shards)


def from_files(paths: Sequence[Path], *, skip_damaged: bool = False) -> ShardSource:
    """Return TFRecord files in the order of their names.

    Raise ConfigError if one cannot be read to its end; with `skip_damaged` it is left out, and so is one with a record
    that is not what was written.
    """
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise ConfigError(f"there is no file {missing[0]}; name TFRecord files of tf.train.Example")
    ordered = sorted(dict.fromkeys(path.resolve() for path in paths), key=lambda path: (path.name, path))

    def counted(path: Path) -> CountedShard | DamagedFile:
        if not skip_damaged:
            rows = count_records(path)
            return CountedShard(name=path.name, path=str(path), rows=rows, end=rows)
        known: int | None = None
        try:
            known = count_records(path)
            read = sum(len(frames.starts) for frames in read_frames(path))
        except (ConfigError, OSError, ValueError) as error:
            return DamagedFile(name=path.name, rows=known, why=str(error).partition(";")[0])
        return CountedShard(name=path.name, path=str(path), rows=read, end=read)

    # zlib works without the interpreter's lock.
    with ThreadPoolExecutor(min(8, len(os.sched_getaffinity(0)))) as pool:
        found = list(pool.map(counted, ordered))
    shards = tuple(one for one in found if isinstance(one, CountedShard) and one.rows)
    damaged = tuple(one for one in found if isinstance(one, DamagedFile))
    _require_rows(shards, f"the {len(ordered)} files", damaged)
    return ShardSource(what="TFRecord files", shards=shards, damaged=damaged)


def from_images(folder: Path) -> ShardSource:
    """Return the images of a tree, whose folders are their labels; ConfigError if there are none."""
    tree = image_tree(folder.resolve())
    count = len(tree.names)
    size = min(_IMAGES, max(1, count // _SHARDS))
    shards = tuple(
        CountedShard(name=f"images {first} to {end - 1}", path=str(tree.root), rows=end - first, first=first, end=end)
        for first in range(0, count, size)
        for end in [min(first + size, count)]
    )
    return ShardSource(what=f"the images in {folder}", shards=shards, images=tree)


def from_archive(
    place: Place,
    topics: Sequence[str],
    *,
    whole: bool = True,
    skip_damaged: bool = False,
    copies: ShardCopies | None = None,
) -> ShardSource:
    """Return an archive's shards of these topics, by the time of their newest record; `whole` refuses gaps.

    Those of a partition are in the order of their offsets. With `skip_damaged` each is read and compared with its hash
    first, and left out if it differs. `copies` of a bucket's shards are read in place of them.
    """
    found = [shard for shard in listing(place) if shard.partition.topic in topics]
    for before, after in pairwise(found if whole else ()):
        if before.partition == after.partition and before.next_offset != after.first:
            raise ConfigError(
                f"the archive {place} lacks the offsets {before.next_offset} to {after.first - 1} of "
                f"{before.partition}; restore their shards, or remove those before them"
            )
    times = _newest_so_far(found)
    # Where only a damaged shard says what follows, live training begins with it: Kafka may still have its records.
    positions = {shard.partition: shard.first for shard in reversed(found)}
    every, damaged = found, tuple[DamagedFile, ...]()
    if copies is not None or skip_damaged:
        found, damaged = _read_once(found, copies, skip_damaged=skip_damaged)
    if copies is not None:
        copies.prune(every)
    positions |= next_offsets(found)
    archived = tuple(sorted(found, key=lambda shard: (times[shard.key], shard.partition, shard.first)))
    shards = tuple(
        CountedShard(
            name=_name_of(shard),
            path=shard.path,
            rows=shard.records,
            first=shard.first,
            end=shard.next_offset,
        )
        for shard in archived
    )
    what = f"the archive {place}"
    _require_rows(shards, f"{what}, topics {', '.join(topics)},", damaged)
    return ShardSource(what=what, shards=shards, archived=archived, positions=positions, damaged=damaged)


def _read_once(
    shards: Sequence[Shard], copies: ShardCopies | None, *, skip_damaged: bool
) -> tuple[list[Shard], tuple[DamagedFile, ...]]:
    """Copy or read all shards; return those that are what was written, and the others.

    Raise ArchiveDamagedError at the first of the others, unless they are skipped.
    """

    def read(shard: Shard) -> Shard | DamagedFile:
        copy, why = shard, None
        try:
            copy = shard if copies is None else copies.copied(shard)
        except ArchiveDamagedError as error:
            if not skip_damaged:
                raise
            why = str(error)
        if why is None and copy is shard and skip_damaged:
            why = complaint_about(shard, deep=True)
        return copy if why is None else DamagedFile(name=_name_of(shard), rows=shard.records, why=why)

    with ThreadPoolExecutor(min(8, len(os.sched_getaffinity(0)))) as pool:
        found = list(pool.map(read, shards))
    sound = [one for one in found if isinstance(one, Shard)]
    return sound, tuple(one for one in found if isinstance(one, DamagedFile))


def _name_of(shard: Shard) -> str:
    return f"{shard.partition}/{shard.name}"


def split(
    source: ShardSource, share: float | None, *, whole_shards: bool = False
) -> tuple[ShardSource, ShardSource | None]:
    """Return what is trained on and what is validated on: the newest rows, about this share of them.

    None takes a tenth where that can be. Of an archive they are the newest rows of each partition, and never all of
    one: a shard is cut where it must be. With `whole_shards`, and of files, which no partition is known of, they are
    the newest shards, with at least this share. ConfigError if nothing would be left to train on, or to validate on.
    """
    if share == 0:
        return source, None
    if whole_shards or not source.archived:
        newest = _newest_shards(source, share)
    else:
        newest = _newest_rows(source, VALIDATION if share is None else share)
    if not newest:
        if share is None:
            return source, None
        raise ConfigError(
            f"--validation: no record of {source.what} is left to validate on, as the first of each partition is "
            "trained on; use more records, or --validation 0"
        )
    training, validation = list[_Portion](), list[_Portion]()
    for place in range(len(source.shards)):
        trained, validated = _cut(source, place, newest.get(place, 0))
        training += trained
        validation += validated
    return _made_of(source, training), _made_of(source, validation)


_Portion = tuple[CountedShard, Shard | None]
"""Rows of a shard, with the shard of the archive that has them."""


def _newest_shards(source: ShardSource, share: float | None) -> dict[int, int]:
    """Return the rows of the newest shards by place, at least this share; of a partition never the oldest shard."""
    wanted = math.ceil(source.rows * (VALIDATION if share is None else share))
    oldest = {shard.partition: place for place, shard in reversed([*enumerate(source.archived)])}
    kept = set(oldest.values()) if source.archived else {0}
    newest, rows = dict[int, int](), 0
    for place in reversed(range(len(source.shards))):
        if rows < wanted and place not in kept:
            newest[place] = source.shards[place].rows
            rows += newest[place]
    if rows < wanted and share is not None:
        raise ConfigError(
            f"--validation: {share:.0%} takes every shard of {source.what}, as a shard is either trained or validated "
            "on; use more, smaller shards, or --validation 0"
        )
    return newest


def _newest_rows(source: ShardSource, share: float) -> dict[int, int]:
    """Return by place how many of a shard's newest rows are in this share of its partition."""
    places: dict[Partition, list[int]] = {}
    for place, shard in enumerate(source.archived):
        places.setdefault(shard.partition, []).append(place)
    newest, seen, taken = dict[int, int](), 0, 0
    for _, mine in sorted(places.items()):
        rows = sum(source.shards[place].rows for place in mine)
        seen += rows
        # Rounded over all partitions, so that a thousand of a few rows each do not give half of them.
        left = max(0, min(rows - 1, _share_of(rows, share), _share_of(seen, share) - taken))
        taken += left
        for place in reversed(mine):
            newest[place] = min(left, source.shards[place].rows)
            left -= newest[place]
    return {place: rows for place, rows in newest.items() if rows}


def _share_of(rows: int, share: float) -> int:
    """Return a share, rounded up; a tenth of 30 is 3, which floats make a bit more."""
    return math.ceil(round(rows * share, 6))


def _cut(source: ShardSource, place: int, newest: int) -> tuple[list[_Portion], list[_Portion]]:
    """Return what is trained on of a shard, and what is validated on: so many of its newest rows."""
    shard, archived = source.shards[place], source.archived[place] if source.archived else None
    if newest in {0, shard.rows} or archived is None:
        return ([], [(shard, archived)]) if newest else ([(shard, archived)], [])
    row = shard.rows - newest
    at = offset_of_row(archived, row)
    return [(replace(shard, rows=row, end=at), archived)], [(replace(shard, rows=newest, first=at), archived)]


def _made_of(source: ShardSource, portions: Sequence[_Portion]) -> ShardSource:
    return ShardSource(
        what=source.what,
        shards=tuple(shard for shard, _ in portions),
        archived=tuple(archived for _, archived in portions if archived is not None),
        damaged=source.damaged,
        images=source.images,
    )


def _newest_so_far(shards: Sequence[Shard]) -> dict[str, int]:
    """Return by key the newest time up to each shard of its partition: a producer may set times that go back."""
    newest, times = dict[Partition, int](), dict[str, int]()
    for shard in sorted(shards, key=lambda shard: shard.first):
        times[shard.key] = newest[shard.partition] = max(newest.get(shard.partition, shard.latest_ms), shard.latest_ms)
    return times


def _require_rows(shards: Sequence[CountedShard], what: str, damaged: Sequence[DamagedFile]) -> None:
    if not shards:
        why = f": {damaged[0].why}" if damaged else ""
        raise ConfigError(f"{what} hold no record to pretrain on{why}")


@contextmanager
def at_hand(source: ShardSource | TopicRange, settings: Settings, folder: Path) -> Iterator[ShardSource]:
    """Give the shards of a source. Those of a range are in `folder` until the end, and in no archive.

    The folder is below that of the checkpoints, whose lock the caller holds; what a killed process has left there is
    removed first. Runs on the calling thread, with the source's thread `consumer` beside it while it reads.
    """
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
        # What neither Kafka nor the archive has is no reason to learn nothing; it is said.
        options = replace(kafka_options(settings.kafka), out_of_range="earliest", on_recreated="fail")
        source = KafkaSource(options, kafka_history(settings))
        source.start(_CONNECT_S)
        try:
            starts, ends = source.resolve_start(wanted.start), source.resolve_until(wanted.until)
            require_range(starts, ends, source.resolve_until(Now()))
            offsets = sum(ends[partition] - start for partition, start in starts.items())
            archiver = Archiver(
                ArchiveOptions(
                    place=folder,
                    format="parquet",
                    shard_bytes=settings.archive.shard_size,
                    shard_age_s=math.inf,
                    shard_records=max(_LEAST, offsets // _SHARDS),
                    memory_bytes=int(settings.memory.limit * SHARDS_SHARE),
                ),
                _no_room,
            )
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
    except OSError as error:
        if isinstance(error, MillraceError):
            raise
        raise ConfigError(f"checkpoints.path: cannot write to {folder}: {error.strerror or error}") from error


def require_range(starts: Mapping[Partition, int], ends: Mapping[Partition, int], now: Mapping[Partition, int]) -> None:
    """Raise ConfigError where the range ends before it begins, or behind the last record."""
    for partition, start in sorted(starts.items()):
        if ends[partition] < start:
            raise ConfigError(f"--until is before --from: {partition} would go from {start} to {ends[partition]}")
        if ends[partition] > now[partition]:
            raise ConfigError(f"--until names offset {ends[partition]} of {partition}, which ends at {now[partition]}")


def _no_room(error: OSError) -> None:
    """Give up, so that a trainer whose checkpoints are on the same volume does not wait too."""
    raise ConfigError(
        f"checkpoints.path has no room for the records of the range ({error.strerror}): archive them on a larger "
        "volume by `millrace archive --until now`, and pretrain on that"
    ) from error
