"""Records without a label through Kafka: checked, learnt, and resumed from a checkpoint by another process."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from app.tools.prove.checkpoint_reader import Shelf
from consumers.records import Partition
from tests.conftest import MakeTopic, Produce
from tests.faults.harness.fork_server import run_forked
from training.checkpoints.folder import Folder
from training.ledger.offset_checksum import Evidence

pytestmark = pytest.mark.slow
MODEL = """\
import keras


def build_model():
    x = keras.Input((4,), name="x")
    model = keras.Model(x, keras.layers.Dense(4)(keras.layers.Dense(2)(x)))
    model.compile(optimizer="adam", loss="mse", metrics=["mae"])
    return model


def preprocess(features, label, weight):
    assert label is None
    return features, label, weight
"""


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_forked([*arguments, "-c", str(folder / "readings.yaml")], cwd=folder, env=os.environ)


def test_an_autoencoder_is_checked_learns_from_kafka_and_resumes(
    tmp_path: Path, broker: str, topic: MakeTopic, produce: Produce
) -> None:
    name = topic()
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "readings.yaml").write_text(
        "name: readings\n"
        f"kafka: {{bootstrap_servers: ['{broker}'], topics: [{name}]}}\n"
        "records: {features: {x: {dtype: float32, shape: [4]}}}\n"
        "model: {build: './model.py:build_model', preprocess: preprocess}\n"
        "training: {batch_size: 16}\n"
        "checkpoints: {path: ./checkpoints}\n"
        "api: {listen: '127.0.0.1:0'}\n"
    )
    shelf = Shelf(Folder(tmp_path / "checkpoints" / "readings"))
    values = [json.dumps({"x": [n % 7, n % 5, n % 3, 1]}).encode() for n in range(50)]
    produce(name, values)
    checked = _run(tmp_path, "validate")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    seen = []
    for settled in (50, 100):
        done = _run(tmp_path, "run", "--until", "now")
        assert done.returncode == 0, done.stderr
        newest = shelf.newest()
        assert newest is not None
        assert newest.testimonies == {Partition(name, 0): Evidence.of(range(settled))}
        seen.append(newest)
        produce(name, values)
    assert seen[1].manifest.ancestors[0] >= seen[0].number, "the second process resumed from the first one's"
    assert any((seen[0].arrays[key] != seen[1].arrays[key]).any() for key in seen[0].arrays)
