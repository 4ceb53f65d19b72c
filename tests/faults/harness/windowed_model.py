"""The model of `model.py` for sequences of a user's last records; it counts the newest of each as that does.

It also adds up a number for each sequence that it learns, made of the ids in it, beside how often it learns it.
So each sequence can be held against one that is found without the product (`tests/faults/harness/sequences.py`).
"""

from typing import Any

import keras
import tensorflow as tf

from tests.faults.harness.model import PARTITIONS, WIDTH, Counting, Ids
from tests.faults.harness.sequences import FACTORS, LENGTH
from tests.faults.harness.shaped_model import augment

__all__ = ["MOST", "augment", "build_model"]
MOST = 72_000
"""Records of a partition."""


class Sequences(keras.layers.Layer):
    """By partition and id of the newest record: how often it was learnt, and the sum of its sequences' numbers."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.table = self.add_weight(
            name="table",
            shape=(PARTITIONS, MOST, 2),
            dtype="int64",
            initializer="zeros",
            trainable=False,
            aggregation="sum",
        )

    def call(self, inputs: Any) -> Any:
        """Return the input."""
        return inputs

    def add(self, features: Any, weights: Any) -> None:
        """Take rows in; absent rows have no weight."""
        present = tf.cast(weights > 0, tf.int64)
        counted = tf.concat([features["past"], tf.cast(features["known"], tf.int64)[:, None]], 1)
        numbers = tf.reduce_sum(counted * tf.constant(FACTORS, tf.int64), 1)
        places = tf.cast(features["partition"], tf.int64) * MOST + features["id"]
        added = tf.math.unsorted_segment_sum(tf.stack([present, present * numbers], 1), places, PARTITIONS * MOST)
        self.table.value.assign_add(tf.reshape(added, [PARTITIONS, MOST, 2]))


class CountingSequences(Counting):
    """Counts sequences too."""

    sequences: Sequences

    def train_step(self, data: Any) -> Any:
        """Count, then learn as Keras does."""
        features, _, weights = data
        self.sequences.add(features, weights)
        return super().train_step(data)


def build_model() -> keras.Model:
    """Build and compile it."""
    print("model: building", flush=True)  # noqa: T201 - seen by whoever waits for this moment
    inputs = {
        "x": keras.Input((LENGTH, WIDTH), name="x"),
        "past": keras.Input((LENGTH,), name="past", dtype="int64"),
        "gaps": keras.Input((LENGTH,), name="gaps"),
        "known": keras.Input((), name="known", dtype="int32"),
        "user": keras.Input((), name="user", dtype="int64"),
        "curse": keras.Input((), name="curse"),
        "id": keras.Input((), name="id", dtype="int64"),
        "partition": keras.Input((), name="partition", dtype="int32"),
    }
    ids, sequences = Ids(name="ids"), Sequences(name="sequences")
    gaps = keras.ops.log1p(keras.ops.relu(inputs["gaps"]))
    steps = keras.layers.Concatenate()([inputs["x"], gaps[..., None]])
    hidden = keras.layers.GRU(8)(sequences(ids(steps))) * keras.ops.exp(inputs["curse"])[:, None]
    known = keras.ops.cast(inputs["known"], "float32")[:, None] / LENGTH
    hidden = keras.layers.Dropout(0.3)(keras.layers.Concatenate()([hidden, known]))
    model = CountingSequences(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.ids, model.sequences = ids, sequences
    model.compile(optimizer=keras.optimizers.Adam(1e-2), loss="binary_crossentropy", metrics=["accuracy"])
    return model
