"""Scores blocks without learning them: the loss and the metrics of the model as it will be used.

Batches go through the graph as in a call: a loop over the batches of a block, `strategy.run` inside it, each replica
with its own rows, so a record weighs the same here as there. Owns the traced functions; runs on the trainer's thread.
Between the calls of an evaluation nothing may be learnt, as the metrics' states are the model's own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from millrace.pipelines.stream.blocks import Rows
from millrace.training.model.call.compiled_call import TrainingCall
from millrace.training.model.setup.keras_internals import as_is, has_loss


@dataclass(slots=True)
class ScoreTotals:
    """Sums over blocks, in float64."""

    rows: int = 0
    loss: float = 0.0
    """Of the rows; NaN where one is not finite."""
    states: list[npt.NDArray[np.float64]] = field(default_factory=list)

    def add(self, rows: int, loss: float, states: Iterable[npt.NDArray[np.float64]]) -> None:
        """Take in a block."""
        self.rows += rows
        self.loss += loss
        self.states = [*map(np.add, self.states, states)] if self.states else [*states]

    @property
    def mean_loss(self) -> float:
        """The loss a row; NaN without rows."""
        return self.loss / self.rows if self.rows else float("nan")


class Evaluation:
    """Scores blocks on one model. Build it on a built model."""

    def __init__(self, call: TrainingCall, batch_size: int) -> None:
        """`batch_size` is that of all replicas."""
        self._call, self._batch_size = call, batch_size
        self.has_loss = has_loss(call.model)
        self._function = tf.function(self._evaluate, reduce_retracing=True, autograph=False)
        self._predicting = tf.function(self._predict, autograph=False)
        self._outputs: Any = None
        """The structure of what the model answers; known once a prediction is traced."""

    def __call__(
        self, blocks: Iterable[Rows], predicted: Sequence[npt.NDArray[np.float32]] | None = None
    ) -> ScoreTotals:
        """Return the totals of the blocks; of what was `predicted` before for the rows of each, if that is given."""
        totals = ScoreTotals()
        given = [] if predicted is None else [tf.constant(output) for output in predicted]
        for rows in blocks:
            with self._call.strategy.scope():
                losses, states = self._function(*rows, given)
            # A row pulls with 1/B, so a batch's loss is that of its rows over B.
            loss = float(np.sum(losses.numpy(), dtype=np.float64)) * self._batch_size
            present = int(np.count_nonzero(rows.offsets.numpy() >= 0))
            totals.add(present, loss, [np.array(state.numpy(), np.float64) for state in states])
        return totals

    def predict(self, rows: Rows) -> list[npt.NDArray[np.float32]]:
        """Return what the model in use predicts for the rows of a block of one batch: an array for each output."""
        with self._call.strategy.scope():
            return [output.numpy() for output in self._predicting(*rows)]

    def _predict(self, features: Any, labels: Any, weights: Any, offsets: Any, partitions: Any) -> Any:
        del partitions
        strategy = self._call.strategy
        features = self._call.options.scale.as_it_stands(features)
        batch = tf.nest.map_structure(lambda column: column[0], (features, labels, weights, offsets))
        outputs = strategy.run(self._output, args=batch)
        return [tf.concat(strategy.experimental_local_results(output), 0) for output in outputs]

    @as_is
    def _output(self, features: Any, labels: Any, weights: Any, offsets: Any) -> Any:
        y_pred = self._answer(self._call.open_step(features, labels, weights, offsets)[0])
        self._outputs = tf.nest.map_structure(lambda _: 0, y_pred)
        return [tf.cast(output, tf.float32) for output in tf.nest.flatten(y_pred)]

    def _answer(self, x: Any) -> Any:
        """Return what the model in use answers."""
        y_pred = self._call.model(x, training=False)
        balance = self._call.shaping.balance
        return y_pred if balance is None else balance.corrected(y_pred, balance.weights())

    def _evaluate(
        self, features: Any, labels: Any, weights: Any, offsets: Any, partitions: Any, predicted: Sequence[Any]
    ) -> Any:
        del partitions
        call = self._call
        call.metrics.reset()
        features = call.options.scale.as_it_stands(features)

        def score(index: Any, losses: Any) -> Any:
            batch = tf.nest.map_structure(lambda column: column[index], (features, labels, weights, offsets))
            shares = call.strategy.run(self._step, args=(*batch, predicted))
            return index + 1, losses.write(index, call.strategy.reduce(tf.distribute.ReduceOp.SUM, shares, axis=None))

        batches = tf.shape(weights)[0]
        state = (tf.constant(0), tf.TensorArray(tf.float32, size=batches))
        _, losses = tf.while_loop(lambda index, *_: index < batches, score, state)
        sums = call.strategy.run(call.metrics.read)
        return losses.stack(), [call.strategy.experimental_local_results(each)[0] for each in sums]

    @as_is
    def _step(self, features: Any, labels: Any, weights: Any, offsets: Any, predicted: Sequence[Any]) -> Any:
        model = self._call.model
        x, y, w = self._call.open_step(features, labels, weights, offsets)
        mine = self._call.own_rows(weights.shape[0])
        y_pred = (
            tf.nest.pack_sequence_as(self._outputs, [output[mine] for output in predicted])
            if predicted
            else self._answer(x)
        )
        loss = tf.constant(0.0)
        if self.has_loss:
            loss = tf.cast(model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=w, training=False), tf.float32)
        model.compute_metrics(x, y, y_pred, sample_weight=w)
        return loss
