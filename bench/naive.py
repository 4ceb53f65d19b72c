"""FROZEN REFERENCE: the pipeline that a first attempt would be. Do not optimise it, and share no code with the product.

aiokafka's `async for`, one record at a time, into a queue between threads; `json.loads` (or `np.frombuffer`) of one
record; `tf.data.Dataset.from_generator` of one record an element, `batch(B)`, `prefetch`; and from there on what the
product does too: the MLP 28-64-64-1 with Adam, loss, accuracy and AUC compiled, under MirroredStrategy, K batches in
one compiled call (a loop in the graph over `next(iterator)` and `strategy.run` of Keras' own `train_step`).

Timed, as the product's case is: wall clock and CPU of the whole process, TensorFlow's threads included, from the return
of the call that reaches `--warm-up` records (at least one call) to the return of the one that reaches `--records` more.
In between everything counts: fetching, queues, decoding, batching, training, metrics. Not timed: imports, connecting,
building, tracing, the warm-up. The topic must hold more than is timed, so that the queues are as full at the end as at
the beginning. Prints one line of JSON: records, wall_s, cpu_s, and the accuracy as a proof of work.
"""

import argparse
import asyncio
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from aiokafka import AIOKafkaConsumer

FEATURES = 28
QUEUE = 10_000
PREFETCH = 2
GET_S = 30.0

Row = tuple[np.ndarray, np.float32]


async def consume(bootstrap: str, topic: str, records: "queue.Queue[bytes]") -> None:
    """Put record after record into the queue."""
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="earliest")
    await consumer.start()
    async for record in consumer:
        records.put(record.value)


def decode_json(value: bytes) -> Row:
    """One object."""
    record = json.loads(value)
    return np.array(record["x"], np.float32), np.float32(record["y"])


def decode_raw(value: bytes) -> Row:
    """29 numbers."""
    record = np.frombuffer(value, "<f4")
    return record[:FEATURES], record[FEATURES]


def make_dataset(records: "queue.Queue[bytes]", decode: Callable[[bytes], Row], batch: int) -> tf.data.Dataset:
    """Record after record, in batches."""

    def rows() -> Iterator[Row]:
        while True:
            yield decode(records.get(timeout=GET_S))

    signature = (tf.TensorSpec([FEATURES], tf.float32), tf.TensorSpec([], tf.float32))
    dataset = tf.data.Dataset.from_generator(rows, output_signature=signature)
    return dataset.batch(batch, drop_remainder=True).prefetch(PREFETCH)


def build_model() -> keras.Model:
    """The model of the benchmark."""
    x = keras.Input((FEATURES,), name="x")
    hidden = keras.layers.Dense(64, activation="relu")(x)
    hidden = keras.layers.Dense(64, activation="relu")(hidden)
    model = keras.Model(x, keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.compile(
        optimizer=keras.optimizers.Adam(0.001),
        loss="binary_crossentropy",
        metrics=["accuracy", keras.metrics.AUC(name="auc")],
    )
    return model


def build_metrics(model: keras.Model) -> None:
    """Create the metrics' and the optimizer's variables, so that tracing creates none."""
    x, y = tf.zeros([1, FEATURES]), tf.zeros([1])
    model.compute_metrics(x, y, model(x))
    model.reset_metrics()
    model.optimizer.build(model.trainable_variables)


def make_call(model: keras.Model, strategy: Any) -> Any:
    """K steps as one call."""

    @tf.function  # type: ignore[untyped-decorator]  # TensorFlow has no types
    def call(iterator: Any, steps: Any) -> Any:
        for _ in tf.range(steps):
            strategy.run(lambda *batch: model.train_step(batch), args=next(iterator))
        return tf.convert_to_tensor(model.optimizer.iterations)

    return call


def measure(given: argparse.Namespace) -> dict[str, float]:
    """Call after call until there are enough records."""
    records: queue.Queue[bytes] = queue.Queue(QUEUE)
    threading.Thread(
        target=lambda: asyncio.run(consume(given.bootstrap, given.topic, records)), name="consumer", daemon=True
    ).start()
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        model = build_model()
        build_metrics(model)
        call = make_call(model, strategy)
        iterator = iter(make_dataset(records, decode_json if given.format == "json" else decode_raw, given.batch))
        steps = tf.constant(given.batches_per_call)
        seen = 0
        first, began, cpu = 0, 0.0, 0.0
        while seen < given.warm_up + given.records or not first:
            call(iterator, steps).numpy()
            seen += given.batches_per_call * given.batch
            if not first and seen >= given.warm_up:
                first, began, cpu = seen, time.perf_counter(), time.process_time()
        wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    accuracy = float(model.get_metrics_result()["accuracy"])
    return {"records": seen - first, "wall_s": wall_s, "cpu_s": cpu_s, "accuracy": accuracy}


def main() -> None:
    """Read the options, measure, print; end without waiting for threads that never end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--format", choices=["json", "raw"], required=True)
    parser.add_argument("--records", type=int, default=65_536)
    parser.add_argument("--warm-up", type=int, default=16_384)
    parser.add_argument("--batches-per-call", type=int, default=16)
    parser.add_argument("--batch", type=int, default=1024)
    print(json.dumps(measure(parser.parse_args())))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
