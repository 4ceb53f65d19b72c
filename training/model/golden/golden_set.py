"""Scores the golden set with the weights of each checkpoint, between the copy of the state and the next call.

Owns the set as one block of batches, prepared as live rows are, and one compiled function, traced at the start. What
scoring changes of the model, as the seeds of layers that always draw, is put back, so that what is learnt is the same
with a golden set and without. Runs on the trainer's thread; `durable` is for the checkpoint writer's, and `figures` for
any.
"""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from millrace.pipelines.schema import Column
from millrace.pipelines.stream.blocks import Rows
from millrace.pipelines.stream.dataset import block_spec, preparation
from millrace.training.checkpoints.manifest import GoldenScores, Manifest
from millrace.training.errors import ModelError, gist, op_gist
from millrace.training.model.call.evaluation import Evaluation
from millrace.training.model.golden.figures import GoldenFigures
from millrace.training.model.golden.golden_records import GoldenRecords
from millrace.training.model.learner import Learner
from millrace.training.model.variables import unmoved

log = logging.getLogger(__name__)


class GoldenSet:
    """The golden set of one model."""

    def __init__(self, learner: Learner, records: GoldenRecords) -> None:
        """Score the set once, so that all is traced; ModelError where the model cannot."""
        self._learner, self.records = learner, records
        self._evaluation = Evaluation(learner.call, learner.batch_size)
        self._figures = GoldenFigures(rows=records.rows, sha256=records.sha256)
        try:
            self._block = _block_of(learner, records)
            self._scored()
        except tf.errors.OpError as error:
            raise ModelError(f"golden.path: {records.path}: the model raised {op_gist(error)} on its rows") from error

    def epoch(self, number: int) -> Iterator[Rows]:
        """Yield the block, in each epoch of a pretraining that validates on it."""
        del number
        yield self._block

    def scores(self) -> GoldenScores | None:
        """Score the set with the present weights; None where the model or a metric raises, which is logged."""
        began = time.monotonic()
        try:
            values = self._scored()
        except Exception as error:  # noqa: BLE001 - a metric's own code may raise anything
            why = op_gist(error) if isinstance(error, tf.errors.OpError) else gist(error)
            log.error("the golden set is not scored: the model raised %s", why)  # noqa: TRY400 - one line
            self._figures = replace(self._figures, error=why)
            return None
        self._figures = replace(self._figures, took_s=time.monotonic() - began, error=None)
        return GoldenScores(rows=self.records.rows, sha256=self.records.sha256, values=values)

    def durable(self, manifest: Manifest) -> None:
        """Show the scores of the newest durable checkpoint; none if they are of another set."""
        found = manifest.golden
        if found is None or found.sha256 != self.records.sha256:
            self._figures = replace(self._figures, checkpoint=None, values=None)
        else:
            self._figures = replace(self._figures, checkpoint=manifest.number, values=found.values)

    def figures(self) -> GoldenFigures:
        """Return what was scored last."""
        return self._figures

    def _scored(self) -> dict[str, float]:
        with unmoved(self._learner.model):
            totals = self._evaluation([self._block])
        metrics = self._learner.call.metrics
        shown, loss = metrics.shown(), {"loss": totals.mean_loss} if self._evaluation.has_loss else {}
        # What the model's own step counts is not counted by its outputs alone.
        found = metrics.results(totals.states).items()
        return {**loss, **{name: value for name, value in found if shown[name].metric in metrics.compiled}}


def scoring(golden: GoldenSet | None) -> Callable[[], GoldenScores | None]:
    """Return what scores the set; without one it scores nothing."""
    return (lambda: None) if golden is None else golden.scores


def scored_names(learner: Learner) -> list[str]:
    """Return the names of what a golden set is scored by."""
    metrics = learner.call.metrics
    return ["loss", *(name for name in metrics.metrics if name in metrics.compiled)]


def _block_of(learner: Learner, records: GoldenRecords) -> Rows:
    """Return the records as whole batches; the last is filled up with copies of the first ones, as absent rows."""
    size, count = learner.options.batch_size, records.rows
    batches = -(-count // size)
    places = np.arange(batches * size)

    def batched(column: Column) -> Any:
        return tf.constant(column[places % count].reshape(batches, size, *column.shape[1:]))

    with tf.device("CPU:0"):
        rows = Rows(
            features={name: batched(column) for name, column in records.features.items()},
            labels={name: batched(column) for name, column in records.labels.items()},
            weights=tf.constant(np.where(places < count, records.weights[places % count], 0).reshape(batches, size)),
            offsets=tf.constant(np.where(places < count, places, -1).reshape(batches, size)),
            partitions=tf.zeros([batches, size], tf.int32),
        )
        prepare = preparation(learner.preprocess, block_spec(learner.options.schema, size).rows, size)
        return prepare(rows)
