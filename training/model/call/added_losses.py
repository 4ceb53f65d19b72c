"""What layers add by `add_loss`: one value a record counts by the record's weight, so that absent rows add nothing.

Keras adds such values up as they are, absent rows included, because a layer is not told the weights. Here a vector as
long as the batch becomes its weighted mean over the batch's rows, as the compiled loss does; a scalar stays as it is.

Owns the wrapping of the model's method; its methods with tensors run while a step is being traced.
"""

import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from millrace.training.model.setup.keras_internals import added_losses, weigh_added_losses
from millrace.training.model.setup.mixture import members_of


class _WeighedStep(threading.local):
    """The weights of the step being traced. Each replica is traced in a thread of its own, in turns."""

    def __init__(self) -> None:
        self.weights: Any = None


class AddedLosses:
    """Weighs what a model's layers add to its loss."""

    def __init__(self, model: Any) -> None:
        self._step = _WeighedStep()
        self._model = model
        self.of_batches = False
        """Whether a layer added one number for all rows; Keras collects losses of weights by itself."""
        for one in (model, *members_of(model)):
            weigh_added_losses(one, self._weighed)

    @property
    def weights(self) -> Any:
        """The weights of the rows of the step being traced."""
        return self._step.weights

    def open(self, weights: Any) -> None:
        """Begin the tracing of a step whose rows have these weights."""
        self._step.weights = weights

    def _weighed(self, aggregate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def weighed(loss: Any) -> Any:
            weights = self._step.weights
            if weights is not None and loss.shape.rank == 1 and loss.shape == weights.shape:
                loss = tf.reduce_mean(loss * tf.cast(weights, loss.dtype))
            else:
                self.of_batches |= any(loss is own for own in added_losses(self._model))
            return aggregate(loss)

        return weighed
