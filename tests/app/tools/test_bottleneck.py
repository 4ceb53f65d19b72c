"""What is slowest in a pretraining is measured, and said in words; a trace of some calls is written."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from millrace.app.tools.pretrain.bottleneck import InputProfile, verdict
from millrace.consumers.errors import ConfigError
from millrace.pipelines.files.file_dataset import FileBlocks, FileOptions
from millrace.pipelines.files.shard_files import example_files
from millrace.pipelines.files.stage_times import StageTimes
from millrace.pipelines.files.visits import Refusals
from millrace.pipelines.schema import Field, Schema
from tests.pipelines.files.example_files import example, present, write

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize(
    ("call_s", "wait_s", "slowest"), [(9.5, 0.5, "the call"), (5.0, 5.0, "decoding"), (0.5, 9.5, "decoding")]
)
def test_the_call_is_slowest_unless_it_waits_for_rows(call_s: float, wait_s: float, slowest: str) -> None:
    where, threads, found = verdict(call_s, wait_s, {"reading": 1.0, "decoding": 3.0, "preprocess": 0.2})
    assert where == f"the call took {call_s * 10:.0f} % of the time, and waiting for rows {wait_s * 10:.0f} %"
    assert threads.endswith("reading 1.0 s, decoding 3.0 s, preprocess 0.2 s")
    assert found.startswith(f"slowest is {slowest}: ")


def test_an_epoch_of_one_call_has_no_verdict() -> None:
    assert verdict(0.0, 0.0, {}) == ["the epoch has one call, too few to say what is slowest"]


@pytest.mark.parametrize("cache", [None, "memory"])
def test_a_costly_preprocess_is_the_slowest_stage_and_every_row_comes_once(tmp_path: Path, cache: str | None) -> None:
    schema = Schema(features=(Field(name="x", source="x", dtype="float32"),))
    shard = write(tmp_path / "a.tfrecord", [example({"x": float(row)}) for row in range(300)])

    def heavy(features: Any, label: Any, weight: Any) -> Any:
        made = tf.while_loop(lambda i, _: i < 20, lambda i, m: (i + 1, m @ m / 300.0), (0, tf.ones([300, 300])))[1]
        return {"x": features["x"] + 0.0 * made[0, 0]}, label, weight

    reader = example_files([shard], schema, Refusals())
    options = FileOptions(batch_size=16, batches_per_call=2, shuffle=64, cache=cache)
    blocks = FileBlocks(reader, schema, [0], options, heavy, times=reader.times)
    assert sorted(row for _, row, _ in present(blocks.epoch(0))) == [*range(300)]
    seconds = reader.times.seconds()
    assert seconds.keys() == {"reading", "decoding", "shuffling", "preprocess"}
    assert max(seconds, key=lambda stage: seconds[stage]) == "preprocess"


def test_a_trace_of_some_calls_is_written_and_the_verdict_said(tmp_path: Path) -> None:
    said = list[str]()
    profile = InputProfile(tmp_path / "traces", StageTimes(), said.append)
    for epoch in range(2):
        for call in range(3):
            profile.on_train_batch_begin(call)
            tf.reduce_sum(tf.ones([10])).numpy()
            profile.on_train_batch_end(call)
        profile.on_test_begin()
        profile.on_epoch_end(epoch)
    assert len(said) == 4, "once"
    assert said[-1] == f"a trace of 2 calls: tensorboard --logdir {tmp_path / 'traces'}"
    (trace,) = (tmp_path / "traces").rglob("*.xplane.pb")
    assert b"reduce" in trace.read_bytes().lower() or b"Sum" in trace.read_bytes()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    profile = InputProfile(tmp_path / "file", StageTimes(), print)
    profile.on_train_batch_begin(0)
    with pytest.raises(ConfigError, match="--profile: TensorFlow takes no trace to"):
        profile.on_train_batch_end(0)
