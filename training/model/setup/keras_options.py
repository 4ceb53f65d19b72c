"""Options of `model.compile` that a training call does not follow: what stands in the place of each.

Pure inspection; docs/model.md lists these and the arguments of `fit` beside them.
"""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf


def without_effect(model: Any) -> Iterator[str]:
    """Yield a sentence for each option of the compiled model that has no effect here."""
    if model.run_eagerly:
        yield "run_eagerly has no effect: every step is traced; to debug one, call model.train_step in a test"
    if model.steps_per_execution not in {None, 1}:
        yield (
            f"steps_per_execution={model.steps_per_execution} has no effect: training.batches_per_call says how many "
            "steps a call runs"
        )
    # On a GPU Keras turns it on by itself.
    if model.jit_compile and not tf.config.list_physical_devices("GPU"):
        yield (
            "jit_compile has no effect: a call runs a varying number of batches, and XLA would compile each of them; "
            "give jit_compile=True to a tf.function inside the model if it pays"
        )
