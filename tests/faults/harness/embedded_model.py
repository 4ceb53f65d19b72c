"""The model of a group that is killed: an embedding beside dense layers, and a sum that no optimizer guards.

It adds up the ids of the records that it learns, as `model.py` does, so what its weights have learnt is exact. The
gradients of its embedding are sparse, and go another way between workers than dense ones.
"""

from typing import Any

import keras
import tensorflow as tf

from tests.faults.harness.model import WIDTH, Counting, Ids

_ROWS, _DIMENSIONS = 512, 8


class IdsAndTail(Ids):
    """The sums of ids, and one more that the step assigns by itself."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.tail = self.add_weight(name="tail", shape=(), initializer="zeros", trainable=False, aggregation="sum")

    def overflow(self, curses: Any, weights: Any) -> None:
        """Add what a record of `infinite` (in `records.py`) makes infinity."""
        present = tf.reshape(weights, [-1]) > 0
        self.tail.value.assign_add(tf.reduce_sum(tf.where(present, tf.exp(-tf.reshape(curses, [-1])), 0.0)))


class Embedded(Counting):
    """Counts ids, and adds up past the optimizer."""

    ids: IdsAndTail

    def train_step(self, data: Any) -> Any:
        """Add up, then count and learn."""
        features, _, weights = data
        self.ids.overflow(features["curse"], weights)
        return super().train_step(data)


def build_model() -> keras.Model:
    """Build and compile it."""
    x = keras.Input((WIDTH,), name="x")
    curse = keras.Input((), name="curse")
    identity = keras.Input((), name="id", dtype="int64")
    partition = keras.Input((), name="partition", dtype="int32")
    ids = IdsAndTail(name="ids")
    dense = ids(x * keras.ops.exp(curse)[:, None])
    of_id = keras.layers.Embedding(_ROWS, _DIMENSIONS, name="of_id")(keras.ops.mod(identity, _ROWS))
    hidden = keras.layers.Concatenate()([dense, of_id])
    hidden = keras.layers.Dense(16, activation="relu")(hidden)
    output = keras.layers.Dense(1, activation="sigmoid")(hidden)
    model = Embedded({"x": x, "curse": curse, "id": identity, "partition": partition}, output)
    model.ids = ids
    model.compile(optimizer=keras.optimizers.Adam(1e-2), loss="binary_crossentropy", metrics=["accuracy"])
    return model
