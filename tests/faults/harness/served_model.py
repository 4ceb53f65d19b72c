"""A model that answers with a number of its row, and adds up the numbers of the rows that it learns.

The number is made of every bit of a row: sequences, lengths, gaps and the rest. The table in the weights holds it by
partition and id of the newest record, beside how often that was learnt. So what a server answers for a record can be
compared with what training made of the same offset.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.faults.harness.model import PARTITIONS, WIDTH

__all__ = ["LENGTH", "MOST", "build_model", "number_of"]
LENGTH = 6
MOST = 300_000
"""Records of a partition."""
_PARTS, _BITS = 4, 16
_NAMES = ("x", "past", "gaps", "known", "user", "curse", "id", "partition")
_COLUMNS = LENGTH * WIDTH + 2 * LENGTH + 5
_FACTORS = np.array([pow(2 * at + 3, 29, 2**63) | 1 for at in range(_COLUMNS)], np.int64)


def numbers_of(rows: Any) -> Any:
    """Return a number of 64 bits for each row, made of all its bits."""
    columns = []
    for name in _NAMES:
        column = rows[name]
        bits = tf.bitcast(column, tf.int32) if column.dtype == tf.float32 else column
        columns.append(tf.reshape(tf.cast(bits, tf.int64), [tf.shape(column)[0], -1]))
    return tf.reduce_sum(tf.concat(columns, 1) * tf.constant(_FACTORS), 1)


def number_of(answer: Any) -> int:
    """Return the number in an answer: its last values are portions of 16 bits, which a float32 holds exactly."""
    return sum(int(value) << _BITS * at for at, value in enumerate(answer[1:]))


class RowNumbers(keras.layers.Layer):
    """The number of each row as floats; by partition and id how often it was learnt, and the sum of its numbers."""

    def __init__(self, most: int, **options: Any) -> None:
        super().__init__(**options)
        self.most = most
        self.table = self.add_weight(
            name="table",
            shape=(PARTITIONS, most, 2),
            dtype="int64",
            initializer="zeros",
            trainable=False,
            aggregation="sum",
        )

    def call(self, rows: Any) -> Any:
        """Return the portions of each row's number."""
        numbers = numbers_of(rows)
        mask = tf.constant((1 << _BITS) - 1, tf.int64)
        parts = [tf.bitwise.bitwise_and(tf.bitwise.right_shift(numbers, _BITS * at), mask) for at in range(_PARTS)]
        return tf.cast(tf.stack(parts, 1), tf.float32)

    def compute_output_spec(self, _rows: Any) -> Any:
        """Return the shape of the portions."""
        return keras.KerasTensor((None, _PARTS))

    def add(self, rows: Any, weights: Any) -> None:
        """Take rows in; absent rows have no weight."""
        present = tf.cast(weights > 0, tf.int64)
        places = tf.cast(rows["partition"], tf.int64) * self.most + rows["id"]
        added = tf.math.unsorted_segment_sum(
            tf.stack([present, present * numbers_of(rows)], 1), places, PARTITIONS * self.most
        )
        self.table.value.assign_add(tf.reshape(added, [PARTITIONS, self.most, 2]))


class CountingRows(keras.Model):
    """Adds up rows in the very step that learns them."""

    numbers: RowNumbers

    def train_step(self, data: Any) -> Any:
        """Add, then learn as Keras does."""
        features, _, weights = data
        self.numbers.add(features, weights)
        return super().train_step(data)


@keras.saving.register_keras_serializable("millrace-tests")
class ScoreLoss(keras.losses.Loss):
    """The loss of the first value of an answer."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return the loss of each row."""
        return keras.losses.binary_crossentropy(keras.ops.reshape(y_true, (-1, 1)), y_pred[:, :1])


def build_model(most: int = MOST) -> keras.Model:
    """Build and compile it, for so many records of a partition."""
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
    numbers = RowNumbers(most, name="numbers")
    hidden = keras.layers.Dense(8, activation="relu")(keras.layers.Flatten()(inputs["x"]))
    score = keras.layers.Dense(1, activation="sigmoid")(hidden)
    model = CountingRows(inputs, keras.layers.Concatenate(name="y")([score, numbers(inputs)]))
    model.numbers = numbers
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=ScoreLoss())
    return model
