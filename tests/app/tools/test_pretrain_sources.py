"""What a pretraining reads: shards of an archive in both formats, dealt by time, and followed by an exact offset."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import typer

from millrace.app.cli.pretrain import EpochLines, RangeOptions, ReadingOptions, SharingOptions, source_of
from millrace.app.settings import Settings, load, to_schema
from millrace.app.tools.pretrain.inputs import (
    InputOptions,
    chunks_of,
    reader_of,
    served,
    training_blocks,
)
from millrace.app.tools.pretrain.shard_sources import (
    ShardSource,
    TopicRange,
    from_archive,
    from_files,
    require_range,
    split,
)
from millrace.consumers.archive.archive_store import Place
from millrace.consumers.archive.object_store import ObjectStore
from millrace.consumers.archive.shard_names import Format
from millrace.consumers.archive.stores import store_at
from millrace.consumers.errors import ConfigError
from millrace.consumers.kafka.positions import Ago, Now
from millrace.consumers.records import Partition
from millrace.pipelines.files.service_dataset import ServiceJob
from millrace.pipelines.files.visits import CountedShard, Refusals, Visits
from tests.consumers.archive import records
from tests.pipelines.files.example_files import cut_short, example, present, write

pytestmark = pytest.mark.tensorflow
CONFIG = {
    "name": "clicks",
    "kafka": {"bootstrap_servers": ["127.0.0.1:1"], "topics": ["clicks"]},
    "records": {"format": "json", "features": {"x": "float32"}, "label": {"y": "float32"}},
    "model": {"build": "./model.py:build_model"},
    "training": {"batch_size": 16, "batches_per_call": 2},
    "checkpoints": {"path": "./checkpoints"},
}
GAP = range(20, 25)
"""Offsets that compaction has removed."""
BAD = 31


def archived(place: Place, partition: int, first: int, end: int, form: Format) -> None:
    there = [offset for offset in range(first, end) if offset not in GAP]
    chunk = records.chunk(first, end, there, Partition("clicks", partition))
    values = [json.dumps({"x": offset} | ({} if offset == BAD else {"y": 1})).encode() for offset in there]
    records.shard_of(place, [replace(chunk, values=values)], form)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["parquet", "tfrecord"])
@pytest.mark.parametrize("kind", ["folder", "s3"])
def test_an_archive_is_visited_whole_and_followed_by_the_next_offset(
    tmp_path: Path, kind: str, form: Format, request: pytest.FixtureRequest
) -> None:
    place: Place = tmp_path / "archive" if kind == "folder" else request.getfixturevalue("bucket")
    (tmp_path / "clicks.yaml").write_text(json.dumps(CONFIG))
    settings = load(tmp_path / "clicks.yaml", {}).settings
    for partition, first, end in ((0, 10, 40), (0, 40, 90), (1, 0, 15), (1, 15, 2000)):
        archived(place, partition, first, end, form)
    archived(place, 2, 5, 6, form)
    source = from_archive(place, settings.kafka.topics)
    following = {Partition("clicks", 0): 90, Partition("clicks", 1): 2000, Partition("clicks", 2): 6}
    assert source.positions == following
    training, validation = split(source, 0.5)
    assert validation is not None
    assert validation.rows == source.rows // 2
    refusals = Refusals()
    blocks = training_blocks(reader_of(training, settings, refusals), training, settings, InputOptions(), None)
    assert blocks.schema == to_schema(settings.records)
    visits = Visits(training.shards)
    for rows in blocks.epoch(0):
        here = rows.offsets.numpy() >= 0
        visits.add(rows.partitions.numpy()[here], rows.offsets.numpy()[here])
    assert visits.ended(refusals.of).all
    assert sum(refusals.by_reason().values()) == 2
    found = present(blocks.epoch(1))
    assert all(x == offset for _, offset, x in found), "the number of a row is its offset"
    assert len(found) == training.rows - 2


BESIDE = {
    "who": {"dtype": "string", "field": "$key", "missing": "nobody"},
    "trace": {"dtype": "int64", "field": "$header.trace", "missing": -1},
    "at": {"dtype": "int64", "field": "$timestamp"},
    "part": {"dtype": "int32", "field": "$partition"},
}


@pytest.mark.slow
@pytest.mark.parametrize("form", ["parquet", "tfrecord"])
@pytest.mark.parametrize("asked", [["who"], ["trace"], ["who", "trace", "at", "part"]])
def test_what_is_beside_the_values_is_read_from_an_archive(tmp_path: Path, form: Format, asked: list[str]) -> None:
    features = {"x": "float32", **{name: BESIDE[name] for name in asked}}
    config = {**CONFIG, "records": {"features": features}}
    (tmp_path / "clicks.yaml").write_text(json.dumps(config))
    settings = load(tmp_path / "clicks.yaml", {}).settings
    archived(tmp_path / "archive", 1, 0, 40, form)
    source = from_archive(tmp_path / "archive", settings.kafka.topics)
    blocks = training_blocks(reader_of(source, settings, Refusals()), source, settings, InputOptions(), None)
    found = set[int]()
    for rows in blocks.epoch(0):
        columns = {name: column.numpy().ravel().tolist() for name, column in rows.features.items()}
        for row, offset in enumerate(rows.offsets.numpy().ravel().tolist()):
            if offset < 0:
                continue
            found.add(offset)
            expected = {
                "who": b"nobody" if records.key(offset) is None else records.key(offset),
                "trace": offset if offset % 3 == 1 else -1,
                "at": 1_700_000_000_000 + offset,
                "part": 1,
            }
            assert {name: columns[name][row] for name in asked} == {name: expected[name] for name in asked}
    assert found == {*range(40)} - {*GAP}


def test_what_is_beside_the_values_is_in_no_file_of_examples_and_no_service(tmp_path: Path) -> None:
    records_of = {"features": {"x": "float32", "who": BESIDE["who"]}}
    (tmp_path / "clicks.yaml").write_text(json.dumps({**CONFIG, "records": records_of}))
    settings = load(tmp_path / "clicks.yaml", {}).settings
    archived(tmp_path / "archive", 1, 0, 40, "parquet")
    source = from_archive(tmp_path / "archive", settings.kafka.topics)
    reader = reader_of(source, settings, Refusals())
    files = replace(source, archived=())
    with pytest.raises(ConfigError, match=r"'who' is \$key, .* files of Examples have none; pretrain from an archive"):
        reader_of(files, settings, Refusals())
    with pytest.raises(ConfigError, match="a service reads values alone; leave --service out"):
        served(reader, source, settings, ServiceJob(address="127.0.0.1:1"), None, Refusals())


def test_files_of_examples_are_filtered_as_examples_whatever_the_format_of_the_topics(tmp_path: Path) -> None:
    section = {**CONFIG["records"], "where": {"kind": "click"}}  # type: ignore[dict-item]  # of records that are JSON
    (tmp_path / "clicks.yaml").write_text(json.dumps({**CONFIG, "records": section}))
    settings = load(tmp_path / "clicks.yaml", {}).settings
    kinds = (b"click", b"view", b"click")
    write(tmp_path / "a.tfrecord", [example({"x": float(at), "y": 1.0, "kind": one}) for at, one in enumerate(kinds)])
    source, refusals = from_files([tmp_path / "a.tfrecord"]), Refusals()
    blocks = training_blocks(reader_of(source, settings, refusals), source, settings, InputOptions(), None)
    assert [x for _, _, x in sorted(present(blocks.epoch(0)))] == [0.0, 2.0]
    assert (refusals.by_setting(), refusals.by_reason()) == ({"where": 1}, {})


def test_an_archive_that_lacks_a_shard_is_refused(tmp_path: Path) -> None:
    for first, end in ((0, 10), (12, 20)):
        archived(tmp_path, 0, first, end, "parquet")
    with pytest.raises(ConfigError, match="lacks the offsets 10 to 11 of clicks:0"):
        from_archive(tmp_path, ["clicks"])
    with pytest.raises(ConfigError, match="hold no record"):
        from_archive(tmp_path, ["other"])


@pytest.mark.row(35)
def test_the_newest_files_are_validated_on_and_never_trained_on() -> None:
    shards = tuple(CountedShard(name=str(rows), path="a", rows=rows, end=rows) for rows in (50, 30, 15, 5))
    source = ShardSource(what="files", shards=shards)

    def kept(share: float | None) -> list[int]:
        training, validation = split(source, share)
        rest = () if validation is None else validation.shards
        assert training.shards + rest == shards
        return [shard.rows for shard in rest]

    assert kept(0.05) == [5]
    assert kept(None) == [15, 5]
    assert kept(0.21) == [30, 15, 5]
    assert kept(0) == []
    with pytest.raises(ConfigError, match="--validation: 60% takes every shard"):
        split(source, 0.6)
    assert split(ShardSource(what="a file", shards=shards[:1]), None)[1] is None


STORED = {0: (0, 400), 1: (0, 60, 90, 400), 2: (7, 8), 3: (16, 21), 4: (0, 30), 5: (100, 108)}
"""Where the shards of each partition begin and end, GAP left out: one has one record, one five, one eight."""


def offsets_of(source: ShardSource, settings: Settings) -> dict[int, list[int]]:
    """Return what a source is read as, by partition; the first label is missing, and its record still counts."""
    found: dict[int, list[int]] = {}
    for archived_shard, part in zip(source.archived, source.shards, strict=True):
        mine = [int(at) for chunk in chunks_of(archived_shard, part, 7) for at in chunk.offsets]
        assert len(mine) == part.rows
        found.setdefault(archived_shard.partition.number, []).extend(mine)
    reader = reader_of(source, settings, refusals := Refusals())
    blocks = training_blocks(reader, source, settings, InputOptions(), None)
    rows = len(present(blocks.epoch(0)))
    assert rows + sum(refusals.by_reason().values()) == source.rows
    return found


@pytest.mark.row(35)
@pytest.mark.parametrize("form", ["parquet", pytest.param("tfrecord", marks=pytest.mark.nightly)])
def test_the_newest_rows_of_each_partition_are_validated_on_and_never_all_of_one(
    tmp_path: Path, form: Format, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "clicks.yaml").write_text(json.dumps(CONFIG))
    settings = load(tmp_path / "clicks.yaml", {}).settings
    for partition, ends in STORED.items():
        for first, end in pairwise(ends):
            archived(tmp_path / "archive", partition, first, end, form)
    source = from_archive(tmp_path / "archive", ["clicks"])
    for share in (None, 0.001, 0.25, 0.999):
        training, validation = split(source, share)
        assert validation is not None
        learnt, scored = offsets_of(training, settings), offsets_of(validation, settings)
        assert learnt.keys() == STORED.keys(), "each partition is learnt"
        for partition, ends in STORED.items():
            mine = scored.get(partition, [])
            every = [offset for offset in range(ends[0], ends[-1]) if offset not in GAP]
            assert learnt[partition] + mine == every, "the oldest are learnt, the newest validated on, each once"
            assert len(mine) <= math.ceil(len(every) * (share or 0.1))
        if share == 0.999:
            assert all(len(mine) == 1 for mine in learnt.values())
        else:
            assert validation.rows == math.ceil(source.rows * (share or 0.1))
    for share in (None, 0.999, 0):
        EpochLines(1, quiet=False).dealt(*split(source, share))
    what = f"rows of the archive {tmp_path / 'archive'}, validating on"
    assert capsys.readouterr().out.splitlines() == [
        f"training on 745 {what} 83 (10.0 %): the newest of 5 of 6 partitions",
        f"training on 6 {what} 822 (99.3 %): the newest of 5 of 6 partitions",
        f"training on 828 {what} none",
    ]


def test_a_partition_of_one_record_is_trained_on(tmp_path: Path) -> None:
    for partition in range(3):
        archived(tmp_path, partition, 0, 1, "parquet")
    source = from_archive(tmp_path, ["clicks"])
    assert split(source, None) == (source, None)
    with pytest.raises(ConfigError, match=r"--validation: no record of the archive .* is left to validate on"):
        split(source, 0.1)


def test_a_service_validates_on_whole_shards_and_never_on_a_whole_partition(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for partition, ends in {0: (0, 500), 1: (0, 10, 15, 19)}.items():
        for first, end in pairwise(ends):
            archived(tmp_path, partition, first, end, "parquet")
    source = from_archive(tmp_path, ["clicks"])
    training, validation = split(source, None, whole_shards=True)
    assert validation is not None
    assert [shard.rows for shard in training.shards] == [10, 495]
    assert [shard.rows for shard in validation.shards] == [5, 4], "all that there is without a whole partition"
    for settled in ((training, validation), split(source, None)):
        EpochLines(1, quiet=False).dealt(*settled)
    told = [line.rpartition(": ")[2] for line in capsys.readouterr().out.splitlines()]
    assert told == ["the newest of 1 of 2 partitions", "the newest of each of 2 partitions"]
    with pytest.raises(ConfigError, match="--validation: 30% takes every shard"):
        split(source, 0.3, whole_shards=True)


@pytest.mark.parametrize("kind", ["folder", "s3"])
def test_damaged_shards_are_left_out_and_counted_and_live_begins_with_the_last(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    place: Place = tmp_path / "archive" if kind == "folder" else request.getfixturevalue("bucket")
    for partition, first, end in ((0, 30, 40), (0, 40, 90), (0, 90, 140), (1, 0, 15), (1, 15, 30), (2, 5, 9)):
        archived(place, partition, first, end, "parquet")
    whole = from_archive(place, ["clicks"])
    for number in (1, 3, 5):
        shard = sorted(whole.archived, key=lambda one: (one.partition, one.first))[number]
        assert shard.first in {40, 0, 5}
        overwrite(place, shard.key, b"x" * shard.size)
    source = from_archive(place, ["clicks"], skip_damaged=True)
    assert [file.name for file in source.damaged] == [
        f"clicks:{partition}/{first:020}-{last:020}.parquet"
        for partition, first, last in ((0, 40, 89), (1, 0, 14), (2, 5, 8))
    ]
    following = {Partition("clicks", 0): 140, Partition("clicks", 1): 30, Partition("clicks", 2): 5}
    assert source.positions == following, "of partition 2 Kafka may have what the damaged shard had"
    training, validation = split(source, 0.5)
    assert validation is not None
    assert training.rows + validation.rows == source.rows == whole.rows - 69
    EpochLines(1, quiet=False).dealt(training, validation)
    line = capsys.readouterr().out.splitlines()[1]
    assert line.endswith("89.parquet with 50 rows is left out: " + source.damaged[0].why)
    assert "its SHA-256 differs" in line
    visits = Visits(training.shards, training.damaged)
    for number, part in enumerate(training.shards):
        rows = np.arange(part.first, part.end)
        visits.add(np.full(len(rows), number, np.int32), rows)
    visited = visits.ended(lambda _: np.empty(0, np.int64))
    share = 1000 * training.rows // (training.rows + 69) / 10
    assert str(visited).startswith(f"visited {share} % of {training.rows + 69} rows, 0 twice; left out 3 damaged files")
    assert not visited.lacking


def test_damaged_files_are_left_out_and_never_called_100_percent(tmp_path: Path) -> None:
    shards = [
        write(tmp_path / name, [example({"x": 1.0, "y": 0.0})] * 9) for name in ("a.tfrecord", "b.gz", "c.tfrecord")
    ]
    paths = [Path(shard.path) for shard in shards]
    raw = bytearray(paths[0].read_bytes())
    raw[-20] ^= 1
    paths[0].write_bytes(bytes(raw))
    cut_short(paths[1])
    with pytest.raises(ConfigError, match=r"b\.gz ends inside record 9.*; leave it out by --skip-damaged"):
        from_files(paths)
    source = from_files(paths, skip_damaged=True)
    assert [(file.name, file.rows) for file in source.damaged] == [("a.tfrecord", 9), ("b.gz", None)]
    assert source.damaged[0].why == "the checksum of record 8 is another one"
    visits = Visits(source.shards, source.damaged)
    visits.add(np.zeros(9, np.int32), np.arange(9))
    visited = visits.ended(lambda _: np.empty(0, np.int64))
    assert str(visited) == (
        "visited 50.0 % of 18 rows, 0 twice; left out 2 damaged files: 9 rows, and those of 1 that nothing says"
    )
    unknown = replace(visited, rows=9, damaged=source.damaged[1:])
    assert str(unknown).startswith("visited 99.9 % of 9 rows")
    with pytest.raises(ConfigError, match=r"the 2 files hold no record to pretrain on: the checksum of record 8"):
        from_files(paths[:2], skip_damaged=True)


def overwrite(place: Place, key: str, raw: bytes) -> None:
    """Put other bytes in the place of a file."""
    if isinstance(place, Path):
        (place / key).write_bytes(raw)
    else:
        store = store_at(place)
        assert isinstance(store, ObjectStore)
        store.put(key, raw)


@pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options")  # of a graph that nobody runs
def test_a_service_is_asked_for_no_more_chunks_at_a_time_than_the_bound(tmp_path: Path) -> None:
    (tmp_path / "clicks.yaml").write_text(json.dumps(CONFIG))
    (tmp_path / "model.py").touch()
    settings = load(tmp_path / "clicks.yaml", {}).settings
    archived(tmp_path / "archive", 1, 0, 10, "parquet")
    source = from_archive(tmp_path / "archive", ["clicks"])
    local = reader_of(source, settings, Refusals())
    for bound in (None, 3):
        job = ServiceJob(address="127.0.0.1:1", most_asked=bound)
        reader = served(local, source, settings, job, None, Refusals())
        with tf.Graph().as_default() as graph:  # so that nobody is asked
            reader.dataset(lambda: [0], epoch=0, most=1, deterministic=False)
        (op,) = (op for op in graph.get_operations() if op.type.startswith("DataServiceDataset"))
        (asked,) = (tf.get_static_value(one) for one in op.inputs if "max_outstanding_requests" in one.name)
        assert asked == (tf.data.AUTOTUNE if bound is None else bound)
    with pytest.raises(typer.BadParameter, match="name it by --service"):
        SharingOptions(max_outstanding_requests=3).check(deterministic=False, ranged=False)


@pytest.mark.parametrize(
    ("files", "start", "reading"),
    [
        ([], "-7d", ReadingOptions(skip_damaged=True)),
        ([], "-7d", ReadingOptions(cache_shards=Path("copies"))),
        ([Path("a.tfrecord")], None, ReadingOptions(cache_shards=Path("copies"))),
        ([], None, ReadingOptions(cache_shards=Path("copies"))),
    ],
)
def test_what_is_for_other_sources_is_refused(
    tmp_path: Path, files: list[Path], start: str | None, reading: ReadingOptions
) -> None:
    (tmp_path / "clicks.yaml").write_text(json.dumps({**CONFIG, "archive": {"path": "./archive"}}))
    found = load(tmp_path / "clicks.yaml", {})
    with pytest.raises(typer.BadParameter, match=r"it goes with files|it is for the shards of an archive in a bucket"):
        source_of(found, files, RangeOptions(start=start), reading)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="there is no file nowhere"):
        from_files([Path("nowhere")])


@pytest.mark.parametrize(
    ("files", "start", "until", "complaint"),
    [
        ([Path("a.tfrecord")], "-7d", None, "name files, or a range"),
        ([], None, "now", "give its beginning by --from"),
    ],
)
def test_a_range_goes_with_no_files_and_no_service_and_has_a_beginning(
    files: list[Path], start: str | None, until: str | None, complaint: str, tmp_path: Path
) -> None:
    (tmp_path / "clicks.yaml").write_text(json.dumps(CONFIG))
    found = load(tmp_path / "clicks.yaml", {})
    with pytest.raises(typer.BadParameter, match=complaint):
        source_of(found, files, RangeOptions(start=start, until=until))
    with pytest.raises(typer.BadParameter, match="archive the topics first"):
        SharingOptions(service="grpc://127.0.0.1:1").check(deterministic=False, ranged=True)
    assert source_of(found, [], RangeOptions(start="-7d")) == TopicRange(start=Ago(7 * 86400), until=Now())


@pytest.mark.parametrize(("end", "complaint"), [(9, "--until is before --from"), (31, "names offset 31")])
def test_a_range_that_ends_before_it_begins_or_behind_the_last_record_is_refused(end: int, complaint: str) -> None:
    clicks = records.CLICKS
    with pytest.raises(ConfigError, match=complaint):
        require_range({clicks: 10}, {clicks: end}, {clicks: 30})
    require_range({clicks: 10}, {clicks: 10}, {clicks: 30})
