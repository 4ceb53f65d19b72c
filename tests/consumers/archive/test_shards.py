"""Shards: what was written is read back, and a kill or a full disk leaves whole shards or none."""

import ast
import errno
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.consumers.archive.archive_store import Place
from millrace.consumers.archive.archiver import OpenShard
from millrace.consumers.archive.shard_names import SUFFIXES, Format, facts_name
from millrace.consumers.archive.shard_reader import complaint_about, pieces, read, read_piece
from millrace.consumers.archive.shards import listing, remove_leftovers, survey
from millrace.consumers.archive.stores import store_at
from millrace.consumers.errors import ArchiveDamagedError
from millrace.consumers.failpoints import NAMES, VARIABLE
from tests.consumers.archive.records import CLICKS, chunk, file_of, headers, key, never, shard_of, value

POINTS = [name for name in NAMES if name.startswith("archive.")]


def offsets_read(place: Place, from_offset: int = 0) -> list[int]:
    """Read the whole archive, compare each record, and return the offsets."""
    found = []
    for shard in listing(place):
        for columns in read(shard, from_offset):
            offsets = columns.offsets.tolist()
            assert columns.timestamps.tolist() == [1_700_000_000_000 + offset for offset in offsets]
            assert list(columns.keys) == list(map(key, offsets))
            assert list(columns.values) == list(map(value, offsets))
            assert list(map(tuple, columns.headers)) == list(map(headers, offsets))
            found += offsets
    return found


@pytest.mark.parametrize("form", SUFFIXES)
def test_a_shard_gives_back_every_record_as_it_was(form: Format, place: Place) -> None:
    present = [3, 4, 5, 9, 10]
    written = shard_of(place, [chunk(3, 12, present), chunk(12, 20)], form)
    (found,) = listing(place)
    assert found == written
    assert found.name == "00000000000000000003-00000000000000000019" + SUFFIXES[form]
    assert (found.first, found.next_offset, found.records) == (3, 20, 13)
    assert (found.earliest_ms, found.latest_ms) == (1_700_000_000_003, 1_700_000_000_019)
    assert complaint_about(found, deep=True) is None
    assert offsets_read(place) == [*present, *range(12, 20)]


@pytest.mark.parametrize("form", SUFFIXES)
@pytest.mark.parametrize("start", [0, 4, 5, 11, 12, 15, 19, 20])
def test_reading_begins_at_any_offset(start: int, form: Format, place: Place) -> None:
    shard_of(place, [chunk(3, 12, [3, 4, 5, 9, 10]), chunk(12, 20)], form)
    assert offsets_read(place, start) == [at for at in [3, 4, 5, 9, 10, *range(12, 20)] if at >= start]


def test_a_piece_is_read_by_itself_with_the_columns_that_are_asked_for(place: Place) -> None:
    shard = shard_of(place, [chunk(0, 10), chunk(10, 25)])
    assert [(piece.first, piece.last, piece.records) for piece in pieces(shard)] == [(0, 9, 10), (10, 24, 15)]
    table = read_piece(pieces(shard)[1], ["value"])
    assert table.column_names == ["value"]
    assert table.column("value").to_pylist() == [value(offset) for offset in range(10, 25)]


def test_shards_are_listed_by_offset_and_what_a_volume_has_besides_is_not(tmp_path: Path) -> None:
    for start, end in [(1_000_000, 1_000_010), (0, 9), (9, 1_000_000)]:
        shard_of(tmp_path, [chunk(start, end, [start])])
    of_the_volume = tmp_path / "lost+found" / "0"
    of_the_volume.mkdir(parents=True)
    (of_the_volume / f"{0:020}-{8:020}.parquet").touch()
    assert [shard.first for shard in listing(tmp_path)] == [0, 9, 1_000_000]
    assert sorted(path.name for path in (tmp_path / "clicks/0").glob("*.parquet")) == [
        shard.name for shard in listing(tmp_path)
    ]


def test_tensorflow_reads_a_tfrecord_shard(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, [chunk(0, 30)], "tfrecord")
    program = f"""
import tensorflow as tf
spec = {{name: tf.io.FixedLenFeature([], tf.int64) for name in ("offset", "timestamp")}}
spec |= {{name: tf.io.VarLenFeature(tf.string) for name in ("key", "value", "header_names", "header_values")}}
dataset = tf.data.TFRecordDataset({str(shard.path)!r}, "GZIP")
print([[int(found["offset"]), found["value"].values.numpy().tolist(), found["header_values"].values.numpy().tolist()]
       for found in (tf.io.parse_single_example(raw, spec) for raw in dataset)])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=True)
    assert ast.literal_eval(done.stdout) == [
        [at, [text for text in [value(at)] if text is not None], [held for _, held in headers(at)]] for at in range(30)
    ]


@pytest.mark.row(32)
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_while_a_shard_is_closed_leaves_a_whole_shard_or_none(point: str, tmp_path: Path) -> None:
    code = (
        "from pathlib import PosixPath; from tests.consumers.archive.records import *; "
        f"shard_of({tmp_path!r}, [chunk(0, 10)])"
    )
    killed = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, VARIABLE: f"{point}=kill"}, timeout=60, check=False
    )
    assert killed.returncode == -9
    assert offsets_read(tmp_path) == (list(range(10)) if point == "archive.after_rename" else [])
    remove_leftovers(tmp_path)
    if not listing(tmp_path):
        shard_of(tmp_path, [chunk(0, 12)])
    (shard,) = listing(tmp_path)
    assert sorted(shard.store.files("clicks/0")) == sorted([shard.name, facts_name(shard.name)])


def test_a_json_file_that_never_got_its_name_is_removed_and_nothing_else_is(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, [chunk(0, 12)])
    folder = file_of(shard).parent
    torn = folder / f".{facts_name(shard.name)}.new-1234"
    for path in (torn, folder / ".notes.json.new-1", folder / f".{shard.name}.new-1"):
        path.touch()
    assert remove_leftovers(tmp_path) == 1
    assert not torn.exists()
    assert [*listing(tmp_path)] == [shard]


@pytest.mark.row(32)
def test_a_full_disk_is_waited_out_and_the_shard_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[OSError] = []
    writes: list[int] = []
    write = os.write

    def short_or_full(handle: int, raw: memoryview) -> int:
        writes.append(len(raw))
        if len(writes) % 3 == 0:
            raise OSError(errno.ENOSPC, "no room")
        return write(handle, raw[: max(1, len(raw) // 2)])

    monkeypatch.setattr(os, "write", short_or_full)
    shard = OpenShard(tmp_path, CLICKS, 0, "parquet", waits.append)
    shard.add(chunk(0, 500))
    closed = shard.close()
    monkeypatch.undo()
    assert waits
    assert closed.sha256 == hashlib.sha256(file_of(closed).read_bytes()).hexdigest()
    assert offsets_read(tmp_path) == list(range(500))


def test_a_shard_that_is_given_up_leaves_nothing(place: Place) -> None:
    shard = OpenShard(place, CLICKS, 0, "parquet", never)
    shard.add(chunk(0, 10))
    shard.flush()
    shard.abandon()
    assert list(store_at(place).files("clicks/0")) == []


@pytest.mark.parametrize(
    ("form", "at"),
    [*(("parquet", at) for at in (4, 200, 400, -6, -1)), *(("tfrecord", at) for at in (0, 60, 120, -8, -1))],
)
def test_a_changed_byte_is_found_and_never_read_as_a_record(form: Format, at: int, tmp_path: Path) -> None:
    shard = shard_of(tmp_path, [chunk(0, 10)], form)
    raw = bytearray(file_of(shard).read_bytes())
    raw[at] ^= 1
    file_of(shard).write_bytes(raw)
    assert "SHA-256" in (complaint_about(shard, deep=True) or "")
    with pytest.raises(ArchiveDamagedError):
        assert offsets_read(tmp_path) == list(range(10))


def test_a_shard_that_nothing_describes_is_named_and_hides_no_other(place: Place) -> None:
    first, second = (shard_of(place, [chunk(start, start + 10)]) for start in (0, 10))
    first.store.remove([first.facts_key])
    found = survey(place)
    assert found.shards == (second,)
    assert first.name in found.problems[0]
    with pytest.raises(ArchiveDamagedError, match=r"00009\.json"):
        listing(place)


def test_shards_that_overlap_are_refused(tmp_path: Path) -> None:
    shard_of(tmp_path, [chunk(0, 10)])
    shard_of(tmp_path, [chunk(9, 20)])
    with pytest.raises(ArchiveDamagedError, match="begins within"):
        listing(tmp_path)
