"""The look for NaN: whether every number that a checkpoint would hold of the model is finite, answered by the device.

The finite guard (`training/model/finite_guard.py`) sees what passes through an optimizer. A `train_step` that assigns
weights by itself, or an optimizer that overflows on finite gradients, passes it by; this look at the state itself sees
both. It runs before every save. One sum over each variable is enough: a sum is finite only if all of its terms are, and
it costs a third of a comparison of each number. Where a sum of finite numbers overflows, each number is compared.

Owns the compiled functions; runs on the trainer's thread, between calls.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from training.model.variables import copies


class FiniteLook:
    """Looks at these variables, on every replica. Build it when they have their first values."""

    def __init__(self, variables: Mapping[str, Any]) -> None:
        floats = {key: variable for key, variable in variables.items() if tf.as_dtype(variable.dtype).is_floating}
        self._copies = {key: tuple(copies(variable)) for key, variable in floats.items()}
        self._sums = tf.function(self._sums_are_finite, autograph=False)
        self._exact = tf.function(self._flags, autograph=False)
        self.by_design: frozenset[str] = frozenset()
        """Variables that hold NaN or infinity from the beginning, as a mask may; they are not looked at."""
        if first := self.not_finite():
            self.by_design = frozenset(first)
            self._copies = {key: found for key, found in self._copies.items() if key not in self.by_design}
            self._sums, self._exact = (
                tf.function(self._sums_are_finite, autograph=False),
                tf.function(self._flags, autograph=False),
            )

    def not_finite(self) -> list[str]:
        """Return the variables that hold NaN or infinity; none where everything is finite."""
        if not self._copies or bool(self._sums()):
            return []
        return [key for key, finite in zip(self._copies, self._exact().numpy(), strict=True) if not finite]

    def _sums_are_finite(self) -> Any:
        every = [copy for found in self._copies.values() for copy in found]
        return tf.reduce_all(tf.stack([tf.math.is_finite(tf.reduce_sum(copy)) for copy in every]))

    def _flags(self) -> Any:
        return tf.stack(
            [
                tf.reduce_all(tf.stack([tf.reduce_all(tf.math.is_finite(copy)) for copy in found]))
                for found in self._copies.values()
            ]
        )
