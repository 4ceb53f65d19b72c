"""`millrace bench` on a real broker: it measures, and leaves nothing behind."""

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import MakeTopic, Produce
from tests.faults.harness.fork_server import run_forked

pytestmark = [pytest.mark.broker, pytest.mark.slow]
_ROOT = Path(__file__).parents[2]
_RECORDS = 200_000
"""So many that learning them takes several looks, which are 50 ms apart."""
_CONFIG = """\
name: trial
kafka:   {{bootstrap_servers: ["{broker}"], topics: [{topic}], start: latest}}
records: {{format: raw, features: {{x: {{dtype: float32, shape: [28]}}}}, label: {{y: float32}}}}
model:   {{build: {model}:build_model}}
checkpoints: {{path: ./checkpoints, every: 1s}}
training: {{batch_size: 64, batches_per_call: 2}}
"""


def bench(
    folder: Path, broker: str, topic: str, *more: str, model: Path = _ROOT / "bench" / "models" / "mlp.py"
) -> "subprocess.CompletedProcess[str]":
    (folder / "trial.yaml").write_text(_CONFIG.format(broker=broker, topic=topic, model=model))
    scratch = folder / "scratch"
    scratch.mkdir()
    arguments = ["bench", "-c", "trial.yaml", "--json", "--seconds", "1", *more]
    return run_forked(arguments, cwd=folder, env={**os.environ, "TMPDIR": str(scratch)})


async def committed(broker: str, topic: str, group: str) -> int | None:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async with AIOKafkaConsumer(bootstrap_servers=broker, group_id=group) as consumer:
        return await consumer.committed(TopicPartition(topic, 0))  # type: ignore[no-any-return]


@pytest.mark.timeout(180)
def test_a_trial_measures_what_the_topic_holds_and_leaves_nothing_behind(
    broker: str, topic: MakeTopic, produce: Produce, tmp_path: Path
) -> None:
    name = topic()
    produce(name, [bytes(29 * 4)] * _RECORDS)
    done = bench(tmp_path, broker, name)
    assert done.returncode == 0, done.stderr
    trial = json.loads(done.stdout)
    assert 0 < trial["records"] <= _RECORDS
    assert trial["records_per_s"] > 0
    assert trial["bound_by"] in {"records", "input", "compute"}
    assert sum(trial["waiting"].values()) == pytest.approx(1.0, abs=0.01)
    check_nothing_is_left(tmp_path, broker, name)


_SLOW = {
    "compute": """\
import keras, tensorflow as tf, time

class Waiting(keras.Model):
    def train_step(self, data):
        with tf.control_dependencies([tf.numpy_function(lambda: time.sleep(0.02), [], [])]):
            return super().train_step(tf.nest.map_structure(tf.identity, data))
""",
    "input": """\
import keras, tensorflow as tf, time

Waiting = keras.Model

def preprocess(features, label, weight):
    late = tf.numpy_function(lambda: (time.sleep(0.1), 0.0)[1], [], tf.float64)
    return {"x": features["x"] + tf.cast(tf.ensure_shape(late, []), tf.float32)}, label, weight
""",
}
_MODEL = """
def build_model():
    x = keras.Input((28,), name="x")
    model = Waiting(x, keras.layers.Dense(1, activation="sigmoid")(x))
    model.compile(optimizer="sgd", loss="binary_crossentropy")
    return model
"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("slow", _SLOW)
def test_what_is_slow_is_named_as_the_limit(
    slow: str, broker: str, topic: MakeTopic, produce: Produce, tmp_path: Path
) -> None:
    name = topic()
    produce(name, [bytes(29 * 4)] * 20_000)
    (tmp_path / "model.py").write_text(_SLOW[slow] + _MODEL)
    done = bench(tmp_path, broker, name, model=tmp_path / "model.py")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["bound_by"] == slow


def check_nothing_is_left(folder: Path, broker: str, topic: str) -> None:
    assert not (folder / "checkpoints").exists()
    of_tensorflow = ("__pycache__", "__autograph_generated_file")
    # A worker that is killed leaves the functions that TensorFlow has generated from the user's, and their bytecode.
    assert [path for path in (folder / "scratch").iterdir() if not path.name.startswith(of_tensorflow)] == []
    for group in ("millrace-trial", "millrace-bench-trial"):
        assert asyncio.run(committed(broker, topic, group)) is None


_SLOW_WORKER = _SLOW["input"].replace(
    "time.sleep(0.1)", "time.sleep(0.1 * (os.environ['MILLRACE_SCALE__INDEX'] == '1'))"
)


@pytest.mark.nightly  # in the gate a slow input is named
@pytest.mark.timeout(400)
def test_a_trial_of_a_group_counts_all_workers_and_names_a_slow_one_as_the_limit(
    broker: str, topic: MakeTopic, produce: Produce, tmp_path: Path
) -> None:
    name, records = topic(2), 20_000
    produce(name, [(number % 2, bytes(29 * 4)) for number in range(records)])
    (tmp_path / "model.py").write_text("import os\n" + _SLOW_WORKER + _MODEL)
    done = bench(tmp_path, broker, name, "--workers", "2", model=tmp_path / "model.py")
    assert done.returncode == 0, done.stderr
    trial = json.loads(done.stdout)
    assert (trial["workers"], trial["bound_by"]) == (2, "workers")
    assert 0 < trial["records"] <= records
    assert sum(trial["waiting"].values()) == pytest.approx(1.0, abs=0.01)
    check_nothing_is_left(tmp_path, broker, name)


@pytest.mark.timeout(400)
def test_a_trial_of_a_group_ends_with_the_error_of_its_worker(broker: str, tmp_path: Path) -> None:
    done = bench(tmp_path, broker, "none-of-this-name", "--workers", "2")
    assert done.returncode == 3
    assert "topic none-of-this-name is not at" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.timeout(180)
def test_an_empty_topic_is_said_to_be_no_measure(broker: str, topic: MakeTopic, tmp_path: Path) -> None:
    name = topic()
    done = bench(tmp_path, broker, name)
    assert done.returncode == 1
    assert f"{name} held 0 records, too few to measure by" in done.stderr
    assert "Traceback" not in done.stderr
