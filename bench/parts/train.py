"""FROZEN REFERENCE: what training alone costs. Do not optimise it, and share no code with the product.

The MLP 28-64-64-1 with Adam, loss, accuracy and AUC compiled, under MirroredStrategy: K batches of B rows a call, a
loop over k in the graph, `strategy.run` of Keras' own `train_step` on features, labels and weights inside it. The
blocks [K, B, …] are in memory and used in turn.

Timed: wall clock and CPU of the whole process, TensorFlow's threads included, from the return of the call that reaches
`--warm-up` records to the return of the one that reaches `--records` more. Not timed: imports, building, tracing.
Prints one line of JSON: records, wall_s, cpu_s, and the accuracy as a proof of work.
"""

import argparse
import gc
import json
import os
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

FEATURES = 28
BLOCKS = 8


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
    model.compute_metrics(x, y, model(x), sample_weight=tf.ones([1]))
    model.reset_metrics()
    model.optimizer.build(model.trainable_variables)


def make_call(model: keras.Model, strategy: Any) -> Any:
    """K steps as one call."""

    @tf.function  # type: ignore[untyped-decorator]  # TensorFlow has no types
    def call(x: Any, y: Any, w: Any) -> Any:
        for k in tf.range(tf.shape(y)[0]):
            strategy.run(lambda *batch: model.train_step(batch), args=(x[k], y[k], w[k]))
        return tf.convert_to_tensor(model.optimizer.iterations)

    return call


def make_blocks(calls: int, batch: int) -> list[tuple[Any, Any, Any]]:
    """Blocks of rows that follow a rule."""
    random = np.random.default_rng(0)
    rule = random.normal(0.0, 0.6, FEATURES)
    blocks = []
    for _ in range(BLOCKS):
        x = random.normal(0.0, 1.0, (calls, batch, FEATURES)).astype(np.float32)
        y = (random.random((calls, batch)) < 1.0 / (1.0 + np.exp(-(x @ rule)))).astype(np.float32)
        blocks.append((tf.constant(x), tf.constant(y), tf.ones([calls, batch])))
    return blocks


def measure(records: int, warm_up: int, calls: int, batch: int) -> dict[str, float]:
    """Call after call until there are enough records."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        model = build_model()
        build_metrics(model)
        call = make_call(model, strategy)
        blocks = make_blocks(calls, batch)
        gc.collect()
        gc.freeze()
        seen, number = 0, 0
        first, began, cpu = 0, 0.0, 0.0
        while seen < warm_up + records or not first:
            call(*blocks[number % BLOCKS]).numpy()
            number += 1
            seen += calls * batch
            if not first and seen >= warm_up:
                first, began, cpu = seen, time.perf_counter(), time.process_time()
        wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    accuracy = float(model.get_metrics_result()["accuracy"])
    return {"records": seen - first, "wall_s": wall_s, "cpu_s": cpu_s, "accuracy": accuracy}


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--warm-up", type=int, default=200_000)
    parser.add_argument("--batches-per-call", type=int, default=16)
    parser.add_argument("--batch", type=int, default=1024)
    given = parser.parse_args()
    print(json.dumps(measure(given.records, given.warm_up, given.batches_per_call, given.batch)))


if __name__ == "__main__":
    main()
