"""A `preprocess` that parses text, against a real broker: proven on the topic's records, and at every later start."""

import base64
import json
import os
import re
import stat
import struct
import subprocess
import zlib
from pathlib import Path

import pytest

from tests.conftest import MakeTopic, Produce
from tests.faults.harness.fork_server import run_forked

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
CANARY = "canary-4711"
MODEL = """\
import keras
import tensorflow as tf


def build_model():
    value = keras.Input((3,), name="value")
    model = keras.Model({"value": value}, keras.layers.Dense(1)(value))
    model.compile(optimizer="adam", loss="mse")
    return model


def preprocess(features, label, weight):
    raw = tf.io.decode_base64(features["image"])
    images = tf.map_fn(lambda one: tf.io.decode_png(one, channels=1), raw, fn_output_signature=tf.uint8)
    grey = tf.cast(tf.ensure_shape(images, [None, 1, 1, 1])[:, 0, 0, 0], tf.float32) / 255.0
    hour = tf.strings.to_number(tf.strings.substr(features["at"], 11, 2)) / 24.0
    price = tf.strings.to_number(tf.strings.regex_replace(
        tf.strings.split(features["payload"], '"price": ').to_tensor()[:, 1], "}.*", ""))
    return {"value": tf.stack([grey, hour, price], axis=1)}, label, weight
"""


def png(grey: int) -> str:
    """Return a picture of one pixel as web-safe base64."""

    def piece(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    whole = b"\x89PNG\r\n\x1a\n" + piece(b"IHDR", header) + piece(b"IDAT", zlib.compress(bytes([0, grey])))
    return base64.urlsafe_b64encode(whole + piece(b"IEND", b"")).decode().rstrip("=")


def fields(number: int) -> dict[str, str]:
    payload = json.dumps({"user": CANARY, "price": number % 7 / 7})
    return {"image": png(number % 256), "at": f"2026-11-22T{number % 24:02}:00:00Z", "payload": payload}


def records(count: int) -> list[bytes]:
    return [json.dumps({**fields(number), "y": number % 2}).encode() for number in range(count)]


def config_in(folder: Path, broker: str, topic: str, *, example: bool = False, sample: int = 256) -> Path:
    (folder / "model.py").write_text(MODEL)
    features = {name: {"dtype": "string"} | ({"example": text} if example else {}) for name, text in fields(1).items()}
    path = folder / "clicks.yaml"
    path.write_text(
        "name: clicks\n"
        f"kafka: {{bootstrap_servers: ['{broker}'], topics: [{topic}]}}\n"
        f"records: {{features: {json.dumps(features)}, label: {{y: float32}}}}\n"
        "model: {build: ./model.py:build_model}\n"
        "training: {batch_size: 16}\n"
        f"checkpoints: {{path: ./checkpoints, sample: {sample}}}\n"
        "api: {listen: '127.0.0.1:0'}\n"
    )
    return path


def run(config: Path) -> subprocess.CompletedProcess[str]:
    return run_forked(["run", "-c", str(config), "--until", "now"], cwd=ROOT, env=os.environ)


def test_a_parsing_preprocess_trains_restarts_and_leaves_no_value_in_the_log(
    tmp_path: Path, broker: str, topic: MakeTopic, produce: Produce
) -> None:
    name = topic(partitions=2)
    produce(name, [(number % 2, value) for number, value in enumerate([CANARY.encode(), *records(60)])])
    config = config_in(tmp_path, broker, name)
    first = run(config)
    assert first.returncode == 0, first.stderr
    kept = tmp_path / "checkpoints" / "clicks" / "sample.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    produce(name, [(0, value) for value in records(30)])
    before = kept.stat().st_mtime_ns
    second = run(config)
    assert second.returncode == 0, second.stderr
    assert "resumed from checkpoint" in second.stderr
    assert kept.stat().st_mtime_ns == before
    newest = max(tmp_path.glob("checkpoints/clicks/checkpoints/*/ledger.json"))
    assert sum(one["learnt"] for one in json.loads(newest.read_text())["partitions"].values()) == 90
    assert CANARY not in first.stdout + first.stderr + second.stdout + second.stderr


def test_on_an_empty_topic_the_examples_are_enough_and_nothing_is_kept(
    tmp_path: Path, broker: str, topic: MakeTopic
) -> None:
    done = run(config_in(tmp_path, broker, topic(), example=True, sample=0))
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "checkpoints" / "clicks" / "sample.json").exists()


def test_on_an_empty_topic_without_examples_one_line_asks_for_them(
    tmp_path: Path, broker: str, topic: MakeTopic
) -> None:
    done = run(config_in(tmp_path, broker, topic()))
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("millrace: error: preprocess: InvalidArgumentError (")
    # Which of the three operations raises first is TensorFlow's choice.
    assert re.search(r"model\.py, line \d+\), on made-up rows, and the topic holds no record to try it on", line)
    assert "give records.features.image.example, records.features.at.example" in line
