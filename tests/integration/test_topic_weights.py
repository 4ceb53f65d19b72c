"""Two topics with weights, from a real broker in deterministic mode: rows come by them to the record."""

import json
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.tools.local_broker.broker import free_port
from app.tools.prove.trainer_process import Run
from tests.conftest import MakeTopic, Produce

pytestmark = [pytest.mark.broker, pytest.mark.slow]
_MODEL = """\
import keras


def build_model():
    x = keras.Input((1,), name="x")
    model = keras.Model(x, keras.layers.Dense(1, activation="sigmoid")(x))
    model.compile(optimizer="sgd", loss="binary_crossentropy", metrics=["accuracy"])
    return model
"""


@dataclass(frozen=True)
class Home:
    """The folder of a trainer."""

    path: Path
    port: int

    @property
    def cwd(self) -> Path:
        return self.path

    @property
    def config(self) -> Path:
        return self.path / "mixed.yaml"


def home(folder: Path, broker: str, weights: dict[str, float]) -> Home:
    """Write the config of a trainer of topics with weights."""
    made = Home(folder, free_port())
    (folder / "model.py").write_text(_MODEL)
    settings = {
        "name": f"mixed-{uuid.uuid4().hex[:8]}",
        "kafka": {"bootstrap_servers": [broker], "topics": weights, "chunk_records": 500},
        "records": {"features": {"x": {"dtype": "float32", "shape": [1]}}, "label": {"y": "float32"}},
        "model": {"build": "./model.py:build_model"},
        "training": {
            "batch_size": 64,
            "max_wait": None,
            "deterministic": True,
            "replicas": 1,
        },
        "checkpoints": {"path": "./checkpoints"},
        "api": {"listen": f"127.0.0.1:{made.port}"},
    }
    made.config.write_text(json.dumps(settings))  # JSON is YAML
    return made


def learnt(made: Home, records: int) -> dict[str, int]:
    """Run until so many records are learnt; return the positions by topic."""
    with Run(made, "--max-records", str(records)) as run:
        run.finish()
    newest = max(made.path.glob("checkpoints/*/checkpoints/*/manifest.json"))
    positions: dict[str, int] = {}
    for partition, offset in json.loads(newest.read_text())["positions"].items():
        topic = partition.rpartition(":")[0]
        positions[topic] = positions.get(topic, 0) + offset
    return positions


def test_topics_come_by_their_weights_and_on_from_there_after_a_restart(
    broker: str, topic: MakeTopic, produce: Produce, tmp_path: Path
) -> None:
    large, small = topic(partitions=2), topic(partitions=1)
    produce(large, [(number % 2, b'{"x": [0.5], "y": 1.0}') for number in range(12_000)])
    produce(small, [b'{"x": [-0.5], "y": 0.0}'] * 12_000)
    made = home(tmp_path, broker, {large: 1, small: 3})
    for records in (2_048, 4_096):
        positions = learnt(made, 2_048)
        assert positions == {large: records // 4, small: 3 * records // 4}
