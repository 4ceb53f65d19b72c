"""What to pretrain on: the archive's shards or TFRecord files, counted, and dealt between training and validation.

Everything is found and counted before anything is learnt; the newest shards are kept for the validation, and are never
trained on.
"""

import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from consumers.archive.archive_store import Place
from consumers.archive.shards import Shard, listing, next_offsets
from consumers.errors import ConfigError
from consumers.records import Partition
from pipelines.tfrecord_frames import count_records
from pipelines.visits import CountedShard

VALIDATION = 0.1
"""The share of the rows that are validated on where nothing is said and there are two shards or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSource:
    """Shards, the oldest first."""

    what: str
    """What people call it."""
    shards: tuple[CountedShard, ...]
    archived: tuple[Shard, ...] = ()
    """The archive's own shards, at the same places; none where these are other files."""
    positions: Mapping[Partition, int] | None = None
    """The offsets that follow; None where the files do not say."""

    @property
    def rows(self) -> int:
        """The records in all shards."""
        return sum(shard.rows for shard in self.shards)

    def part(self, places: slice) -> "ShardSource":
        """Return some of the shards."""
        return ShardSource(what=self.what, shards=self.shards[places], archived=self.archived[places])


def from_files(paths: Sequence[Path]) -> ShardSource:
    """Return TFRecord files in the order of their names; ConfigError where one cannot be read to its end."""
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise ConfigError(f"there is no file {missing[0]}; name TFRecord files of tf.train.Example")
    ordered = sorted(dict.fromkeys(path.resolve() for path in paths), key=lambda path: (path.name, path))
    # zlib works without the interpreter's lock.
    with ThreadPoolExecutor(min(8, len(os.sched_getaffinity(0)))) as pool:
        counts = list(pool.map(count_records, ordered))
    shards = tuple(
        CountedShard(name=path.name, path=str(path), rows=rows, end=rows)
        for path, rows in zip(ordered, counts, strict=True)
        if rows
    )
    _require_rows(shards, f"the {len(ordered)} files")
    return ShardSource(what="TFRecord files", shards=shards)


def from_archive(place: Place, topics: Sequence[str], *, whole: bool = True) -> ShardSource:
    """Return an archive's shards of these topics, by the time of their newest record; `whole` refuses gaps.

    Those of a partition are in the order of their offsets.
    """
    found = [shard for shard in listing(place) if shard.partition.topic in topics]
    for before, after in pairwise(found if whole else ()):
        if before.partition == after.partition and before.next_offset != after.first:
            raise ConfigError(
                f"the archive {place} lacks the offsets {before.next_offset} to {after.first - 1} of "
                f"{before.partition}; restore their shards, or remove those before them"
            )
    times = _newest_so_far(found)
    archived = tuple(sorted(found, key=lambda shard: (times[shard.key], shard.partition, shard.first)))
    shards = tuple(
        CountedShard(
            name=f"{shard.partition}/{shard.name}",
            path=shard.path,
            rows=shard.records,
            first=shard.first,
            end=shard.next_offset,
        )
        for shard in archived
    )
    _require_rows(shards, f"the archive {place}, topics {', '.join(topics)},")
    return ShardSource(what=f"the archive {place}", shards=shards, archived=archived, positions=next_offsets(found))


def split(source: ShardSource, share: float | None) -> tuple[ShardSource, ShardSource | None]:
    """Return what is trained on and what is validated on: the newest shards, with at least this share of the rows.

    None takes a tenth where there are two shards, else nothing. ConfigError where nothing would be left to train on.
    """
    wanted = math.ceil(source.rows * (VALIDATION if share is None else share))
    if not wanted or (share is None and len(source.shards) < 2):
        return source, None
    kept, rows = len(source.shards), 0
    while kept and rows < wanted:
        kept -= 1
        rows += source.shards[kept].rows
    if not kept and share is None:
        kept = 1
    if not kept:
        raise ConfigError(
            f"--validation: {share:.0%} takes every shard of {source.what}, as a shard is either trained or validated "
            "on; use more, smaller shards, or --validation 0"
        )
    return source.part(slice(kept)), source.part(slice(kept, None))


def _newest_so_far(shards: Sequence[Shard]) -> dict[str, int]:
    """Return by key the newest time up to each shard of its partition: a producer may set times that go back."""
    newest, times = dict[Partition, int](), dict[str, int]()
    for shard in sorted(shards, key=lambda shard: shard.first):
        times[shard.key] = newest[shard.partition] = max(newest.get(shard.partition, shard.latest_ms), shard.latest_ms)
    return times


def _require_rows(shards: Sequence[CountedShard], what: str) -> None:
    if not shards:
        raise ConfigError(f"{what} hold no record to pretrain on")
