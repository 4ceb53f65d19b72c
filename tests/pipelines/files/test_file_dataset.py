"""Files as blocks: every row once, whatever the order, the cache or the number of shards; damage is found."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millrace.consumers.errors import ConfigError
from millrace.consumers.reasons import Reason
from millrace.pipelines.files.file_dataset import FileBlocks, FileOptions
from millrace.pipelines.files.shard_files import AT_ONCE, example_files
from millrace.pipelines.files.tfrecord_frames import count_records
from millrace.pipelines.files.visits import CountedShard, Refusals, Visits
from millrace.pipelines.schema import Field, Schema
from tests.pipelines.files.example_files import cut_short, example, present, write

pytestmark = pytest.mark.tensorflow
SCHEMA = Schema(
    features=(Field(name="x", source="x", dtype="float32"),), labels=(Field(name="y", source="y", dtype="float32"),)
)
BAD = 17
"""The row of the first shard that lacks its label."""
OPTIONS = FileOptions(batch_size=16, batches_per_call=4, shuffle=256)
ROWS = (1030, 0, 700, 1)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[CountedShard]:
    folder = tmp_path_factory.mktemp("files")
    found = []
    for place, rows in enumerate(ROWS):
        records = [example({"x": float(place * 10_000 + row), "y": 1.0}) for row in range(rows)]
        if place == 0:
            records[BAD] = example({"x": 1.0})
        found.append(write(folder / f"{place}.tfrecord{'.gz' if place % 2 else ''}", records))
    return found


def blocks_of(shards: list[CountedShard], refusals: Refusals, **options: Any) -> FileBlocks:
    reader = example_files(shards, SCHEMA, refusals)
    return FileBlocks(reader, SCHEMA, range(len(shards)), replace(OPTIONS, **options))


EVERY = {(place, row) for place, rows in enumerate(ROWS) for row in range(rows)} - {(0, BAD)}


@pytest.mark.parametrize("cache", [None, "memory", "folder"])
def test_each_epoch_gives_every_row_once_in_another_order(
    shards: list[CountedShard], cache: str | None, tmp_path: Path
) -> None:
    refusals = Refusals()
    blocks = blocks_of(shards, refusals, cache=str(tmp_path) if cache == "folder" else cache)
    orders = []
    for number in range(2):
        visits = Visits(shards)
        epoch = list(blocks.epoch(number))
        assert {rows.weights.shape[1] for rows in epoch} == {OPTIONS.batch_size}
        assert max(int(rows.weights.shape[0]) for rows in epoch) == OPTIONS.batches_per_call
        found = present(epoch)
        assert {(shard, row) for shard, row, _ in found} == EVERY
        assert len(found) == len(EVERY)
        assert all(x == shard * 10_000 + row for shard, row, x in found)
        orders.append([(shard, row) for shard, row, _ in found])
        for rows in epoch:
            here = rows.offsets.numpy() >= 0
            visits.add(rows.partitions.numpy()[here], rows.offsets.numpy()[here])
        visited = visits.ended(refusals.of)
        assert str(visited) == f"visited 100 % of {sum(ROWS):,} rows, 0 twice"
        assert visited.all
    assert orders[0] != orders[1]
    assert refusals.by_reason() == {Reason.MISSING: 1}


def test_deterministic_epochs_are_the_same_on_every_run(shards: list[CountedShard]) -> None:
    runs = [present(blocks_of(shards, Refusals(), deterministic=True, seed=3).epoch(1)) for _ in range(2)]
    assert runs[0] == runs[1]


def test_the_files_own_order_is_kept_without_shuffling(shards: list[CountedShard]) -> None:
    found = present(blocks_of(shards[:1], Refusals(), shuffle=0, deterministic=True).epoch(0))
    assert [row for _, row, _ in found] == [row for row in range(ROWS[0]) if row != BAD]


def test_a_small_window_holds_rows_of_all_shards_read_beside_each_other(tmp_path: Path) -> None:
    records = [example({"x": float(row), "y": 1.0}) for row in range(64)]
    shards = [write(tmp_path / f"{place}.tfrecord", records) for place in range(AT_ONCE)]
    blocks = list(blocks_of(shards, Refusals(), deterministic=True).epoch(0))
    window = blocks[: OPTIONS.shuffle // (OPTIONS.batch_size * OPTIONS.batches_per_call)]
    assert len({shard for shard, _, _ in present(window)}) == AT_ONCE


@pytest.mark.parametrize(("calls", "expected"), [(1, [64, 64]), (4, [64, 128, 256, 256]), (5, [64, 128, 256, 320])])
def test_the_first_windows_are_small_so_that_learning_begins_early(
    shards: list[CountedShard], calls: int, expected: list[int]
) -> None:
    blocks = blocks_of(shards, Refusals(), shuffle=64 * calls, deterministic=True)
    sizes = [int(rows.offsets.shape[0]) for rows in blocks._windows(0)]
    assert sizes[: len(expected)] == expected
    assert {*sizes[len(expected) : -1]} <= {64 * calls}
    assert sum(sizes) == len(EVERY)


def test_tensorflows_tuner_cannot_hold_up_the_end_of_an_epoch(shards: list[CountedShard]) -> None:
    assert blocks_of(shards, Refusals()).dataset(0).options().autotune.enabled is False


def test_rows_that_are_lost_or_come_twice_are_counted() -> None:
    shard = CountedShard(name="a", path="a", rows=1000, first=50, end=1050)
    visits = Visits([shard, replace(shard, name="b")])
    rows = np.arange(50, 1050)
    visits.add(np.zeros(1000, np.int32), rows)
    visits.add(np.zeros(2, np.int32), np.array([50, 50]))
    visits.add(np.ones(984, np.int32), rows[:984])
    visits.add(np.ones(1, np.int32), rows[:1])
    visited = visits.ended(lambda shard: rows[983:986] if shard else rows[:0])
    assert (visited.visited, visited.twice, visited.lacking) == (1986, 3, {"b": 14})
    assert str(visited) == "visited 99.3 % of 2,000 rows, 3 twice"
    assert not visited.all


@pytest.mark.parametrize("name", ["a.tfrecord", "a.tfrecord.gz"])
def test_a_file_that_ends_inside_a_record_is_refused_before_it_is_read(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, [example({"x": 1.0, "y": 0.0})] * 9)
    assert count_records(tmp_path / name) == 9
    cut_short(tmp_path / name)
    with pytest.raises(ConfigError, match=f"{name} ends inside record 9"):
        count_records(tmp_path / name)


def test_a_damaged_record_ends_the_epoch_with_an_error(tmp_path: Path) -> None:
    shard = write(tmp_path / "a.tfrecord", [example({"x": 1.0, "y": 0.0})] * 9)
    raw = bytearray(Path(shard.path).read_bytes())
    raw[-20] ^= 1
    Path(shard.path).write_bytes(bytes(raw))
    with pytest.raises(ConfigError, match=r"a\.tfrecord cannot be read: the checksum of record 8"):
        list(blocks_of([shard], Refusals()).epoch(0))
