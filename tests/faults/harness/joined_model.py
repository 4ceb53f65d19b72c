"""The model of `model.py` that also takes in the label of each record that it learns, by partition and id.

It adds up a number for each label that it learns, made of all bits of the label, beside how often it learns it. So each
label can be held against one that is found without the product, by a plain join of the two topics; other labels that
come to the same sum give another number.
"""

import struct
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tests.faults.harness.model import PARTITIONS, WIDTH, Counting, Ids

_FACTOR = pow(3, 39, 2**63) | 1
_WRAP = 2**64


def number_of(label: float) -> int:
    """Return the number of a label, from 0 to below 2 to the power of 64."""
    (bits,) = struct.unpack("<i", struct.pack("<f", label))
    return int((bits * bits + bits + 1) * _FACTOR % _WRAP)


class Labels(keras.layers.Layer):
    """By partition and id: how often a record was learnt, and the sum of its labels' numbers."""

    def __init__(self, each: int, **options: Any) -> None:
        """Have room for so many records of a partition."""
        super().__init__(**options)
        self.table = self.add_weight(
            name="table",
            shape=(PARTITIONS, each, 2),
            dtype="int64",
            initializer="zeros",
            trainable=False,
            aggregation="sum",
        )

    def call(self, inputs: Any) -> Any:
        """Return the input."""
        return inputs

    def add(self, features: Any, labels: Any, weights: Any) -> None:
        """Take rows in; absent rows have no weight."""
        present = tf.cast(tf.reshape(weights, [-1]) > 0, tf.int64)
        bits = tf.cast(tf.bitcast(tf.reshape(labels, [-1]), tf.int32), tf.int64)
        numbers = (bits * bits + bits + 1) * tf.constant(_FACTOR, tf.int64)
        places = tf.stack([tf.cast(features["partition"], tf.int64), features["id"]], 1)
        rows = tf.stack([present, present * numbers], 1)
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            self.table.value.assign_add(tf.scatter_nd(places, rows, tf.shape(self.table, tf.int64)))
        else:
            # Costs nothing for the other records; TensorFlow's own method refuses variables that may have replicas.
            tf.raw_ops.ResourceScatterNdAdd(ref=self.table.value.handle, indices=places, updates=rows)


class CountingLabels(Counting):
    """Counts labels too."""

    labels: Labels

    def train_step(self, data: Any) -> Any:
        """Count, then learn as Keras does."""
        features, labels, weights = data
        self.labels.add(features, labels, weights)
        return super().train_step(data)


class CountingMasked(CountingLabels):
    """Counts the labels of an output that is masked where none came, by the weights of that output."""

    def train_step(self, data: Any) -> Any:
        """Count, then learn as Keras does."""
        features, labels, weights = data
        came = tf.where(weights["masked"] > 0, labels["masked"], 0.0)
        self.labels.add(features, came, weights["clicked"])
        self.ids.count(features["id"], features["partition"], weights["clicked"])
        return keras.Model.train_step(self, data)


def build_model(each: int) -> keras.Model:
    """Build and compile it, for so many records of a partition."""
    hidden, make = _begun(each)
    model = make(CountingLabels, keras.layers.Dense(1, activation="sigmoid", name="clicked")(hidden))
    model.compile(optimizer=keras.optimizers.Adam(1e-2), loss="binary_crossentropy", metrics=["accuracy"])
    return model


def build_masked_model(each: int) -> keras.Model:
    """Build and compile one with a second output."""
    hidden, make = _begun(each)
    outputs = {name: keras.layers.Dense(1, activation="sigmoid", name=name)(hidden) for name in ("clicked", "masked")}
    model = make(CountingMasked, outputs)
    model.compile(optimizer=keras.optimizers.Adam(1e-2), loss={"clicked": "binary_crossentropy", "masked": "mse"})
    return model


def _begun(each: int) -> tuple[Any, Callable[[Any, Any], Any]]:
    """Return the hidden layer, and what makes a model of a class with these outputs."""
    print("model: building", flush=True)  # noqa: T201 - seen by whoever waits for this moment
    inputs = {
        "x": keras.Input((WIDTH,), name="x"),
        "id": keras.Input((), name="id", dtype="int64"),
        "partition": keras.Input((), name="partition", dtype="int32"),
    }
    ids, labels = Ids(name="ids"), Labels(each, name="labels")
    hidden = keras.layers.Dense(16, activation="relu")(labels(ids(inputs["x"])))
    hidden = keras.layers.Dropout(0.3)(hidden)

    def make(kind: Any, outputs: Any) -> Any:
        model = kind(inputs, outputs)
        model.ids, model.labels = ids, labels
        return model

    return hidden, make
