"""Two topics with weights, from a real broker in deterministic mode: rows come by them to the record."""

import json
from pathlib import Path

import pytest

from tests.conftest import MakeTopic, Produce
from tests.faults.harness.fork_server import millrace
from tests.integration.small_model import MODEL

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def config(folder: Path, broker: str, weights: dict[str, float]) -> Path:
    """Write the model and the config of a trainer of topics with weights."""
    (folder / "model.py").write_text(MODEL)
    settings = {
        "name": "mixed",
        "kafka": {"bootstrap_servers": [broker], "topics": weights, "chunk_records": 500},
        "records": {"features": {"x": {"dtype": "float32", "shape": [1]}}, "label": {"y": "float32"}},
        "model": {"build": "./model.py:build_model"},
        "training": {"batch_size": 64, "max_wait": None, "deterministic": True, "replicas": 1},
        "checkpoints": {"path": "./checkpoints"},
        "api": {"listen": "127.0.0.1:0"},
    }
    path = folder / "mixed.yaml"
    path.write_text(json.dumps(settings))  # JSON is YAML
    return path


def learnt(path: Path, records: int) -> dict[str, int]:
    """Run until so many records are learnt; return the positions by topic."""
    millrace("run", "-c", str(path), "--max-records", str(records))
    newest = max(path.parent.glob("checkpoints/*/checkpoints/*/manifest.json"))
    positions: dict[str, int] = {}
    for partition, offset in json.loads(newest.read_text())["positions"].items():
        topic = partition.rpartition(":")[0]
        positions[topic] = positions.get(topic, 0) + offset
    return positions


def test_topics_come_by_their_weights_and_on_from_there_after_a_restart(
    broker: str, topic: MakeTopic, produce: Produce, tmp_path: Path
) -> None:
    large, small = topic(partitions=2), topic(partitions=1)
    produce(large, [(number % 2, b'{"x": [0.5], "y": 1.0}') for number in range(4_000)])
    produce(small, [b'{"x": [-0.5], "y": 0.0}'] * 4_000)
    path = config(tmp_path, broker, {large: 1, small: 3})
    for records in (2_048, 4_096):
        assert learnt(path, 2_048) == {large: records // 4, small: 3 * records // 4}
