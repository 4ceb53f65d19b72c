"""The example does what its files say: it loads, it learns, and its producer fills a topic."""

import asyncio
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millrace.app.settings import load, to_schema

EXAMPLE = Path(__file__).parents[2] / "examples" / "clicks"


@pytest.fixture(scope="module")
def visits() -> Callable[[int], Iterator[list[bytes]]]:
    found: Callable[[int], Iterator[list[bytes]]] = runpy.run_path(str(EXAMPLE / "produce.py"))["visits"]
    return found


def test_the_records_hold_what_the_settings_say(visits: Callable[[int], Iterator[list[bytes]]]) -> None:
    schema = to_schema(load(EXAMPLE / "clicks.yaml", {}).settings.records)
    record = json.loads(next(visits(0))[0])
    assert record.keys() == {field.source for field in schema.fields}


def test_the_same_seed_writes_the_same_records(visits: Callable[[int], Iterator[list[bytes]]]) -> None:
    assert next(visits(3)) == next(visits(3))
    assert next(visits(3)) != next(visits(4))


@pytest.mark.tensorflow
def test_the_model_learns_raw_records_in_a_compiled_step(visits: Callable[[int], Iterator[list[bytes]]]) -> None:
    import tensorflow as tf

    model = runpy.run_path(str(EXAMPLE / "model.py"))["build_model"](buckets=1000, learning_rate=0.01)
    step = tf.function(lambda x, y, w: model.train_step((x, y, w)))
    stream = visits(0)
    scores = [learn(step, next(stream)) for _ in range(150)]
    assert np.mean(scores[-20:]) < 0.85 * np.mean(scores[:3])


def learn(step: Any, values: list[bytes]) -> float:
    """Take one step on one chunk; return the loss before it."""
    import tensorflow as tf

    records = [json.loads(value) for value in values]
    features = {
        "price": tf.constant([record["price"] for record in records], tf.float32),
        "ad": tf.constant([record["ad"] for record in records], tf.string),
        "hour": tf.constant([record["hour"] for record in records], tf.int32),
    }
    label = tf.constant([record["clicked"] for record in records], tf.float32)
    return float(step(features, label, tf.ones_like(label))["loss"])


def test_the_producer_writes_as_many_records_as_it_is_told(broker: str, topic: Callable[..., str]) -> None:
    name = topic(partitions=2)
    command = [sys.executable, str(EXAMPLE / "produce.py"), "--bootstrap", broker, "--topic", name, "--count", "1500"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == f"wrote 1,500 records to {name}\n"
    assert asyncio.run(held(broker, name, partitions=2)) == 1500


async def held(broker: str, topic: str, partitions: int) -> int:
    """Return how many records a topic holds."""
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async with AIOKafkaConsumer(bootstrap_servers=broker) as consumer:
        ends = await consumer.end_offsets([TopicPartition(topic, number) for number in range(partitions)])
    return sum(ends.values())


@pytest.mark.parametrize("example", ["clicks", "digits"])
def test_producers_take_the_environments_servers_and_name_what_is_missing(broker: str, example: str) -> None:
    def said(servers: str) -> str:
        command = [sys.executable, str(EXAMPLE.parent / example / "produce.py"), "--count", "1", "--topic", "not-there"]
        environment = {**os.environ, "MILLRACE_KAFKA__BOOTSTRAP_SERVERS": servers}
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        return line

    assert said("127.0.0.1:1").startswith("no Kafka answers at 127.0.0.1:1; `millrace local broker` starts one")
    create = (
        f"`millrace local produce --bootstrap-servers {broker} --topic not-there --create --partitions 4 /dev/null`"
    )
    assert said(broker) == f"topic not-there is not at {broker}; {create} creates it"


@pytest.mark.tensorflow
def test_the_code_on_the_model_page_runs() -> None:
    import tensorflow as tf

    page = (EXAMPLE.parents[1] / "docs" / "model.md").read_text()
    # What stands between, recipes for lines of text and for losses over a batch, has tests of its own.
    build, _, preprocess, _, augment = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {"tf": tf}
    exec(build + preprocess + augment, names)
    assert sorted(tensor.name for tensor in names["build_model"]().inputs) == ["ad", "price"]
    features, _, _ = tf.function(names["preprocess"])({"price": tf.zeros(3)}, None, tf.ones(3))
    assert features["price"].shape == [3]
    image = tf.cast(tf.random.stateless_uniform((2, 8, 8, 3), (1, 2)) * 255, tf.uint8)
    moved, _, _ = tf.function(names["augment"])({"image": image}, tf.zeros(2), tf.ones(2))
    assert (moved["image"].shape, moved["image"].dtype) == (image.shape, tf.uint8)
    assert not np.array_equal(moved["image"], image)
