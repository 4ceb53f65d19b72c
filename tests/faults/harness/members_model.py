"""A functional model for `training.members`, on a stream whose labels mean the opposite now and then."""

from typing import Any

import keras
import tensorflow as tf

from tests.faults.harness.model import PARTITIONS, WIDTH

_CONCEPT = 1_500
"""Records of a partition until its labels mean the opposite."""


class Known(keras.layers.Layer):
    """Raises for a partition that is not there."""

    def call(self, inputs: Any) -> Any:
        """Return the first input."""
        x, partitions = inputs
        known = tf.debugging.assert_less(partitions, PARTITIONS)
        with tf.control_dependencies([known]):
            return tf.identity(x)


def preprocess(features: dict[str, Any], label: Any, weight: Any) -> tuple[dict[str, Any], Any, Any]:
    """Turn labels around in every second stretch of records."""
    turned = tf.reshape(features["id"] // _CONCEPT % 2, tf.shape(label)) == 1
    features = {name: column for name, column in features.items() if name != "id"}
    return features, tf.where(turned, 1 - label, label), weight


def build_model() -> keras.Model:
    """Build and compile it."""
    x = keras.Input((WIDTH,), name="x")
    curse = keras.Input((), name="curse")
    partition = keras.Input((), name="partition", dtype="int32")
    hidden = Known()([x * keras.ops.exp(curse)[:, None], partition])
    hidden = keras.layers.Dense(16, activation="relu")(hidden)
    hidden = keras.layers.Dropout(0.1)(hidden)
    outputs = keras.layers.Dense(1, activation="sigmoid")(hidden)
    model = keras.Model({"x": x, "curse": curse, "partition": partition}, outputs)
    model.compile(optimizer=keras.optimizers.Adam(1e-2), loss="binary_crossentropy", metrics=["accuracy"])
    return model
