"""The archiver: when a shard is closed, how much memory it takes, and what a full disk does to it."""

import errno
import os
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from millrace.consumers.archive.archive_account import by_partition, prunable, remove
from millrace.consumers.archive.archive_store import Place
from millrace.consumers.archive.archiver import ArchiveOptions, Archiver
from millrace.consumers.archive.shard_names import Format
from millrace.consumers.archive.shard_reader import pieces, read
from millrace.consumers.archive.shards import leftovers, listing
from millrace.consumers.kafka.chunking import empty_chunk
from millrace.consumers.records import Partition
from tests.consumers.archive.records import CLICKS, chunk, never, shard_of
from tests.consumers.archive.test_shards import offsets_read

OTHER = Partition("clicks", 1)


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def options(folder: Path, **changed: int) -> ArchiveOptions:
    defaults = {"shard_bytes": 2**30, "shard_age_s": 3600, "memory_bytes": 2**30}
    return ArchiveOptions(place=folder, format="parquet", **{**defaults, **changed})


@pytest.mark.parametrize("given", [10, 4, 30], ids="chunks of {}".format)
def test_a_shard_is_closed_when_it_is_full_and_the_next_one_begins_there(given: int, tmp_path: Path) -> None:
    archiver = Archiver(options(tmp_path, shard_records=10), never)
    for start in range(0, 28, given):
        archiver.add(chunk(start, min(start + given, 28)))
    archiver.close_all()
    assert [(shard.first, shard.next_offset) for shard in listing(tmp_path)] == [(0, 10), (10, 20), (20, 28)]
    assert offsets_read(tmp_path) == [*range(28)]
    assert [shard.fingerprint for shard in listing(tmp_path)] == [chunk(0, end).fingerprint for end in (10, 20, 28)]


@pytest.mark.parametrize("form", ["parquet", "tfrecord"])
@pytest.mark.parametrize("text", [b"a" * 300, b""], ids=["packs well", "packs badly"])
def test_a_shard_is_about_as_large_as_the_setting_says(form: Format, text: bytes, tmp_path: Path) -> None:
    most, random, given = 2**16, Random(3), 2000
    archiver = Archiver(replace(options(tmp_path, shard_bytes=most), format=form), never)
    for start in range(0, 20_000, given):
        values = [text + random.randbytes(20) for _ in range(given)]
        made = replace(chunk(start, start + given), values=values, nbytes=given * (len(values[0]) + 100))
        archiver.add(made)
    archiver.close_all()
    *full, last = (shard.size for shard in listing(tmp_path))
    assert len(full) > 5
    assert most <= min(full)
    assert max(*full, last) < most * 1.25, "a sixteenth, and what the format has at its end"
    offsets = [at for shard in listing(tmp_path) for columns in read(shard) for at in columns.offsets.tolist()]
    assert offsets == [*range(20_000)]
    assert max(len(pieces(shard)) for shard in listing(tmp_path)) < 16


def test_a_shard_is_closed_at_its_age_which_begins_with_its_first_record(tmp_path: Path) -> None:
    clock = Clock()
    archiver = Archiver(options(tmp_path, shard_age_s=60), never, clock)
    archiver.add(empty_chunk(CLICKS, 1, start=0, end=5, fetched_at=0.0))
    clock.now = 100.0
    archiver.close_aged()
    archiver.add(chunk(5, 10))
    clock.now = 159.0
    archiver.close_aged()
    assert listing(tmp_path) == []
    clock.now = 160.0
    archiver.close_aged()
    assert [(shard.first, shard.next_offset, shard.records) for shard in listing(tmp_path)] == [(0, 10, 5)]


def test_what_all_partitions_collect_together_is_bounded(tmp_path: Path) -> None:
    archiver = Archiver(options(tmp_path, memory_bytes=8_000), never)
    for start in range(0, 100, 10):
        for partition in (CLICKS, OTHER):
            archiver.add(chunk(start, start + 10, partition=partition))
    archiver.close_all()
    first, second = listing(tmp_path)
    assert len(pieces(first)) > 1
    assert len(pieces(second)) > 1
    assert offsets_read(tmp_path) == [*range(100), *range(100)]


def test_offsets_that_retention_removed_end_a_shard_and_are_counted(tmp_path: Path) -> None:
    archiver = Archiver(options(tmp_path), never)
    archiver.add(chunk(0, 10))
    archiver.add(empty_chunk(CLICKS, 1, start=10, end=17, fetched_at=0.0, lost=7))
    archiver.add(chunk(17, 20))
    archiver.close_all()
    assert [(shard.first, shard.next_offset) for shard in listing(tmp_path)] == [(0, 10), (17, 20)]
    assert archiver.totals.lost == 7


def test_a_stop_while_the_disk_is_full_leaves_no_half_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class StoppedError(Exception):
        pass

    def stop(_error: OSError) -> None:
        raise StoppedError

    def full(_handle: int, _raw: memoryview) -> int:
        raise OSError(errno.ENOSPC, "no room")

    archiver = Archiver(options(tmp_path), stop)
    archiver.add(chunk(0, 10))
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StoppedError):
        archiver.close_all()
    assert archiver.abandon_all() == 10
    monkeypatch.undo()
    assert listing(tmp_path) == []
    assert list(leftovers(tmp_path)) == []


def test_prune_removes_whole_old_shards_from_the_front_and_never_the_last(place: Place) -> None:
    for start in (0, 10, 20, 30):
        shard_of(place, [chunk(start, start + 10)])
    old = 1_700_000_000_000
    assert [shard.first for shard in prunable(listing(place), old + 20)] == [0, 10]
    assert [shard.first for shard in prunable(listing(place), old + 1000)] == [0, 10, 20]
    remove(prunable(listing(place), old + 20))
    (archived,) = by_partition(listing(place))
    assert [shard.first for shard in archived.shards] == [20, 30]
    assert archived.gaps == ()
    assert list(leftovers(place)) == []
