"""An archive in S3: one writer at a time, nothing half there, and a store that is away is no damage."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from millrace.consumers.archive import object_store
from millrace.consumers.archive.archiver import OpenShard
from millrace.consumers.archive.replay import ShardReplay
from millrace.consumers.archive.shard_names import facts_name
from millrace.consumers.archive.shard_reader import complaint_about, read
from millrace.consumers.archive.shards import leftovers, listing, remove_leftovers, shard_at
from millrace.consumers.archive.stores import store_at
from millrace.consumers.errors import ArchiveAwayError, ArchiveBusyError, ConfigError
from millrace.consumers.failpoints import VARIABLE
from tests.consumers.archive.records import CLICKS, chunk, never, shard_of
from tests.consumers.archive.s3_server import S3Server
from tests.consumers.archive.test_shards import offsets_read


def wait(seconds: float) -> bool:
    """Wait as an archiver does that nobody asks to end."""
    return threading.Event().wait(seconds)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renew often, and take over soon."""
    monkeypatch.setattr(object_store, "RENEW_S", 0.2)
    monkeypatch.setattr(object_store, "STALE_S", 1.5)
    monkeypatch.setattr(object_store, "_LOOK_S", 0.1)


@pytest.fixture
def away(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """Give the server to a test that sends it away, and see to it that it is back; the library gives up at once."""
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 1)
    yield s3_server
    s3_server.come_back()


@pytest.mark.usefixtures("quick")
def test_a_second_writer_is_refused_while_the_first_one_renews(bucket: str) -> None:
    with store_at(bucket).lock(wait):
        second = object_store.ObjectLock(object_store.ObjectStore(bucket), wait)
        with pytest.raises(ArchiveBusyError, match=f"written by process {os.getpid()} on .*archive.path"), second:
            pass
        shard_of(bucket, [chunk(0, 10)])
    with store_at(bucket).lock(wait):
        assert offsets_read(bucket) == list(range(10))


@pytest.mark.usefixtures("quick")
def test_who_stood_still_and_was_taken_over_puts_nothing_more(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "RENEW_S", 1000.0)
    with store_at(bucket).lock(wait):
        shard = OpenShard(bucket, CLICKS, 0, "parquet", never)
        shard.add(chunk(0, 10))
        with object_store.ObjectLock(object_store.ObjectStore(bucket), wait):
            with pytest.raises(ArchiveBusyError, match="is written by"):
                shard.close()
            assert list(store_at(bucket).files("clicks/0")) == []


def test_a_shard_that_overlaps_anothers_is_never_put(bucket: str) -> None:
    first = shard_of(bucket, [chunk(0, 10)])
    for start, end in ((9, 20), (0, 10), (3, 5)):
        records = chunk(start, end, range(start + 1, end))
        with pytest.raises(ArchiveBusyError, match="another archiver has published"):
            shard_of(bucket, [records])
    assert sorted(first.store.files("clicks/0")) == sorted([first.name, facts_name(first.name)])
    assert complaint_about(first, deep=True) is None


def test_a_put_whose_answer_is_lost_is_recognised_when_it_is_repeated(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, waits = object_store.ObjectStore.put_file, list[OSError]()

    def put_and_lose_the_answer(store: object_store.ObjectStore, key: str, path: str) -> None:
        put(store, key, path)
        if not waits:
            raise ArchiveAwayError("no answer")

    monkeypatch.setattr(object_store.ObjectStore, "put_file", put_and_lose_the_answer)
    shard = OpenShard(bucket, CLICKS, 0, "parquet", waits.append)
    shard.add(chunk(0, 10))
    shard.close()
    assert len(waits) == 1
    assert offsets_read(bucket) == list(range(10))


def test_while_the_store_is_away_a_shard_waits_and_is_whole_afterwards(bucket: str, away: S3Server) -> None:
    waits: list[OSError] = []

    def come_back(error: OSError) -> None:
        waits.append(error)
        away.come_back()

    shard = OpenShard(bucket, CLICKS, 0, "parquet", come_back)
    shard.add(chunk(0, 10))
    away.go_away()
    closed = shard.close()
    assert [type(error) for error in waits] == [ArchiveAwayError]
    assert complaint_about(closed, deep=True) is None
    assert offsets_read(bucket) == list(range(10))


def test_a_store_that_is_away_is_no_damage_and_its_replay_skips_nothing(
    bucket: str, away: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "_AHEAD_BYTES", 1)  # so that each piece is asked for by itself
    first, second = shard_of(bucket, [chunk(0, 10), chunk(10, 20), chunk(20, 30)]), shard_of(bucket, [chunk(30, 40)])
    away.go_away()
    for ask in (
        lambda: shard_at(bucket, CLICKS, 0),
        lambda: listing(bucket),
        lambda: complaint_about(first, deep=True),
        lambda: list(read(second)),
    ):
        with pytest.raises(ArchiveAwayError, match=r"archive\.path: s3://.* cannot be reached"):
            ask()
    away.come_back()
    replay, start, outages = ShardReplay(bucket, CLICKS, 1, most=10), 0, 0
    taken: list[int] = []
    while start < 40:
        try:
            found = replay.next_chunk(start, None)
        except ArchiveAwayError:
            outages += 1
            away.come_back()
            continue
        assert found is not None
        assert found.start == start
        taken, start = taken + found.offsets.tolist(), found.end
        # What was read ahead is still given; then the store is asked, and is away.
        away.go_away()
    assert outages == 2
    assert taken == list(range(40))


@pytest.mark.slow
def test_a_kill_between_description_and_data_leaves_what_the_next_one_removes(bucket: str) -> None:
    code = f"from tests.consumers.archive.records import *; shard_of({bucket!r}, [chunk(0, 10)])"
    environ = {**os.environ, VARIABLE: "archive.after_facts=kill"}
    assert subprocess.run([sys.executable, "-c", code], env=environ, timeout=100, check=False).returncode == -9
    assert listing(bucket) == []
    (left,) = leftovers(bucket)
    assert left.endswith("00009.json")
    assert remove_leftovers(bucket) == 1
    shard_of(bucket, [chunk(0, 12)])
    assert offsets_read(bucket) == list(range(12))


def test_a_bucket_that_is_not_there_is_no_empty_archive(bucket: str) -> None:
    missing = bucket.replace("s3://", "s3://no-")
    with pytest.raises(ConfigError, match=f"{missing} is not there: .*create the bucket"):
        listing(missing)


def test_what_is_not_installed_is_named_and_a_folder_needs_no_fsspec() -> None:
    code = """
import sys
from pathlib import Path
from millrace.consumers.archive.shards import listing
assert listing(Path("nowhere")) == []
assert "fsspec" not in sys.modules
sys.modules["s3fs"] = None
for url in ("s3://bucket/clicks", "nothing://bucket"):
    try:
        listing(url)
    except Exception as error:
        print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    missing, unknown = done.stdout.splitlines()
    assert missing == "ConfigError archive.path: s3://bucket/clicks needs the package s3fs: pip install s3fs"
    assert "nothing://bucket names no object store" in unknown
