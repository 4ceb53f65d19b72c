"""Copies of a bucket's shards: fetched once, compared with their hashes, removed with their shards."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from millrace.consumers.archive import shard_copies
from millrace.consumers.archive.object_store import ObjectStore
from millrace.consumers.archive.shard_copies import ShardCopies
from millrace.consumers.archive.shard_reader import read
from millrace.consumers.archive.shards import Shard, listing
from millrace.consumers.archive.stores import store_at
from millrace.consumers.errors import ArchiveDamagedError, ConfigError
from tests.consumers.archive.records import chunk, shard_of


def copied(folder: Path, url: str) -> tuple[Sequence[Shard], str]:
    """Copy as a run does; return the shards, and what it says of them."""
    copies = ShardCopies(folder, url)
    shards = [copies.copied(shard) for shard in listing(url)]
    copies.prune(listing(url))
    return shards, copies.told(shards)


@pytest.mark.slow
def test_shards_of_a_bucket_are_fetched_once_and_read_by_later_runs_from_the_folder(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, store = tmp_path / "copies", store_at(bucket)
    assert isinstance(store, ObjectStore)
    for first in (0, 10, 20):
        shard_of(bucket, [chunk(first, first + 10)])
    _, told = copied(folder, bucket)
    assert told == f"3 shards were fetched to {folder}, and 0 were there"

    for shard in listing(bucket):
        store.put(shard.key, b"x" * shard.size)  # so nothing can be read there
    shards, told = copied(folder, bucket)
    assert told == f"0 shards were fetched to {folder}, and 3 were there"
    found = [int(offset) for shard in shards for columns in read(shard) for offset in columns.offsets]
    assert found == [*range(30)]

    damaged = folder / shards[0].key
    damaged.write_bytes(b"y" * shards[0].size)
    with pytest.raises(ArchiveDamagedError, match="is not what was written: its SHA-256 differs"):
        copied(folder, bucket)
    monkeypatch.setattr(shard_copies, "_FREE", 1.0)
    told = copied(folder, bucket)[1]
    assert told.endswith("and 2 were there; for 1 it has no room")
    store.remove([shards[1].key, shards[1].facts_key])
    left, now_made = (damaged.with_name(f".{damaged.name}.{pid}-1") for pid in (1, 2))
    for path in (left, now_made):
        path.touch()
    os.utime(left, (0, 0))
    copied(folder, bucket)
    assert [left.exists(), now_made.exists()] == [False, True]
    now_made.unlink()
    assert not (folder / shards[1].key).exists()
    assert (folder / shards[2].key).exists()
    assert not list(folder.rglob(".*"))


def test_a_folder_that_holds_anything_else_is_refused(tmp_path: Path) -> None:
    ShardCopies(tmp_path / "copies", "s3://one/clicks")
    ShardCopies(tmp_path / "copies", "s3://one/clicks")
    with pytest.raises(ConfigError, match="holds copies of s3://one/clicks, not of s3://other/clicks"):
        ShardCopies(tmp_path / "copies", "s3://other/clicks")
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "clicks").touch()
    with pytest.raises(ConfigError, match="is not empty, and holds no copies of shards"):
        ShardCopies(tmp_path / "archive", "s3://one/clicks")


def test_a_folder_is_marked_once_and_a_start_that_was_killed_meanwhile_breaks_nothing(tmp_path: Path) -> None:
    url, marker = "s3://one/clicks", tmp_path / "copies-of"
    tmp_path.joinpath(".copies-of.new-7").touch()  # of a process that was killed before it had its name
    ShardCopies(tmp_path, url)
    assert marker.read_text() == url
    written = marker.stat()
    ShardCopies(tmp_path, url)
    assert (marker.stat().st_ino, marker.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    (tmp_path / "clicks").mkdir()
    marker.write_text("")
    ShardCopies(tmp_path, url)
    assert marker.read_text() == url


def test_a_folder_that_another_process_has_just_begun_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(folder: Path) -> list[Path]:
        """List a copy of another process that had marked the folder by then."""
        (folder / "copies-of").write_text("s3://one/clicks")
        return [folder / "clicks"]

    monkeypatch.setattr(Path, "iterdir", listed)
    ShardCopies(tmp_path, "s3://one/clicks")
