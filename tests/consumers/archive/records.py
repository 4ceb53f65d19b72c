"""Records to archive: chunks whose contents follow from their offsets."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from millrace.consumers.archive.archive_store import Place
from millrace.consumers.archive.archiver import OpenShard
from millrace.consumers.archive.shard_names import Format
from millrace.consumers.archive.shards import Shard
from millrace.consumers.fingerprints import Fingerprint
from millrace.consumers.records import Chunk, Headers, Partition

CLICKS = Partition("clicks", 0)


def key(offset: int) -> bytes | None:
    return [None, b"", b"key %d" % offset][offset % 3]


def value(offset: int) -> bytes | None:
    return None if offset % 7 == 0 else b"value \x00\xff %d" % offset


def headers(offset: int) -> Headers:
    return [(), (("trace", b"%d" % offset),), (("a", b""), ("a", b"\xff"))][offset % 3]


def chunk(start: int, end: int, offsets: Iterable[int] | None = None, partition: Partition = CLICKS) -> Chunk:
    """Return the records at some offsets, by default at all of [start, end)."""
    present: Sequence[int] = list(range(start, end) if offsets is None else offsets)
    last = present[-1] if present else None
    return Chunk(
        partition=partition,
        incarnation=1,
        start=start,
        end=end,
        offsets=np.array(present, np.int64),
        timestamps=np.array([1_700_000_000_000 + offset for offset in present], np.int64),
        keys=[key(offset) for offset in present],
        values=[value(offset) for offset in present],
        headers=[headers(offset) for offset in present],
        nbytes=200 * len(present),
        fetched_at=0.0,
        fingerprint=None if last is None else Fingerprint.of(last, 1_700_000_000_000 + last, key(last), value(last)),
    )


def never(error: OSError) -> None:
    """Wait for room, in a test in which the disk is never full."""
    raise AssertionError(error)


def file_of(shard: Shard) -> Path:
    """Return the file of a shard in a folder."""
    return Path(shard.path)


def facts_of(shard: Shard) -> Path:
    """Return the JSON file of a shard in a folder."""
    return Path(shard.store.path(shard.facts_key))


def shard_of(place: Place, chunks: Sequence[Chunk], form: Format = "parquet") -> Shard:
    """Write a shard with one piece for each chunk."""
    shard = OpenShard(place, chunks[0].partition, chunks[0].start, form, never)
    for each in chunks:
        shard.add(each)
        shard.flush()
    return shard.close()
