"""A class of one in two hundred: what balancing it gains and does to probabilities, by the product's own compiled call.

One stream of rows whose odds are known is learnt once, in order; each row is scored before it is learnt. The area under
the precision-recall curve is that of all rows so scored. Calibration is of the second half of the rows, when the model
has settled: in ten parts of which each is predicted to hold as many positives, what was predicted over the true odds.
That has no sampling error, which with one positive in two hundred would be as large as what is looked for. What a step
takes is printed too; what balancing costs the whole product is measured by `product-balanced`.
"""

import argparse
import statistics
import time
from dataclasses import replace
from typing import Any, NamedTuple

import keras
import numpy as np
import numpy.typing as npt
from rig import report

from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.shaping import BalanceSettings
from millrace.pipelines.stream.blocks import Rows
from millrace.training.model.learner import Learner, LearnerOptions
from millrace.training.model.setup.strategy import DeviceOptions

FEATURES, UNITS = 12, 64
RARE = 1 / 200
STEPS = 16
BALANCE = BalanceSettings(target={"0": 0.95, "1": 0.05})
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


def learner_of(given: argparse.Namespace, balance: BalanceSettings | None) -> Learner:
    """Build a learner with these classes balanced, or none."""
    options = LearnerOptions(schema=SCHEMA, batch_size=given.batch, devices=DeviceOptions(replicas=1), seed=1)
    return Learner(lambda: build(given.rate), None, replace(options, balance=balance))


class Stream(NamedTuple):
    """Made-up rows."""

    x: npt.NDArray[np.float32]
    odds: npt.NDArray[np.float64]
    """The probability of class 1."""
    y: npt.NDArray[np.float32]


def stream(rows: int, seed: int) -> Stream:
    """Return rows of which one in two hundred is of class 1, by odds that are no linear function of the features."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, FEATURES)).astype(np.float32)
    a, b = (x @ random.normal(size=(FEATURES, 2)) / np.sqrt(FEATURES)).T
    score = 2.2 * a + 1.2 * np.abs(b)
    low, high = -50.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        rare = float((1 / (1 + np.exp(middle - score))).mean())
        low, high = (middle, high) if rare > RARE else (low, middle)
    odds = 1 / (1 + np.exp(low - score))
    return Stream(x, odds, (random.random(rows) < odds).astype(np.float32))


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


def predicted(learner: Learner, rows: Stream, batch: int) -> npt.NDArray[np.float64]:
    """Learn the stream block by block; return what was predicted for each row before its block was learnt."""
    import tensorflow as tf

    balance = learner.call.shaping.balance
    infer = tf.function(lambda rows: learner.model(rows, training=False))
    found = list[Any]()
    for first in range(0, len(rows.x) - STEPS * batch + 1, STEPS * batch):
        p = infer(tf.constant(rows.x[first : first + STEPS * batch]))
        found.append((p if balance is None else balance.corrected(p, balance.weights())).numpy()[:, 0])
        learner.learn(block_of(rows.x, rows.y, first, batch))
    return np.concatenate(found).astype(np.float64)


def area(labels: Any, scores: Any) -> float:
    """Return the average precision."""
    hits = labels[np.argsort(-scores, kind="stable")] > 0
    return float((np.cumsum(hits) / np.arange(1, len(hits) + 1))[hits].mean())


def calibration(odds: Any, scores: Any) -> list[float]:
    """Return what was predicted over the true odds, in ten parts with as many predicted positives each."""
    order = np.argsort(scores, kind="stable")
    sums = np.cumsum(scores[order])
    parts = np.split(order, np.searchsorted(sums, sums[-1] * np.arange(1, 10) / 10))
    return [round(float(scores[part].sum() / odds[part].sum()), 3) for part in parts]


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
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rate", type=float, default=0.001)
    parser.add_argument("--calls", type=int, default=100)
    given = parser.parse_args()
    rows = stream(given.rows, given.seed)
    each_s = times([learner_of(given, None), learner_of(given, BALANCE)], rows.x, rows.y, given)
    plain, balanced = (predicted(learner_of(given, each), rows, given.batch) for each in (None, BALANCE))
    y, odds = rows.y[: len(plain)], rows.odds[: len(plain)]
    late = slice(len(y) // 2, None)
    scores = {"plain": plain, "balanced": balanced, "true": odds}
    parts = {name: calibration(odds[late], scores[name][late]) for name in ("plain", "balanced")}
    areas = {name: round(area(y, each), 4) for name, each in scores.items()}
    report(
        {
            "balance_auc_pr_of_plain": round(areas["balanced"] / areas["plain"], 3),
            "balance_worst_decile": round(max(abs(part - 1) for part in parts["balanced"]), 3),
        },
        {
            "auc_pr": areas,
            "auc_pr_late": {name: round(area(y[late], each[late]), 4) for name, each in scores.items()},
            "predicted_of_true_by_decile": parts,
            "positives": int(y.sum()),
            "step_us": dict(zip(("plain", "balanced"), (s / STEPS * 1e6 for s in each_s), strict=True)),
        },
    )


if __name__ == "__main__":
    main()
