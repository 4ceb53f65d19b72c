"""One model learns from two topics whose records are written in two formats."""

import json
from pathlib import Path

import pytest

from tests.conftest import MakeTopic, Produce
from tests.faults.harness.fork_server import millrace
from tests.integration.test_labels import MODEL

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.mark.parametrize(
    "deterministic", [pytest.param(False, marks=pytest.mark.nightly), True], ids=["as-they-come", "deterministic"]
)
def test_both_topics_are_learnt_and_what_is_bad_is_named_as_the_topic_has_it(
    broker: str, topic: MakeTopic, produce: Produce, tmp_path: Path, deterministic: bool
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    views, purchases = topic(partitions=2), topic(partitions=1)
    exact = {"deterministic": True, "replicas": 1} if deterministic else {}
    settings = {
        "name": "both",
        "kafka": {"bootstrap_servers": [broker], "topics": [views, purchases]},
        "records": {
            "features": {"x": {"dtype": "float32", "shape": [1]}, "number": "int64"},
            "label": {"clicked": "float32"},
            "by_topic": {
                purchases: {
                    "format": "csv",
                    "csv": {"columns": ["id", "amount", "returned"]},
                    "fields": {"x": "amount", "number": "id", "clicked": "returned"},
                }
            },
        },
        "model": {"build": "./model.py:build_model"},
        "training": {"batch_size": 16, "max_wait": None if deterministic else "100ms", **exact},
        "checkpoints": {"path": "./checkpoints"},
        "api": {"listen": "127.0.0.1:0"},
    }
    path = tmp_path / "both.yaml"
    path.write_text(json.dumps(settings))  # JSON is YAML
    produce(views, [(n % 2, json.dumps({"x": [0.5], "number": n, "clicked": n % 2}).encode()) for n in range(200)])
    produce(purchases, [*(f"{n},0.25,1".encode() for n in range(200, 300)), b"301,0.5,maybe"])
    said = millrace("validate", "-c", str(path))
    assert f"{views}: all of " in said
    assert f"{purchases}: " in said
    assert "field 'returned'" in said
    millrace("run", "-c", str(path), "--until", "now")
    newest = max(tmp_path.glob("checkpoints/both/checkpoints/*/manifest.json")).parent
    accounts = json.loads((newest / "ledger.json").read_text())["partitions"]
    assert {name: (one["learnt"], one["set_aside"]) for name, one in accounts.items()} == {
        f"{views}:0": (100, {}),
        f"{views}:1": (100, {}),
        f"{purchases}:0": (100, {"wrong_type": 1}),
    }
