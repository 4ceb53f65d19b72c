"""Scoring within the training pass: rows are scored as they came, though the pass learns them otherwise.

A model that behaves the same in training needs no pass of its own for that: the output of the training pass is scored
with the rows' own weights, and without the rows that are only given again.

Owns the wrapping of the model's `compute_loss` and `compute_metrics`; its methods run while a step is being traced.
"""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from millrace.training.model.call.added_losses import AddedLosses
from millrace.training.model.call.finite_guard import FiniteGuard
from millrace.training.model.setup.keras_internals import as_is

_LOSS_ARGUMENTS = ("x", "y", "y_pred", "sample_weight", "training")
"""Of `compute_loss`, in Keras' sequence."""


class _Scored(NamedTuple):
    """How the step being traced scores its rows."""

    weights: Any
    """As the rows came."""
    by_output: Any
    """The same as the model takes it: one a row, or one a row for each output."""
    corrected: Callable[[Any], Any]
    again: int
    """How many rows behind them are only given again."""

    def rows(self, columns: Any) -> Any:
        """Return what is scored of columns that the training pass has taken or given."""
        if not self.again:
            return columns
        return tf.nest.map_structure(lambda column: column if column is None else column[: -self.again], columns)


class _ScoringStep(threading.local):
    """The step being traced. Each replica is traced in a thread of its own."""

    loss: _Scored | None = None
    metrics: _Scored | None = None


class StepScoring:
    """Has a model's training pass score its rows as they came."""

    def __init__(self, model: Any, guard: FiniteGuard, added: AddedLosses) -> None:
        self._step = _ScoringStep()
        compute_loss, compute_metrics = model.compute_loss, model.compute_metrics

        @as_is
        def loss(*args: Any, **kwargs: Any) -> Any:
            scored, self._step.loss = self._step.loss, None
            given: dict[str, Any] = dict(zip(_LOSS_ARGUMENTS, args, strict=False)) | kwargs
            if scored is not None and "y_pred" in given:
                y_pred = tf.nest.map_structure(tf.stop_gradient, scored.rows(given["y_pred"]))
                rows = {name: scored.rows(given[name]) for name in ("x", "y") if name in given}
                # By these a mean over all rows of the pass is that over the rows that are scored.
                weights, size, learnt = scored.weights, scored.weights.shape[0], given.get("sample_weight")
                if scored.again:
                    scale = (size + scored.again) / size
                    weights = tf.concat([weights * scale, tf.zeros([scored.again], weights.dtype)], 0)
                if tf.nest.is_nested(learnt):
                    learnt = added.weights
                added.open(weights)
                compute_loss(**(given | rows | {"y_pred": scored.corrected(y_pred), "sample_weight": scored.by_output}))
                added.open(learnt)
                guard.show_first_loss()
            return compute_loss(*args, **kwargs)

        @as_is
        def metrics(x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            scored = self._step.metrics
            if scored is None:
                return compute_metrics(x, y, y_pred, sample_weight=sample_weight)
            y_pred = scored.corrected(scored.rows(y_pred))
            return compute_metrics(scored.rows(x), scored.rows(y), y_pred, sample_weight=scored.by_output)

        model.compute_loss, model.compute_metrics = loss, metrics

    def open(self, weights: tuple[Any, Any], corrected: Callable[[Any], Any], *, again: int) -> None:
        """Begin the tracing of a step that scores its rows, but for those at the end that are only given again.

        `weights` are those of the rows, and the same as the model takes them.
        """
        self._step.loss = self._step.metrics = _Scored(*weights, corrected, again)

    def close(self) -> None:
        """Begin the tracing of a step that scores nothing, or not as they came."""
        self._step.loss = self._step.metrics = None
