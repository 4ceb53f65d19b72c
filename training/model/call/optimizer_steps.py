"""What an optimizer does beside its update, on replicas: accumulated gradients, averaged weights, clipping.

Keras decides inside of each replica whether a step updates or accumulates, and whether averages overwrite the weights;
there a conditional cannot hold what concerns all replicas. Here it is decided outside of them, by the same arithmetic.
Gradients are added up over the replicas before anything else, so that accumulators and clipping are the same on all
replicas, as on one: a checkpoint in the middle of an accumulation is whole.

Owns the replaced methods of one optimizer; its methods with tensors run while a step is being traced.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from millrace.training.model.setup.keras_internals import (
    accumulators,
    averages,
    read_once,
    replace_apply,
    steps_made,
    take_sums,
    update,
)


class OptimizerSteps:
    """Runs one optimizer's `apply` for all replicas."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._updates = True
        """Whether the step being traced updates the weights; otherwise it only accumulates gradients."""
        take_sums(optimizer)
        read_once(optimizer)
        if optimizer.gradient_accumulation_steps or optimizer.use_ema:
            replace_apply(optimizer, self._apply_gradients)

    def run(self, apply: Callable[[], Any]) -> None:
        """Call `apply`, which runs the optimizer's on every replica; called outside of the replicas."""
        steps = self._optimizer.gradient_accumulation_steps
        if not steps:
            apply()
            return
        is_update = tf.equal((steps_made(self._optimizer) + 1) % steps, 0)
        tf.cond(is_update, lambda: self._traced(apply, updates=True), lambda: self._traced(apply, updates=False))

    def _traced(self, apply: Callable[[], Any], *, updates: bool) -> Any:
        self._updates = updates
        apply()
        return tf.constant(updates)

    def _apply_gradients(self, grads: Sequence[Any], trainable_variables: Sequence[Any]) -> None:
        """Do what Keras' method of this place does, on one replica, with what it decides decided."""
        optimizer, context = self._optimizer, tf.distribute.get_replica_context()
        steps = optimizer.gradient_accumulation_steps
        gradients = [tf.convert_to_tensor(gradient) for gradient in grads] if steps else list(grads)
        if self._updates:
            if steps:
                sums = [accumulator.value for accumulator in accumulators(optimizer, trainable_variables)]
                gradients = [(gradient + total) / steps for gradient, total in zip(gradients, sums, strict=True)]
            update(optimizer, gradients, trainable_variables)
        if steps:
            totals = accumulators(optimizer, trainable_variables)
            context.merge_call(_reset if self._updates else _accumulate, args=(totals, *gradients))
        if optimizer.use_ema:
            context.merge_call(self._average)

    def _average(self, _strategy: Any) -> None:
        """Move the averages towards the weights, and overwrite these where it is time to."""
        optimizer, iterations = self._optimizer, keras.ops.convert_to_tensor(self._optimizer.iterations)
        pairs = [(weight.value, average.value) for weight, average in averages(optimizer)]
        for weight, average in pairs:
            momentum = tf.cast(tf.not_equal(iterations, 0), weight.dtype) * optimizer.ema_momentum
            average.assign(momentum * tf.convert_to_tensor(average) + (1 - momentum) * tf.convert_to_tensor(weight))
        if optimizer.ema_overwrite_frequency:

            def overwrite() -> Any:
                for weight, average in pairs:
                    weight.assign(tf.convert_to_tensor(average))
                return tf.constant(True)  # noqa: FBT003 - a tensor's value

            is_time = tf.equal((iterations + 1) % optimizer.ema_overwrite_frequency, 0)
            tf.cond(is_time, overwrite, lambda: tf.constant(False))  # noqa: FBT003 - a tensor's value


def _accumulate(strategy: Any, accumulators: Sequence[Any], *gradients: Any) -> None:
    for accumulator, gradient in zip(accumulators, gradients, strict=True):
        strategy.extended.update(
            accumulator.value, lambda total, by: total.assign_add(by), args=(gradient,), group=False
        )


def _reset(_strategy: Any, accumulators: Sequence[Any], *_gradients: Any) -> None:
    for accumulator in accumulators:
        accumulator.value.assign(tf.zeros(accumulator.shape, accumulator.dtype))
