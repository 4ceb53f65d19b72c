"""The benchmark's model with a step that waits off the CPU, as one on a GPU does: nobody's core, nobody's lock.

The wait is a tf.data iterator that sleeps before each element: an asynchronous op on a thread of TensorFlow's own. It
neither holds Python's lock nor computes. The rest of the step is Keras' own.
"""

from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.data.experimental.ops.testing import sleep  # among the public names no dataset sleeps

WAIT_MS = 10


def build_model(hidden: int = 64, learning_rate: float = 0.001) -> keras.Model:
    """Build and compile the MLP 28-64-64-1 of the other cases; its input bears the feature's name."""
    ticks = _ticks()

    class Waiting(keras.Model):  # type: ignore[misc]  # Keras has no types
        def train_step(self, data: Any) -> Any:
            with tf.control_dependencies([next(ticks)]):
                return super().train_step(tf.nest.map_structure(tf.identity, data))

    x = keras.Input((28,), name="x")
    first = keras.layers.Dense(hidden, activation="relu")(x)
    second = keras.layers.Dense(hidden, activation="relu")(first)
    model = Waiting(x, keras.layers.Dense(1, activation="sigmoid")(second))
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate),
        loss="binary_crossentropy",
        metrics=["accuracy", keras.metrics.AUC(name="auc")],
    )
    return model


def _ticks() -> Any:
    """Elements that each take WAIT_MS to come; nothing draws them ahead."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    options.experimental_optimization.inject_prefetch = False
    with tf.device("CPU:0"):
        return iter(tf.data.Dataset.range(1 << 62).apply(sleep(WAIT_MS * 1000)).with_options(options))
