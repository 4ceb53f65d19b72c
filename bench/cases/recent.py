"""The memory of the last records: what it costs and what it gains over as many passes of the batch; and two members.

Cost: the same blocks are learnt by the product's compiled call in eight passes, with a memory and without, in turns, in
one thread; then by two members and by one model with the memory. Time is that of the CPU.

Gain: the centres around which records of four classes lie change at once, forty times in succession, and each batch is
scored before it is learnt. All learn the same records in eight passes. Each feature is given as it is, and piecewise
between quantiles.
"""

import argparse
import os
import statistics
import time
from dataclasses import replace
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from rig import report

from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.stream.blocks import Rows
from millrace.training.model.learner import Learner, LearnerOptions
from millrace.training.model.setup.mixture import MixedModel
from millrace.training.model.setup.strategy import DeviceOptions

FEATURES, CLASSES, CENTRES, PIECES, BATCH, BATCHES, PASSES, MEMORY, MEMBERS = 8, 4, 12, 10, 32, 25, 8, 300, 10_000
INPUTS = FEATURES * (1 + PIECES)
CONCEPT = 1_000
"""Records until the centres are others."""
SCHEMA = Schema(
    features=(Field(name="x", source="x", dtype="float32", shape=(INPUTS,)),),
    labels=(Field(name="y", source="y", dtype="int64"),),
)


def classifier() -> Any:
    """Build a small classifier."""
    x = keras.Input((INPUTS,), name="x")
    hidden = keras.layers.Dense(32, activation="relu")(keras.layers.Dense(64, activation="relu")(x))
    model = keras.Model(x, keras.layers.Dense(CLASSES, activation="softmax")(hidden))
    model.compile(keras.optimizers.Adam(0.003), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def learner_of(memory: int | None, members: int | None = None) -> Learner:
    """Build a learner with this memory, or of two members of which one draws from so many records."""
    options = LearnerOptions(schema=SCHEMA, batch_size=BATCH, devices=DeviceOptions(replicas=1, threads=1), seed=1)
    build = classifier if members is None else partial(MixedModel.of, classifier, MEMORY, members)
    return Learner(build, None, replace(options, passes=PASSES, memory=memory, members=members))


def stream(records: int) -> tuple[Any, Any]:
    """Return records around some centres, each of a class, with a spread and a weight; others in each concept."""
    random = np.random.default_rng(3)
    x, y = [], []
    for _ in range(0, records, CONCEPT):
        centres, spreads, weights = random.random((CENTRES, FEATURES)), random.random(CENTRES), random.random(CENTRES)
        of_class = random.permutation(np.arange(CENTRES) % CLASSES)
        at = random.choice(CENTRES, CONCEPT, p=weights / weights.sum())
        directions = random.normal(size=(CONCEPT, FEATURES))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        x.append(centres[at] + directions * (random.normal(size=CONCEPT) * spreads[at])[:, None])
        y.append(of_class[at])
    return piecewise(np.concatenate(x)[:records]), np.concatenate(y)[:records]


def piecewise(x: Any) -> Any:
    """Return each feature as it is, and how far it has come from each of some quantiles to the next."""
    edges = np.quantile(x[:CONCEPT], np.linspace(0, 1, PIECES + 1), axis=0)
    pieces = (x[:, None] - edges[:-1]) / (edges[1:] - edges[:-1])
    pieces = 2 * np.clip(pieces, 0, 1) - 1
    return np.concatenate([x[:, None] - x[:CONCEPT].mean(axis=0), pieces], 1).reshape(len(x), -1).astype(np.float32)


def blocks(x: Any, y: Any) -> list[Rows]:
    """Return the records as blocks of whole batches."""
    found = []
    for first in range(0, len(y) - BATCH * BATCHES + 1, BATCH * BATCHES):
        here = slice(first, first + BATCH * BATCHES)
        found.append(
            Rows(
                features={"x": tf.constant(x[here].reshape(BATCHES, BATCH, INPUTS))},
                labels=tf.constant(y[here].reshape(BATCHES, BATCH)),
                weights=tf.ones([BATCHES, BATCH]),
                offsets=tf.constant(np.arange(first, first + BATCH * BATCHES).reshape(BATCHES, BATCH)),
                partitions=tf.zeros([BATCHES, BATCH], tf.int32),
            )
        )
    return found


def cost(ways: tuple[Learner, Learner], rows: list[Rows], rounds: int) -> list[tuple[float, float]]:
    """Have both learn the same blocks in turns; return the seconds of CPU of each in each round."""
    found = []
    for turn in range(rounds + 1):
        took = [0.0, 0.0]
        # The second of a pair finds warm caches.
        for number in (0, 1) if turn % 2 else (1, 0):
            began = time.process_time()
            ways[number].learn(rows[turn % len(rows)])
            took[number] = time.process_time() - began
        found.append((took[0], took[1]))
    return found[1:]  # the first traces


def accuracy(rows: list[Rows], memory: int | None, members: int | None = None) -> float:
    """Return the share of the records that were guessed right before they were learnt."""
    learner = learner_of(memory, members)
    return sum(float(learner.learn(one).result.states[0]) for one in rows) / len(rows) / BATCH / BATCHES


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="how often both learn the same block, for the cost")
    parser.add_argument("--records", type=int, default=40 * CONCEPT)
    given = parser.parse_args()
    # Learners first, as the first tensor fixes the threads.
    ways, mixed = (learner_of(MEMORY), learner_of(None)), (learner_of(None, MEMBERS), learner_of(MEMORY))
    rows = blocks(*stream(given.records))
    ratios, twice = ([one / other for one, other in cost(each, rows, given.rounds)] for each in (ways, mixed))
    plain, drawn, both = (accuracy(rows, *ways) for ways in ((None,), (MEMORY,), (None, MEMBERS)))
    report(
        {
            "memory_of_passes_cpu": round(statistics.median(ratios), 3),
            "memory_of_passes_points": round(100 * (drawn - plain), 2),
            "members_cpu": round(statistics.median(twice), 3),
            "members_points": round(100 * (both - drawn), 2),
        },
        {
            "cpu": sorted(round(one, 3) for one in ratios),
            "members_cpu": sorted(round(one, 3) for one in twice),
            "accuracy": {"of the batch": plain, "of the memory": drawn, "of two members": both},
        },
    )


if __name__ == "__main__":
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    main()
