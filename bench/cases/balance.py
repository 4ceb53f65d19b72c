"""A class of one in two hundred: what balancing it costs, and what it gains, by the product's own compiled call.

Throughput: the same blocks, learnt with and without, in turns. Gain: one stream of rows whose odds are known, learnt
once in order; each row is scored before it is learnt. The area under the precision-recall curve is that of all rows so
scored. Calibration is of the second half of the rows, when the model has settled: in ten parts of which each is to hold
as many positives, what was predicted over what came. So few positives have a sampling error, which is printed too.
"""

import argparse
import statistics
import time
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
from rig import report

from pipelines.blocks import Rows
from pipelines.schema import Field, Schema
from pipelines.shaping.class_weights import BalanceOptions
from training.model.learner import Learner, LearnerOptions
from training.model.strategy import DeviceOptions

FEATURES, UNITS = 12, 64
RARE = 1 / 200
STEPS = 16
BALANCE = BalanceOptions(target={"0": 0.5, "1": 0.5})
SCHEMA = Schema(
    features=(Field(name="x", source="x", dtype="float32", shape=(FEATURES,)),),
    labels=(Field(name="y", source="y", dtype="float32"),),
)


def build(rate: float) -> Any:
    """Build a small classifier."""
    x = keras.Input((FEATURES,), name="x")
    hidden = keras.layers.Dense(UNITS, activation="relu")(keras.layers.Dense(UNITS, activation="relu")(x))
    model = keras.Model(x, keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.compile(optimizer=keras.optimizers.Adam(rate), loss="binary_crossentropy", metrics=["accuracy"])
    return model


def learner_of(given: argparse.Namespace, balance: BalanceOptions | None) -> Learner:
    """Build a learner with these classes balanced, or none."""
    options = LearnerOptions(schema=SCHEMA, batch_size=given.batch, devices=DeviceOptions(replicas=1), seed=1)
    return Learner(lambda: build(given.rate), None, replace(options, balance=balance))


def stream(rows: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return features, and labels of which one in two hundred is 1, by odds that are no linear function of them."""
    random = np.random.default_rng(5)
    x = random.normal(size=(rows, FEATURES)).astype(np.float32)
    a, b, c = (x @ random.normal(size=(FEATURES, 3)) / np.sqrt(FEATURES)).T
    score = 1.6 * (2.2 * a + 1.6 * b * c + 1.2 * np.abs(b))
    low, high = -50.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        rare = float((1 / (1 + np.exp(middle - score))).mean())
        low, high = (middle, high) if rare > RARE else (low, middle)
    return x, (random.random(rows) < 1 / (1 + np.exp(low - score))).astype(np.float32)


def block_of(x: Any, y: Any, first: int, batch: int) -> Rows:
    """Make a block of the rows from `first` on."""
    import tensorflow as tf

    size = STEPS * batch
    rows = slice(first, first + size)
    return Rows(
        features={"x": tf.constant(x[rows].reshape(STEPS, batch, FEATURES))},
        labels=tf.constant(y[rows].reshape(STEPS, batch)),
        weights=tf.ones([STEPS, batch]),
        offsets=tf.constant(np.arange(first, first + size).reshape(STEPS, batch)),
        partitions=tf.zeros([STEPS, batch], tf.int32),
    )


def predicted(learner: Learner, x: Any, y: Any, batch: int) -> npt.NDArray[np.float64]:
    """Learn the stream batch by batch; return what was predicted for each row before its batch was learnt."""
    import tensorflow as tf

    balance = learner.call.balance
    infer = tf.function(lambda rows: learner.model(rows, training=False))
    found = list[Any]()
    for first in range(0, len(x) - batch + 1, batch):
        here = slice(first, first + batch)
        p = infer(tf.constant(x[here]))
        found.append((p if balance is None else balance.corrected(p, balance.weights())).numpy()[:, 0])
        learner.learn(
            Rows(
                features={"x": tf.constant(x[here][None])},
                labels=tf.constant(y[here][None]),
                weights=tf.ones([1, batch]),
                offsets=tf.constant(np.arange(first, first + batch)[None]),
                partitions=tf.zeros([1, batch], tf.int32),
            )
        )
    return np.concatenate(found).astype(np.float64)


def area(labels: Any, scores: Any) -> float:
    """Return the average precision."""
    hits = labels[np.argsort(-scores, kind="stable")] > 0
    return float((np.cumsum(hits) / np.arange(1, len(hits) + 1))[hits].mean())


def calibration(labels: Any, scores: Any) -> list[float]:
    """Return what was predicted over what came, in ten parts with as many predicted positives each."""
    order = np.argsort(scores, kind="stable")
    sums = np.cumsum(scores[order])
    parts = np.split(order, np.searchsorted(sums, sums[-1] * np.arange(1, 10) / 10))
    return [round(float(scores[part].sum() / max(labels[part].sum(), 1.0)), 3) for part in parts]


def times(learners: list[Learner], x: Any, y: Any, given: argparse.Namespace) -> list[float]:
    """Return the median seconds of a block of each learner, which take turns."""
    rows = block_of(x, y, 0, given.batch)
    took: list[list[float]] = [[] for _ in learners]
    for turn in range(given.calls + 5):
        for at, learner in enumerate(learners):
            began = time.perf_counter()
            learner.learn(rows)
            if turn >= 5:
                took[at].append(time.perf_counter() - began)
    return [statistics.median(each) for each in took]


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rate", type=float, default=0.001)
    parser.add_argument("--calls", type=int, default=100)
    given = parser.parse_args()
    x, y = stream(given.rows)
    plain_s, balanced_s = times([learner_of(given, None), learner_of(given, BALANCE)], x, y, given)
    plain, balanced = (predicted(learner_of(given, each), x, y, given.batch) for each in (None, BALANCE))
    y = y[: len(plain)]
    late = slice(len(y) // 2, None)
    parts = {name: calibration(y[late], scores[late]) for name, scores in (("plain", plain), ("balanced", balanced))}
    areas = {name: area(y, scores) for name, scores in (("plain", plain), ("balanced", balanced))}
    report(
        {
            "balance_of_plain": round(plain_s / balanced_s, 3),
            "balance_auc_pr_of_plain": round(areas["balanced"] / areas["plain"], 3),
            "balance_worst_decile": max(abs(part - 1) for part in parts["balanced"]),
        },
        {
            "auc_pr": areas,
            "auc_pr_late": {"plain": area(y[late], plain[late]), "balanced": area(y[late], balanced[late])},
            "predicted_of_seen_by_decile": parts,
            "sampling_error_of_a_decile": round(float(np.sqrt(10 / y[late].sum())), 3),
            "positives": int(y.sum()),
            "step_us": {"plain": plain_s / STEPS * 1e6, "balanced": balanced_s / STEPS * 1e6},
        },
    )


if __name__ == "__main__":
    main()
