"""The served score with a real Kafka, trainer and server: what a version answered, by the labels that came later."""

import json
import math
import os
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.tools.serve.server_rig import Server, serving
from tests.conftest import MakeTopic, Produce, WaitFor
from tests.faults.harness.fork_server import ForkedProcess, fork_trainer, millrace

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.tensorflow, pytest.mark.row(48)]
HISTORY, BATCHES, BATCH = 640, 12, 16
MODEL = """\
import keras


def build_model():
    inputs = {"user": keras.Input((), name="user", dtype="int64"), "price": keras.Input((3,), name="price")}
    hidden = keras.layers.Dense(8, activation="tanh")(inputs["price"])
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid", name="clicked")(hidden))
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss="binary_crossentropy", metrics=["accuracy"])
    return model
"""


def project(folder: Path, broker: str, ads: str, served: str, port: int) -> Path:
    (folder / "model.py").write_text(MODEL)
    settings = {
        "name": "ads",
        "kafka": {"bootstrap_servers": [broker], "topics": [ads]},
        "records": {"features": {"user": "int64", "price": "float32"}, "label": {"clicked": "float32"}},
        "windows": {"by": "user", "length": 3},
        "model": {"build": "./model.py:build_model"},
        "training": {"batch_size": BATCH, "max_wait": "100ms"},
        "checkpoints": {"path": "./checkpoints", "every": "2s"},
        "export": {"path": "./exports"},
        "serve": {
            "memory": {"how": "follow"},
            "log": {"topic": served, "share": "50 %"},
            "listen": "127.0.0.1:0",
            "poll": "100ms",
            "drain": "0s",
        },
        "api": {"listen": f"127.0.0.1:{port}"},
    }
    path = folder / "ads.yaml"
    path.write_text(json.dumps(settings))  # JSON is YAML
    return path


def record(made: random.Random) -> dict[str, Any]:
    price = made.gauss(0, 1)
    return {"user": made.randrange(20), "price": price, "clicked": float(price + made.gauss(0, 1) > 0)}


@contextmanager
def running(config: Path) -> Iterator[ForkedProcess]:
    """Run the trainer until the end of the block."""
    process = fork_trainer(["run", "-c", str(config)], config.parent, os.environ, config.parent / "trainer.log")
    try:
        yield process
    finally:
        process.kill()


def reached(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/status", timeout=10).json().get("training") is not None
    except httpx.HTTPError:
        return False


def figures(port: int) -> dict[str, Any]:
    try:
        status = httpx.get(f"http://127.0.0.1:{port}/status", timeout=10).json()
    except httpx.HTTPError:
        return {}
    found: dict[str, Any] = (status.get("training") or {}).get("served") or {}
    return found


def test_what_a_version_answered_is_scored_by_the_labels_that_came_later_through_a_kill(
    broker: str, topic: MakeTopic, produce: Produce, tmp_path: Path, wait_for: WaitFor
) -> None:
    ads, served, made = topic(partitions=2), topic(partitions=1), random.Random(3)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = project(tmp_path, broker, ads, served, port)
    produce(ads, [(at % 2, json.dumps(record(made)).encode()) for at in range(HISTORY)])
    millrace("run", "-c", str(config), "--until", "now")
    millrace("export", "latest", "-c", str(config))
    answers = list[tuple[float, float]]()

    def ask(server: Server, batches: int) -> None:
        """Ask before the records are there, as whoever shows an ad does, and send them with their labels then."""
        for _ in range(batches):
            some = [record(made) for _ in range(BATCH)]
            features = [{name: one[name] for name in ("user", "price")} for one in some]
            predictions = server.predict({"records": features}).json()["predictions"]
            answers.extend((one[0], of["clicked"]) for one, of in zip(predictions, some, strict=True))
            produce(ads, [(one["user"] % 2, json.dumps(one).encode()) for one in some])

    with serving(tmp_path, "ads") as server:
        server.wait_for(lambda: server.get("/served").get("served") is not None)
        version = str(server.get("/served")["served"])

        def scored() -> int:
            return int(figures(port).get(version, {}).get("cumulative_records", 0))

        with running(config) as trainer:
            wait_for(lambda: reached(port), timeout=120)
            ask(server, BATCHES // 2)
            wait_for(lambda: scored() > 0, timeout=120)
            trainer.kill()
            ask(server, BATCHES - BATCHES // 2)
        with running(config):
            server.wait_for(lambda: server.get("/served")["log"]["waiting"] == 0)
            logged = server.get("/served")["log"]["written"]
            wait_for(lambda: scored() >= logged, timeout=120)
            found = figures(port)[version]
            text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    # Which rows are logged is not known here: all that can be said of them is told by all of them.
    assert found["cumulative_records"] == found["read"] == logged
    assert 0.3 * len(answers) < logged < 0.7 * len(answers)
    assert found["cumulative"].keys() == {"auc", "accuracy", "log_loss"} == found["live"].keys()
    right = sum((p > 0.5) == (label > 0.5) for p, label in answers) / len(answers)
    loss = -sum(math.log(p if label else 1 - p) for p, label in answers) / len(answers)
    assert found["cumulative"]["accuracy"] == pytest.approx(right, abs=0.15)
    assert found["cumulative"]["log_loss"] == pytest.approx(loss, abs=0.15)
    assert f'millrace_served_cumulative_records{{model="ads",version="{version}"}} {logged}.0' in text
