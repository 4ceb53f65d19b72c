"""A label whose texts become classes as they come: through a restart, up to their number, and into an export."""

import json
from pathlib import Path

import pytest

from tests.conftest import MakeTopic, Produce
from tests.faults.harness.fork_server import millrace

pytestmark = [pytest.mark.broker, pytest.mark.slow]
MODEL = """\
import keras


def build_model():
    x = keras.Input((1,), name="x")
    model = keras.Model(x, keras.layers.Dense(4, activation="softmax")(x))
    model.compile(optimizer="sgd", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model
"""


def test_new_texts_become_classes_and_the_export_names_them(
    broker: str, topic: MakeTopic, produce: Produce, tmp_path: Path
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    news = topic(partitions=1)
    settings = {
        "name": "news",
        "kafka": {"bootstrap_servers": [broker], "topics": [news]},
        "records": {"features": {"x": {"dtype": "float32", "shape": [1]}}, "label": {"field": "kind", "classes": 4}},
        "model": {"build": "./model.py:build_model"},
        "training": {"batch_size": 16},
        "checkpoints": {"path": "./checkpoints"},
        "export": {"path": "./served"},
        "reservoir": {"size": 40, "by": "label"},
        "api": {"listen": "127.0.0.1:0"},
    }
    path = tmp_path / "news.yaml"
    path.write_text(json.dumps(settings))  # JSON is YAML
    parts = list[dict[str, list[str]]]()
    for kinds in (["sport", "politics"], ["weather", "sport", "arts", "chess"]):
        produce(news, [json.dumps({"x": [0.5], "kind": kind}).encode() for kind in kinds * 30])
        millrace("run", "-c", str(path), "--until", "now")
        newest = max(tmp_path.glob("checkpoints/news/checkpoints/*/manifest.json")).parent
        parts.append(json.loads((newest / "classes.json").read_text())["labels"])
    assert parts == [{"kind": ["sport", "politics"]}, {"kind": ["sport", "politics", "weather", "arts"]}]
    [account] = json.loads((newest / "ledger.json").read_text())["partitions"].values()
    assert (account["learnt"], account["set_aside"]) == (150, {"class_limit": 30})
    assert json.loads((newest / "reservoir.json").read_text())["shares"][0]["held"] == [10] * 4
    millrace("export", "latest", "-c", str(path))
    [manifest] = tmp_path.glob("served/news/*/millrace.json")
    assert json.loads(manifest.read_text())["classes"] == {"kind": ["sport", "politics", "weather", "arts"]}
