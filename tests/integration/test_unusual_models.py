"""Models of other kinds than most, through Kafka: checked, learnt, and resumed from a checkpoint by another process."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from millrace.app.tools.prove.checkpoint_reader import Shelf, Statement
from millrace.consumers.records import Partition
from millrace.training.checkpoints.folder import Folder
from millrace.training.ledger.offset_checksum import Evidence
from tests.conftest import MakeTopic, Produce
from tests.faults.harness.fork_server import run_forked

pytestmark = pytest.mark.slow
NO_LABEL = """\
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
STATISTICS_OF_BATCHES = """\
import keras


def build_model():
    x = keras.Input((4,), name="x")
    hidden = keras.layers.BatchNormalization(name="norm")(x)
    model = keras.Model(x, keras.layers.Dense(4)(hidden))
    model.compile(optimizer="adam", loss="mse")
    return model
"""
IN_PARTS = """\
import helper


def build_model():
    from parts.layers import hidden

    return helper.compiled(hidden())


def preprocess(features, label, weight):
    from parts import layers

    return layers.scaled(features), label, weight
"""
SEVERAL_FILES = {
    "helper.py": """\
import keras


def compiled(hidden):
    x = keras.Input((4,), name="x")
    model = keras.Model(x, keras.layers.Dense(4)(hidden(x)))
    model.compile(optimizer="adam", loss="mse")
    return model
""",
    "parts/layers.py": """\
import keras


def hidden():
    return keras.layers.Dense(2)


def scaled(features):
    return {name: column / 7.0 for name, column in features.items()}
""",
    "training/__init__.py": "raise RuntimeError('not imported')\n",
}
VALUES = [json.dumps({"x": [n % 7, n % 5, n % 3, 1]}).encode() for n in range(50)]


@dataclass(frozen=True)
class Project:
    """A config and a model in a folder."""

    folder: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        config = str(self.folder / "readings.yaml")
        return run_forked([*arguments, "-c", config], cwd=self.folder, env=os.environ)

    def learnt(self) -> Statement:
        """Learn what is in the topic, and return the last checkpoint."""
        done = self.run("run", "--until", "now")
        assert done.returncode == 0, done.stderr
        newest = Shelf(Folder(self.folder / "checkpoints" / "readings")).newest()
        assert newest is not None
        return newest


def project(folder: Path, broker: str, topic: str, *, model: str, functions: str, training: str) -> Project:
    (folder / "model.py").write_text(model)
    (folder / "readings.yaml").write_text(
        "name: readings\n"
        f"kafka: {{bootstrap_servers: ['{broker}'], topics: [{topic}]}}\n"
        "records: {features: {x: {dtype: float32, shape: [4]}}}\n"
        f"model: {{{functions}}}\n"
        f"training: {{{training}}}\n"
        "checkpoints: {path: ./checkpoints}\n"
        "api: {listen: '127.0.0.1:0'}\n"
    )
    return Project(folder)


def test_an_autoencoder_is_checked_learns_from_kafka_and_resumes(
    tmp_path: Path, broker: str, topic: MakeTopic, produce: Produce
) -> None:
    name = topic()
    functions = "build: './model.py:build_model', preprocess: preprocess"
    made = project(tmp_path, broker, name, model=NO_LABEL, functions=functions, training="batch_size: 16")
    produce(name, VALUES)
    checked = made.run("validate")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    seen = []
    for settled in (50, 100):
        seen.append(made.learnt())
        assert seen[-1].testimonies == {Partition(name, 0): Evidence.of(range(settled))}
        produce(name, VALUES)
    assert seen[1].manifest.ancestors[0] >= seen[0].number, "the second process resumed from the first one's"
    assert any((seen[0].arrays[key] != seen[1].arrays[key]).any() for key in seen[0].arrays)


def test_a_model_in_several_files_is_checked_and_learns_and_a_change_is_noticed(
    tmp_path: Path, broker: str, topic: MakeTopic, produce: Produce
) -> None:
    name = topic()
    for file, text in SEVERAL_FILES.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    functions = "build: './model.py:build_model'"
    made = project(tmp_path, broker, name, model=IN_PARTS, functions=functions, training="batch_size: 16")
    produce(name, VALUES)
    checked = made.run("validate")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    wrote = made.learnt().manifest.provenance
    assert [*wrote["model_files"]] == ["helper.py", "parts/layers.py"]
    (tmp_path / "parts" / "layers.py").write_text(SEVERAL_FILES["parts/layers.py"] + "# changed\n")
    refused = made.run("export", "latest", "--to", str(tmp_path / "exports"))
    assert refused.returncode == 2
    assert "model.py (with helper.py, parts/layers.py) is not the file that checkpoint" in refused.stderr
    produce(name, VALUES)
    assert made.learnt().manifest.provenance["model_sha256"] != wrote["model_sha256"]


def test_batch_normalization_learns_whole_batches_and_leaves_the_rest(
    tmp_path: Path, broker: str, topic: MakeTopic, produce: Produce
) -> None:
    name = topic()
    training = "batch_size: 16, partial_batches: wait"
    functions = "build: './model.py:build_model'"
    made = project(tmp_path, broker, name, model=STATISTICS_OF_BATCHES, functions=functions, training=training)
    for settled in (48, 96):  # of 50 and of 100 records
        produce(name, VALUES)
        newest = made.learnt()
        assert newest.testimonies == {Partition(name, 0): Evidence.of(range(settled))}
    (mean,) = [array for key, array in newest.arrays.items() if key.endswith("norm/moving_mean")]
    rows = np.array([json.loads(value)["x"] for value in VALUES * 2][:96], np.float64)
    expected = np.zeros(4)
    for batch in rows.reshape(-1, 16, 4):  # as Keras moves it, by full batches alone
        expected = 0.99 * expected + 0.01 * batch.mean(axis=0)
    assert mean == pytest.approx(expected, rel=1e-4)
