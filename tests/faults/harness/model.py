"""The model that is killed: a small one with dropout, which adds up the ids of the records that it learns.

The sums are the records' own testimony: by the partition and id that stand in them, and by nothing that the trainer
believes. They are a variable like any other, so they are saved and restored with the weights.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

PARTITIONS = 4
WIDTH = 4


class Ids(keras.layers.Layer):
    """By partition: how many records were learnt, the sum of their ids, the sum of the squares of their ids."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.sums = self.add_weight(
            name="sums", shape=(PARTITIONS, 3), dtype="int64", initializer="zeros", trainable=False, aggregation="sum"
        )

    def call(self, inputs: Any) -> Any:
        """Return the input."""
        return inputs

    def count(self, ids: Any, partitions: Any, weights: Any) -> None:
        """Take a replica's rows in; absent rows have no weight."""
        present = tf.cast(weights > 0, tf.int64)
        ids = tf.reshape(ids, [-1]) * present
        rows = tf.stack([present, ids, ids * ids], axis=1)
        # Keras' own assign_add assigns the sum, which the replicas would add up; TensorFlow's adds up what is added.
        self.sums.value.assign_add(tf.math.unsorted_segment_sum(rows, tf.reshape(partitions, [-1]), PARTITIONS))


class Counting(keras.Model):
    """Counts ids in the very step that learns their records."""

    ids: Ids

    def train_step(self, data: Any) -> Any:
        """Count, then learn as Keras does."""
        features, _, weights = data
        self.ids.count(features["id"], features["partition"], weights)
        return super().train_step(data)


def counting(answer: Callable[[Any], Any], optimizer: keras.optimizers.Optimizer) -> keras.Model:
    """Return the compiled model that answers so, and counts ids."""
    x = keras.Input((WIDTH,), name="x")
    curse = keras.Input((), name="curse")
    counted = {
        "id": keras.Input((), name="id", dtype="int64"),
        "partition": keras.Input((), name="partition", dtype="int32"),
    }
    ids = Ids(name="ids")
    model = Counting({"x": x, "curse": curse, **counted}, answer(ids(x * keras.ops.exp(curse)[:, None])))
    model.ids = ids
    model.compile(optimizer=optimizer, loss="binary_crossentropy", metrics=["accuracy"])
    return model


def build_model() -> keras.Model:
    """Build and compile it."""
    print("model: building", flush=True)  # noqa: T201 - seen by whoever waits for this moment

    def answer(hidden: Any) -> Any:
        hidden = keras.layers.Dense(16, activation="relu")(hidden)
        hidden = keras.layers.Dropout(0.3)(hidden)
        return keras.layers.Dense(1, activation="sigmoid")(hidden)

    return counting(answer, keras.optimizers.Adam(1e-2))
