"""Sequences of the last 20 records of each key: what they cost on the way from bytes to a learnt block.

The same records are decoded, made into blocks and learnt by the product's own parts, with windows and without, in
turns, in one thread. The model is the same, an MLP that looks at the newest record; so what differs is what windows
take: to find the keys, to make and copy the sequences, and to follow what is settled. Time is that of the CPU.

What they gain is shown on records whose label depends on the order of those before: whether a key's first number has
risen or fallen twice in succession. A GRU over the last 20 records of the key learns them, and an MLP learns the same
records alone. Accuracy is of the second half of the records, each scored before it is learnt.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from rig import report

from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.shaping.windows.window_layout import WindowLayout
from millrace.pipelines.shaping.windows.windows import WindowSettings, WindowShaper
from millrace.pipelines.stream.assemble import AssembleOptions, Assembler
from millrace.pipelines.stream.blocks import Block, Rows
from millrace.pipelines.stream.decode import decode_chunk
from millrace.training.model.learner import Learner, LearnerOptions
from millrace.training.model.setup.strategy import DeviceOptions

FEATURES, UNITS, BATCH, BATCHES = 12, 64, 256, 16
KEYS, CHUNK = 20_000, 4096
PARTITION = Partition("bench", 0)
SCHEMA = Schema(
    features=(
        Field(name="user", source="user", dtype="int64"),
        Field(name="x", source="x", dtype="float32", shape=(FEATURES,)),
    ),
    labels=(Field(name="y", source="y", dtype="float32"),),
)
LENGTH = 20
WINDOWS = WindowLayout(SCHEMA, WindowSettings(length=LENGTH, by="user", lengths="known"))


def build() -> Any:
    """Build a small classifier of one record."""
    x = keras.Input((FEATURES,), name="x")
    hidden = keras.layers.Dense(UNITS, activation="relu")(keras.layers.Dense(UNITS, activation="relu")(x))
    model = keras.Model(x, keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.compile(optimizer=keras.optimizers.Adam(0.001), loss="binary_crossentropy", metrics=["accuracy"])
    return model


def recurrent() -> Any:
    """Build a small classifier of a sequence."""
    x, known = keras.Input((LENGTH, FEATURES), name="x"), keras.Input((), name="known", dtype="int32")
    is_there = keras.ops.greater_equal(keras.ops.arange(LENGTH), LENGTH - known[:, None])
    hidden = keras.layers.GRU(32)(x, mask=is_there)
    hidden = keras.layers.Dense(UNITS, activation="relu")(hidden)
    model = keras.Model([x, known], keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.compile(optimizer=keras.optimizers.Adam(0.003), loss="binary_crossentropy", metrics=["accuracy"])
    return model


def without_key(features: dict[str, Any], label: Any, weight: Any) -> tuple[dict[str, Any], Any, Any]:
    """Keep all but the key."""
    return {name: column for name, column in features.items() if name != "user"}, label, weight


def newest(features: dict[str, Any], label: Any, weight: Any) -> tuple[dict[str, Any], Any, Any]:
    """Keep what the model takes: the newest record of a sequence, or the record."""
    x = features["x"]
    return {"x": x[:, -1] if x.shape.rank == 3 else x}, label, weight


def chunks_of(records: int) -> list[Chunk]:
    """Make records up: some keys come often, most seldom."""
    random = np.random.default_rng(7)
    users = random.zipf(1.2, records) % KEYS
    x = random.normal(size=(records, FEATURES)).round(4)
    before = dict[int, list[float]]()
    values = []
    for user, row in zip(users.tolist(), x.tolist(), strict=True):
        past = before.setdefault(user, [0.0, 0.0])
        risen = (row[0] > past[1]) == (past[1] > past[0])
        values.append(json.dumps({"user": user, "x": row, "y": float(risen)}).encode())
        before[user] = [past[1], row[0]]
    return [chunk(values[first : first + CHUNK], first) for first in range(0, records, CHUNK)]


def chunk(values: Sequence[bytes], first: int) -> Chunk:
    """Return records as they come from Kafka."""
    size = len(values)
    return Chunk(
        partition=PARTITION,
        incarnation=1,
        start=first,
        end=first + size,
        offsets=np.arange(first, first + size),
        timestamps=np.arange(first, first + size),
        keys=[None] * size,
        values=values,
        headers=[()] * size,
        nbytes=sum(map(len, values)),
        fetched_at=0.0,
    )


def blocks(chunks: Sequence[Chunk], learner: Learner, layout: WindowLayout | None) -> Iterator[Block]:
    """Yield the blocks of all records; each is settled when the next one is asked for."""
    decoder, states = make_decoder("json", SCHEMA), None if layout is None else WindowShaper(layout)
    shape = None if states is None else states.open(1, {PARTITION: 0})
    options = AssembleOptions(batch_size=BATCH, batches_per_call=BATCHES)
    assembler = Assembler(learner.options.schema, options, [PARTITION], 1, shape=shape)
    for each in chunks:
        assembler.add(decode_chunk(each, decoder))
        while (block := assembler.take(0.0)) is not None:
            yield block
            if states is not None:
                states.settle(block.facts)


def learnt(chunks: Sequence[Chunk], learner: Learner, layout: WindowLayout | None) -> float:
    """Learn all records; return the CPU's seconds for one."""
    rows, began = 0, time.process_time()
    for block in blocks(chunks, learner, layout):
        given: Rows = tf.nest.map_structure(tf.constant, block.rows)
        learner.learn(given._replace(features={"x": _newest_of(given.features["x"])}, labels=given.labels["y"]))
        rows += block.facts.rows
    return (time.process_time() - began) / rows


def accuracy(chunks: Sequence[Chunk], learner: Learner, layout: WindowLayout | None) -> float:
    """Learn all records; return how many of the second half were guessed right before they were learnt."""
    scores = []
    for block in blocks(chunks, learner, layout):
        given: Rows = tf.nest.map_structure(tf.constant, block.rows)
        features, labels, weights = without_key(dict(given.features), given.labels["y"], given.weights)
        rows = given._replace(features=features, labels=labels, weights=weights)
        right, count = learner.learn(rows).result.states[:2]
        scores.append((float(right), float(count)))
    late = np.array(scores[len(scores) // 2 :]).sum(axis=0)
    return float(late[0] / late[1])


def _newest_of(x: Any) -> Any:
    return x[:, :, -1] if x.shape.rank == 4 else x


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=131_072)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    chunks = chunks_of(given.records)
    plain_options = LearnerOptions(schema=SCHEMA, batch_size=BATCH, devices=DeviceOptions(replicas=1), seed=1)
    plain = Learner(build, newest, plain_options)
    windowed = Learner(build, newest, replace(plain_options, schema=WINDOWS.shaped))
    took: dict[str, list[float]] = {"plain": [], "windows": []}
    for turn in range(given.rounds + 1):
        pair = {"plain": learnt(chunks, plain, None), "windows": learnt(chunks, windowed, WINDOWS)}
        for name, seconds in pair.items() if turn else ():
            took[name].append(seconds)
    ways = {"windows": (recurrent, WINDOWS), "records": (build, None)}
    right = dict[str, float]()
    for name, (model, layout) in ways.items():
        options = plain_options if layout is None else replace(plain_options, schema=layout.shaped)
        right[name] = accuracy(chunks, Learner(model, without_key, options), layout)
    # Of each turn by itself: what slows the machine slows both.
    ratios = [one / other for one, other in zip(took["plain"], took["windows"], strict=True)]
    report(
        {
            "windows_of_plain": round(statistics.median(ratios), 3),
            "windows_gain_points": round(100 * (right["windows"] - right["records"]), 1),
        },
        {
            "cpu_us_a_record": {name: round(statistics.median(each) * 1e6, 2) for name, each in took.items()},
            "accuracy": {name: round(share, 4) for name, share in right.items()},
        },
    )


if __name__ == "__main__":
    main()
