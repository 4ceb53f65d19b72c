"""A memory of the past: what it costs, what it keeps, and what it slows down, by the product's own compiled call.

Cost: the records of `windows.py` are decoded, made into blocks and learnt with a reservoir and without, in turns, in
one thread. Time is that of the CPU.

Memory: five classes come one after another, each taking over within a quarter of its time. After each block the model
is asked for rows of the first class that it has never learnt. The same is done where each class begins at once. Drift:
what decides the class changes at once, twice, and each block is scored before it is learnt. Both are learnt with a
reservoir and without; `--picture` draws them.
"""

import argparse
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from rig import report
from windows import BATCH, BATCHES, SCHEMA, build, chunks_of, learnt, newest

from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.shaping import ReservoirSettings
from millrace.pipelines.stream.blocks import Rows
from millrace.training.model.learner import Learner, LearnerOptions
from millrace.training.model.setup.strategy import DeviceOptions

sys.path.insert(0, str(Path(__file__).parents[1]))
from lines import lines

RESERVOIR = ReservoirSettings(size=100_000, share=0.2)
FEATURES, CLASSES, UNITS, CONCEPTS = 16, 5, 64, 3
MANY = Schema(
    features=(Field(name="x", source="x", dtype="float32", shape=(FEATURES,)),),
    labels=(Field(name="y", source="y", dtype="int64"),),
)


def classifier() -> Any:
    """Build a small classifier of five classes."""
    x = keras.Input((FEATURES,), name="x")
    hidden = keras.layers.Dense(UNITS, activation="relu")(keras.layers.Dense(UNITS, activation="relu")(x))
    model = keras.Model(x, keras.layers.Dense(CLASSES, activation="softmax")(hidden))
    model.compile(keras.optimizers.Adam(0.001), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def learner_of(reservoir: ReservoirSettings | None) -> Learner:
    """Build a learner of these classes."""
    options = LearnerOptions(schema=MANY, batch_size=BATCH, devices=DeviceOptions(replicas=1), seed=1)
    return Learner(classifier, None, replace(options, reservoir=reservoir))


def block_of(x: Any, y: Any, first: int) -> Rows:
    """Make a block of rows."""
    shape = (-1, BATCH)
    return Rows(
        features={"x": tf.constant(x.reshape(*shape, FEATURES))},
        labels=tf.constant(y.reshape(shape)),
        weights=tf.ones(y.shape).numpy().reshape(shape),
        offsets=tf.constant(np.arange(first, first + len(y)).reshape(shape)),
        partitions=tf.zeros([len(y) // BATCH, BATCH], tf.int32),
    )


class World:
    """Rows around three centres a class, which overlap the more the less they are apart."""

    def __init__(self, seed: int, *, apart: float) -> None:
        self._random = np.random.default_rng(seed)
        self._centres = self._random.normal(size=(CLASSES, 3, FEATURES)) * apart

    def rows(self, classes: Any) -> Any:
        """Return a row of each of these classes."""
        centres = self._centres[classes, self._random.integers(3, size=len(classes))]
        return (centres + self._random.normal(size=centres.shape)).astype(np.float32)

    def mixed(self, rows: int) -> Any:
        """Return classes as they come."""
        return self._random.integers(CLASSES, size=rows)


def remembered(reservoir: ReservoirSettings | None, rows: int, *, over: int) -> list[float]:
    """Learn the classes one after another, each coming in `over` so many rows; return the accuracy on the first."""
    world, learner, found = World(3, apart=2.0), learner_of(reservoir), list[float]()
    random = np.random.default_rng(5)
    asked = world.rows(np.zeros(2000, np.int64))
    for first in range(0, CLASSES * rows, BATCH * BATCHES):
        at = np.arange(first, first + BATCH * BATCHES)
        y = np.minimum((at + over * random.random(len(at))).astype(np.int64) // rows, CLASSES - 1)
        learner.learn(block_of(world.rows(y), y, first))
        found.append(float((learner.model(asked).numpy().argmax(axis=1) == 0).mean()))
    return found


def drifted(reservoir: ReservoirSettings | None, rows: int) -> list[float]:
    """Learn a world whose classes change their names at once; return the accuracy of each block before it is learnt."""
    world, learner, found = World(4, apart=0.7), learner_of(reservoir), list[float]()
    for first in range(0, CONCEPTS * rows, BATCH * BATCHES):
        kinds = world.mixed(BATCH * BATCHES)
        x, y = world.rows(kinds), (kinds + first // rows) % CLASSES
        found.append(float((learner.model(x).numpy().argmax(axis=1) == y).mean()))
        learner.learn(block_of(x, y, first))
    return found


def kept(curve: list[float]) -> float:
    """Return the lowest accuracy after the highest, over that."""
    peak = int(np.argmax(curve))
    return min(curve[peak:]) / curve[peak]


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=131_072)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=131_072, help="of each class, and of each concept")
    parser.add_argument("--picture", type=Path, help="where to draw the curves, as SVG")
    given = parser.parse_args()
    options = LearnerOptions(schema=SCHEMA, batch_size=BATCH, devices=DeviceOptions(replicas=1), seed=1)
    chunks = chunks_of(given.records)
    learners = [Learner(build, newest, each) for each in (options, replace(options, reservoir=RESERVOIR))]
    took: list[list[float]] = [[], []]
    for turn in range(given.rounds + 1):
        pair = [learnt(chunks, learner, None) for learner in learners]
        for seconds, each in zip(pair, took, strict=True) if turn else ():
            each.append(seconds)
    ratios = [one / other for one, other in zip(*took, strict=True)]
    ways = {"with a reservoir": RESERVOIR, "without": None}
    memory = {name: remembered(way, given.rows, over=given.rows // 4) for name, way in ways.items()}
    at_once = {
        share: remembered(RESERVOIR.model_copy(update={"share": share}), given.rows, over=0) for share in (0.2, 0.5)
    }
    drift = {name: drifted(way, given.rows) for name, way in ways.items()}
    if given.picture:
        charts = {
            "Five classes, one after another: accuracy on the first": memory,
            "A world that changes at once, twice: accuracy before learning": drift,
        }
        given.picture.write_text(lines("A reservoir of 100,000 rows, a share of 20 %", charts, []))
    report(
        {
            "reservoir_of_plain": round(statistics.median(ratios), 3),
            "reservoir_first_class_kept": round(kept(memory["with a reservoir"]), 3),
        },
        {
            "cpu_us_a_record": [round(statistics.median(each) * 1e6, 2) for each in took],
            "first_class_kept_without": round(kept(memory["without"]), 3),
            "first_class_kept_at_once": {share: round(kept(curve), 3) for share, curve in at_once.items()},
            "below_0.9_at_once": {share: sum(one < 0.9 for one in curve) for share, curve in at_once.items()},
            "blocks": len(memory["without"]),
            "accuracy_of_drift": {name: round(statistics.fmean(curve), 4) for name, curve in drift.items()},
        },
    )


if __name__ == "__main__":
    main()
