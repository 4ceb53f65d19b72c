"""A tf.data service prepares what a model is pretrained on; what is lost with a worker is counted, row by row."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from millrace.consumers.archive.archiver import OpenShard
from millrace.consumers.fingerprints import Fingerprint
from millrace.consumers.records import Chunk, Partition
from millrace.training.checkpoints.folder import Folder
from tests.faults.harness.data_service import DataService
from tests.faults.harness.fork_server import ForkedProcess
from tests.faults.harness.project import FEATURES
from tests.faults.harness.records import ExpectedPosition, good
from tests.faults.harness.shelf import Shelf

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROWS, SHARDS = 200, 12
BAD = 7
"""The row of each shard that lacks its label."""
MODEL = Path(__file__).parent / "harness" / "model.py"
SLOW = '''

import sys


def preprocess(features, label, weight):
    """Tell that it works, and take long."""
    told = tf.print("prepares", tf.shape(label)[0], output_stream=sys.stderr)
    with tf.control_dependencies([told]):
        heavy = tf.while_loop(
            lambda i, m: i < 16, lambda i, m: (i + 1, tf.linalg.matmul(m, m) / 500.0), (0, tf.ones([500, 500]))
        )[1]
    return {**features, "x": features["x"] + 0.0 * heavy[0, 0]}, label, weight
'''


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DataService]:
    made = DataService(tmp_path_factory.mktemp("service") / "servers", workers=2)
    yield made
    made.close()


def record(shard: int, row: int) -> dict[str, object]:
    """Return a record whose id is its place, of a partition by its shard."""
    made = good(ExpectedPosition(shard % 4, shard * ROWS + row), Random(row))
    if row == BAD:
        del made["y"]
    return made


def archive(folder: Path) -> None:
    """Write Parquet shards as `millrace archive` does."""

    def full(error: OSError) -> None:
        raise error

    for number in range(SHARDS):
        partition, offsets = Partition("t", 0), np.arange(number * ROWS, (number + 1) * ROWS)
        values = [json.dumps(record(number, row)).encode() for row in range(ROWS)]
        shard = OpenShard(folder, partition, int(offsets[0]), "parquet", full)
        shard.add(
            Chunk(
                partition=partition,
                incarnation=0,
                start=int(offsets[0]),
                end=int(offsets[-1]) + 1,
                offsets=offsets,
                timestamps=1_700_000_000_000 + offsets,
                keys=[None] * ROWS,
                values=values,
                headers=[()] * ROWS,
                nbytes=0,
                fetched_at=0.0,
                fingerprint=Fingerprint.of(int(offsets[-1]), 1_700_000_000_000, None, values[-1]),
            )
        )
        shard.close()


def examples(folder: Path) -> list[str]:
    """Write TFRecord files of Examples."""
    from tests.pipelines.files.example_files import example, write

    folder.mkdir()
    paths = [folder / f"{number:02}.tfrecord.gz" for number in range(SHARDS)]
    for number, path in enumerate(paths):
        write(path, [example(record(number, row)) for row in range(ROWS)])
    return [str(path) for path in paths]


def config(folder: Path, extra: str = "") -> Path:
    """Write a model and its config."""
    folder.mkdir(exist_ok=True)
    (folder / "model.py").write_text(MODEL.read_text() + extra)
    path = folder / "millrace.yaml"
    settings = {
        "name": "m",
        "kafka": {"bootstrap_servers": ["127.0.0.1:1"], "topics": ["t"]},
        "records": {"format": "json", "features": FEATURES, "label": {"y": {"dtype": "float32", "one_of": [0, 1]}}},
        "model": {"build": "./model.py:build_model"},
        "training": {"batch_size": 64, "batches_per_call": 4},
        "checkpoints": {"path": "./checkpoints"},
        "archive": {"path": "./archive"},
    }
    path.write_text(json.dumps(settings))
    return path


def pretrain(path: Path, *arguments: str) -> ForkedProcess:
    command = ["pretrain", "-c", str(path), "--position", "t:0=1", "--validation", "0", "--json", *arguments]
    return ForkedProcess(command, Path.cwd(), os.environ, (path.with_name("out"), path.with_name("err")))


def outcome(process: ForkedProcess, folder: Path) -> tuple[Any, dict[int, tuple[int, int, int]]]:
    """Return what the pretraining says, and what its model has added up."""
    ended = process.wait(400)
    out, err = ((folder / name).read_text() for name in ("out", "err"))
    assert ended, err
    assert process.exit_code == 0, err
    statement = Shelf(Folder(folder / "checkpoints" / "m")).statement(0)
    return json.loads(out[out.index("{") :]), dict(statement.ids)


@pytest.mark.nightly  # in the gate one of the workers is killed
def test_workers_of_a_service_give_every_row_once_an_epoch(service: DataService, tmp_path: Path) -> None:
    path, bound = config(tmp_path), ["--max-outstanding-requests", "2"]
    said, learnt = outcome(
        pretrain(path, *examples(tmp_path / "files"), "--epochs", "2", "--service", service.address, *bound), tmp_path
    )
    total = SHARDS * ROWS
    whole = {"rows": total, "visited": total, "twice": 0, "lacking": {}, "damaged": []}
    assert [epoch["visited"] for epoch in said["epochs"]] == [whole, whole]
    assert said["epochs"][1]["set_aside"] == {"missing": SHARDS}
    ids = [shard * ROWS + row for shard in range(SHARDS) for row in range(ROWS) if row != BAD]
    assert sum(count for count, _, _ in learnt.values()) == 2 * len(ids)
    assert sum(squares for _, _, squares in learnt.values()) == 2 * sum(i * i for i in ids)


def test_rows_lost_with_a_killed_worker_are_those_the_epoch_names(service: DataService, tmp_path: Path) -> None:
    path = config(tmp_path, SLOW)
    archive(tmp_path / "archive")
    process = pretrain(path, "--service", service.address)
    victim = service.workers[1]
    victim.wait_for("prepares")
    victim.kill()
    said, learnt = outcome(process, tmp_path)
    victim.start()
    victim.wait_for("serves on")
    (epoch,) = said["epochs"]
    visited, total = epoch["visited"], SHARDS * ROWS
    assert visited["visited"] < total, "nothing was lost"
    counted = sum(count for count, _, _ in learnt.values()) + epoch["set_aside"].get("missing", 0)
    assert (visited["rows"], visited["visited"], visited["twice"]) == (total, counted, 0)
    assert sum(visited["lacking"].values()) == total - counted


@pytest.mark.nightly  # in the gate one of the workers is killed
def test_trainers_that_share_a_cache_get_as_many_rows_as_there_are(service: DataService, tmp_path: Path) -> None:
    files = examples(tmp_path / "files")
    folders = [tmp_path / "one", tmp_path / "two"]
    sharing = ("--service", service.address, "--job-name", tmp_path.name, "--cross-trainer-cache")
    processes = [pretrain(config(folder), *files, *sharing) for folder in folders]
    for process, folder in zip(processes, folders, strict=True):
        said, learnt = outcome(process, folder)
        (epoch,) = said["epochs"]
        assert epoch["learnt"] == SHARDS * (ROWS - 1) == sum(count for count, _, _ in learnt.values())
        assert SHARDS * ROWS - epoch["visited"]["visited"] == sum(epoch["visited"]["lacking"].values())
