"""Images as records, JPEG and PNG of any size, with a header as the label, against a real broker."""

import asyncio
import json
import os
from base64 import b64encode
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest
import tensorflow as tf
from aiokafka import AIOKafkaProducer

from tests.conftest import MakeTopic
from tests.faults.harness.fork_server import run_forked

pytestmark = [pytest.mark.slow, pytest.mark.tensorflow]
ROOT = Path(__file__).parents[2]
MODEL = """\
import keras
import tensorflow as tf


def build_model():
    image = keras.Input((8, 8, 3), name="image")
    hidden = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(image))
    model = keras.Model(image, keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.compile(optimizer="adam", loss="binary_crossentropy")
    return model


def decoded(image):
    pixels = tf.io.decode_image(image, channels=3, expand_animations=False)
    return tf.image.resize(pixels, [8, 8])


def preprocess(features, label, weight):
    shape = tf.TensorSpec([8, 8, 3], tf.float32)
    images = tf.map_fn(decoded, features["image"], fn_output_signature=shape)
    return {"image": images}, label, weight
"""
CONFIG = """\
name: images
kafka: {{bootstrap_servers: ['{broker}'], topics: [{topic}]}}
records:
  format: bytes
  features: {{image: {feature}}}
  label: {{bright: {{dtype: float32, field: $header.bright}}}}
model: {{build: ./model.py:build_model}}
training: {{batch_size: 16}}
checkpoints: {{path: ./checkpoints}}
api: {{listen: '127.0.0.1:0'}}
"""


def images(count: int) -> list[tuple[bytes, bytes]]:
    """Return images of several sizes in two formats, each with whether it is bright."""
    random = np.random.default_rng(3)
    made = []
    for number in range(count):
        bright = number % 2
        pixels = random.integers(128 * bright, 128 + 128 * bright, (4 + number % 9, 6 + number % 7, 3)).astype(np.uint8)
        encode = tf.io.encode_jpeg if number % 3 else tf.io.encode_png
        made.append((encode(pixels).numpy(), b"%d" % bright))
    return made


async def send(broker: str, topic: str, records: list[tuple[bytes, bytes]]) -> None:
    async with AIOKafkaProducer(bootstrap_servers=broker) as producer:
        for value, bright in records:
            await producer.send(topic, value, headers=[("bright", bright)])


PIXELS = MODEL.partition("def decoded")[0].replace("import tensorflow as tf\n", "")
"""A model that gets pixels."""
AS_PIXELS = "{dtype: uint8, shape: [8, 8, 3], image: bytes, field: $value}"


@pytest.mark.parametrize(
    ("model", "feature", "reason"),
    [(MODEL, "{dtype: string, field: $value}", "step_raised"), (PIXELS, AS_PIXELS, "bad_image")],
    ids=["preprocess", "setting"],
)
def test_images_are_learnt_and_each_bad_one_is_set_aside_alone(
    model: str, feature: str, reason: str, tmp_path: Path, broker: str, topic: MakeTopic
) -> None:
    name, good = topic(), images(150)
    bad = [(good[1][0][:-40], b"1"), (b"no image at all", b"0"), (good[0][0][:30], b"1"), (good[0][0], b"bright")]
    records = [*good[:70], *bad, *good[70:]]
    asyncio.run(send(broker, name, records))
    (tmp_path / "model.py").write_text(model)
    config = tmp_path / "images.yaml"
    config.write_text(CONFIG.format(broker=broker, topic=name, feature=feature))
    done = run_forked(["run", "-c", str(config), "--until", "now"], cwd=ROOT, env=os.environ)
    assert done.returncode == 0, done.stderr
    newest = max(tmp_path.glob("checkpoints/images/checkpoints/*/ledger.json"))
    (partition,) = json.loads(newest.read_text())["partitions"].values()
    assert partition["learnt"] == len(good)
    assert partition["set_aside"] == {reason: 3, "wrong_type": 1}


def striped(count: int) -> list[bytes]:
    """Return noisy grey pictures with a bright row, a bright column or neither, in base64 beside the name of that."""
    random, made = np.random.default_rng(11), []
    for number in range(count):
        pixels, at, kind = random.normal(110, 28, (32, 32, 1)), random.integers(2, 26), random.integers(3)
        if kind < 2:
            pixels.swapaxes(0, kind)[at : at + random.integers(2, 5)] += 70
        encode = tf.io.encode_jpeg if number % 3 else tf.io.encode_png
        text = b64encode(encode(pixels.clip(0, 255).astype(np.uint8)).numpy()).decode()
        text = text if number % 5 else f"data:image/{'jpeg' if number % 3 else 'png'};base64,{text}"
        made.append(json.dumps({"scan": text, "stripe": ["row", "column", "none"][kind]}).encode())
    return made


@pytest.mark.timeout(600)
def test_drafted_model_learns_pictures_of_their_own_size_in_one_pass(
    tmp_path: Path, broker: str, topic: MakeTopic
) -> None:
    name, count = topic(), 4_000
    asyncio.run(send(broker, name, [(value, b"0") for value in striped(count)]))
    environ = {**os.environ, "MILLRACE_API__LISTEN": "127.0.0.1:0"}
    options = ["--topic", name, "--bootstrap-servers", broker, "--label", "stripe", "--features", "scan"]
    drafted = run_forked(["init", *options, "--name", "scans", "--json"], cwd=tmp_path, env=environ)
    assert drafted.returncode == 0, drafted.stderr
    report = json.loads(drafted.stdout)
    assert (report["format"], report["task"], report["features"]) == ("json", "named_classes", ["scan"])
    assert report["set_aside"] == {}
    assert '"scan": (32, 32, 1)' in (tmp_path / "model.py").read_text()
    validated = run_forked(["validate", "-c", "millrace.yaml"], cwd=tmp_path, env=environ)
    assert validated.returncode == 0, validated.stdout + validated.stderr
    done = run_forked(["run", "-c", "millrace.yaml", "--until", "now"], cwd=tmp_path, env=environ)
    assert done.returncode == 0, done.stderr
    shown = run_forked(["checkpoints", "show", "latest", "-c", "millrace.yaml", "--json"], cwd=tmp_path, env=environ)
    checkpoint = json.loads(shown.stdout)["checkpoint"]
    assert checkpoint["measured"]["records"] == count
    assert checkpoint["metrics"]["accuracy"] > 0.8, "of all that were guessed before they were learnt; guessing: 0.33"
