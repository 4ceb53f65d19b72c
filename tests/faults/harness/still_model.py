"""A model whose weights stay as they were built, so that its answer is a function of the record; it adds up ids."""

import keras

from tests.faults.harness.model import counting


def build_model() -> keras.Model:
    """Build and compile it."""
    answer = keras.layers.Dense(1, activation="sigmoid", kernel_initializer="ones")
    return counting(answer, keras.optimizers.SGD(0.0))
