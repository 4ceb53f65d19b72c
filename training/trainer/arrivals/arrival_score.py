"""The score on arrival: records are predicted when they come, and scored when they are learnt with their labels.

With labels that come later the live metrics score a record when it is learnt. Until then the model has learnt others
that came after it, which the model that answered for it could not know. So a sample of the records is predicted when it
arrives, with the weights of that moment; what was predicted is kept until the record is learnt, and then scored by the
same metrics. Nothing that is learnt depends on it: what a prediction moves of the model is put back.

Owns the part `arrivals`: the predictions that wait, and the sums of what is scored. Runs on the trainer's thread,
between two calls.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from millrace.consumers.errors import MillraceError
from millrace.consumers.records import Partition
from millrace.pipelines.shaping.labels.arrivals import ArrivalReader, in_sample, salt_of
from millrace.pipelines.stream.blocks import Rows
from millrace.pipelines.stream.decode import Decoded
from millrace.training.checkpoints.parts import PartState
from millrace.training.errors import ModelError, gist, op_gist
from millrace.training.model.call.evaluation import Evaluation
from millrace.training.model.learner import Learner
from millrace.training.model.probes import Probe
from millrace.training.model.variables import unmoved
from millrace.training.telemetry.baseline import BaselinePlan
from millrace.training.telemetry.label_sums import Labels
from millrace.training.telemetry.live_metrics import LiveMetrics, Sums
from millrace.training.telemetry.tallies import BINNED, SURE, Tallies, Values, odds_bins, probabilities_of
from millrace.training.telemetry.watcher import Call, Watcher
from millrace.training.trainer.arrivals.figures import ArrivalFigures
from millrace.training.trainer.arrivals.predictions import Predicted, Predictions

log = logging.getLogger(__name__)
NAME = "arrivals"
SETTING = "labels.score_on_arrival"
_EXPECTED_BINS = 10
FEWEST_EXPECTED = 100
"""Answers with labels, by which scores are expected at all."""
_MOST_ROWS = 256
"""The most rows of one prediction; there are few, so more would only be absent."""
_MOST_EXPECTED = 1 << 14
"""Predictions that wait of which it is estimated what they will have scored: half a millisecond a second."""
_EVERY_S = 0.25
"""A prediction takes a millisecond or more, whatever its rows: so rows wait for others for this long."""


def _nothing() -> None:
    """Return that nothing is known."""


class ArrivalScore(Watcher):
    """The score on arrival of one model."""

    name = NAME

    def __init__(
        self, learner: Learner, live: LiveMetrics, reader: ArrivalReader, known: Callable[[], Tallies | None] = _nothing
    ) -> None:
        """`live` is empty, and only for this; `known` gives what is known of answers of late that have their labels.

        Trace what is needed; ModelError if the model cannot be used so.
        """
        self._learner, self._live, self._reader, self._known = learner, live, reader, known
        replicas = len(learner.strategy.extended.worker_devices)
        self._size = min(learner.options.batch_size, max(1, _MOST_ROWS // replicas) * replicas)
        self._evaluation = Evaluation(learner.call, self._size)
        self._due = 0.0
        self._settled = dict[Partition, int]()
        """Up to where each partition is settled: a prediction of a record before would come too late."""
        self._missed = 0
        self._failed = False
        probe = learner.probe().arranged(np.arange(self._size))
        try:
            rows = learner.rows_of(probe, np.ones(self._size, np.bool_))
            with unmoved(learner.model):
                outputs = self._evaluation.predict(rows)
                self._evaluation([rows], outputs)
        except (tf.errors.OpError, TypeError, ValueError) as error:
            raise ModelError(
                f"{SETTING}: the model cannot be asked for predictions by themselves: {gist(error)}"
            ) from error
        if any(len(output) != self._size for output in outputs):
            raise ModelError(f"{SETTING}: the model does not answer each row by itself; write {SETTING}: 0")
        self._predictions = Predictions([output.shape[1:] for output in outputs])

    def begin(self) -> None:
        """Follow what arrives, now that the model is the one that answers."""
        self._reader.start()

    def between_calls(self, now: float) -> None:
        """Predict the records that have arrived."""
        if now < self._due:
            return
        self._due = now + _EVERY_S
        arrived = [one for one in self._reader.take() if one.end > self._settled.get(one.partition, 0)]
        if not arrived:
            return
        columns = [(one.features, one.labels) for one in arrived]
        features, labels = (
            {name: np.concatenate([each[at][name] for each in columns]) for name in columns[0][at]} for at in (0, 1)
        )
        probe, outputs = Probe(features=features, labels=labels), list[list[npt.NDArray[np.float32]]]()
        count = sum(map(len, arrived))
        with self._unless_it_raises():
            with unmoved(self._learner.model):
                for first in range(0, count, self._size):
                    places = np.arange(first, first + self._size)
                    rows = self._learner.rows_of(probe.arranged(np.minimum(places, count - 1)), places < count)
                    outputs.append(self._evaluation.predict(rows))
            self._keep(arrived, [np.concatenate(each)[:count] for each in zip(*outputs, strict=True)])

    def called(self, call: Call) -> None:
        """Score the records that are learnt, and of which there are predictions."""
        facts = call.facts
        taken = {span.index: self._predictions.take(span.partition, span.end) for span in facts.spans}
        self._settled |= {span.partition: span.end for span in facts.spans}
        salts = np.zeros(1 + max((span.index for span in facts.spans), default=0), np.int64)
        for span in facts.spans:
            salts[span.index] = salt_of(span.partition)
        for rows, which in call.rows:
            partitions, offsets = rows.partitions.numpy().ravel(), rows.offsets.numpy().ravel()
            sample = np.flatnonzero(which.ravel())
            sample = sample[in_sample(salts[partitions[sample]], offsets[sample], self._reader.share)]
            known = list[tuple[npt.NDArray[np.int64], Predicted]]()
            for index, predicted in taken.items():
                mine = sample[partitions[sample] == index]
                if predicted is not None and len(mine):
                    at = np.minimum(predicted.offsets.searchsorted(offsets[mine]), len(predicted.offsets) - 1)
                    found = predicted.offsets[at] == offsets[mine]
                    known.append((mine[found], predicted.at(at[found])))
            places = np.concatenate([np.empty(0, np.int64), *(mine for mine, _ in known)])
            self._missed += len(sample) - len(places)
            if len(places):
                outputs = [*map(np.concatenate, zip(*(predicted.outputs for _, predicted in known), strict=True))]
                with self._unless_it_raises():
                    self._score(rows, places, outputs)

    def figures(self) -> ArrivalFigures:
        """Return how well records were predicted when they came."""
        live, metrics = self._live.look(), self._learner.call.metrics
        # What the model's own step counts is not counted by its outputs alone.
        own = {name for name, at in metrics.shown().items() if at.metric not in metrics.compiled}
        return ArrivalFigures(
            share=self._reader.share,
            values={name: value for name, value in live.values.items() if name not in own},
            records=live.records,
            scored=live.cumulative_records,
            missed=self._missed,
            expected=self._expected(),
            waiting=len(self._predictions),
        )

    def _expected(self) -> Mapping[str, float]:
        """Return what the predictions that wait will have scored."""
        waiting, known = self._predictions.newest(_MOST_EXPECTED), self._known()
        if waiting is None or known is None:
            return {}
        return expected_scores(waiting, known, self._live.plan)

    def snapshot(self) -> PartState:
        """Copy the predictions that wait, and the sums."""
        live = self._live.snapshot()
        sums = {f"{_SUMS}{name}": array for name, array in live.arrays.items()}
        return PartState(
            arrays={**self._predictions.arrays(), **sums}, facts={"missed": self._missed, "sums": live.facts}
        )

    def restore(self, state: PartState) -> None:
        """Take back what was copied. What was predicted since stays predicted: it is what was answered then."""
        self._settled = {}
        if state.facts:
            sums = {name.removeprefix(_SUMS): one for name, one in state.arrays.items() if name.startswith(_SUMS)}
            self._live.restore(PartState(arrays=sums, facts=state.facts["sums"]))
            self._missed = int(state.facts["missed"])
            self._predictions.load({name: one for name, one in state.arrays.items() if not name.startswith(_SUMS)})

    def forget(self, partition: Partition) -> None:
        """Forget a partition whose topic was created again."""
        self._settled.pop(partition, None)
        self._predictions.forget(partition)

    def _keep(self, arrived: Sequence[Decoded], outputs: Sequence[npt.NDArray[np.float32]]) -> None:
        first = 0
        for one in arrived:
            mine = slice(first, first + len(one))
            first += len(one)
            predicted = Predicted(one.offsets, [output[mine] for output in outputs])
            fresh = one.offsets >= self._settled.get(one.partition, 0)
            self._predictions.keep(one.partition, predicted.at(fresh))

    def _score(self, rows: Rows, places: npt.NDArray[np.int64], outputs: Sequence[npt.NDArray[np.float32]]) -> None:
        for first in range(0, len(places), self._size):
            at = np.arange(first, first + self._size)
            here, at = tf.constant(at < len(places)), np.minimum(at, len(places) - 1)
            with tf.device("CPU:0"):
                batch = tf.nest.map_structure(lambda column: _row_wise(column, places[at]), rows)  # noqa: B023 - used at once
                batch = batch._replace(
                    weights=tf.where(here, batch.weights, 0.0), offsets=tf.where(here, batch.offsets, -1)
                )
            totals = self._evaluation([batch], [output[at] for output in outputs])
            scored = totals.rows if self._evaluation.has_loss and np.isfinite(totals.loss) else 0
            self._live.add(Sums(totals.rows, totals.loss if scored else 0.0, scored, totals.states))

    @contextmanager
    def _unless_it_raises(self) -> Iterator[None]:
        """Go on without what the user's code raises on: what only watches must not end the training."""
        try:
            yield
        except (tf.errors.OpError, MillraceError) as error:
            if not self._failed:
                why = op_gist(error) if isinstance(error, tf.errors.OpError) else str(error)
                log.error("%s: the model raised on some records, which have no score: %s", SETTING, why)  # noqa: TRY400 - one line
            self._failed = True


_SUMS = "sums/"


def _row_wise(column: Any, places: npt.NDArray[np.int64]) -> Any:
    """Return some rows of a block's column, as a batch."""
    flat = tf.reshape(column, tf.concat([[-1], tf.shape(column)[2:]], 0))
    return tf.ensure_shape(tf.gather(flat, places), [len(places), *column.shape[2:]])[tf.newaxis]


def expected_scores(answers: Values, known: Tallies, plan: BaselinePlan) -> Mapping[str, float]:
    """Return the expected scores of answers [row, column], by the tallies of others with labels; none if too few."""
    if plan.labels not in {Labels.BINARY, Labels.CLASSES, Labels.ONE_HOT} or BINNED not in known:
        return {}
    missed, came = known[BINNED].reshape(2, -1)
    counts = missed + came
    answers = answers[np.isfinite(answers).all(axis=1)]
    if counts.sum() < FEWEST_EXPECTED or not len(answers):
        return {}
    answers = probabilities_of(answers, plan) if plan.logits else answers
    p = (answers.ravel() if plan.labels is Labels.BINARY else answers.max(axis=1)).astype(np.float32)
    p = np.clip(p, SURE, 1 - SURE)
    # Bins of about as many answers each: the share that came true in each, by the bin of the odds.
    reached = np.cumsum(counts) - counts / 2
    group = np.minimum(reached / counts.sum() * _EXPECTED_BINS, _EXPECTED_BINS - 1).astype(np.int64)
    in_group = np.bincount(group, counts, _EXPECTED_BINS)
    true = (np.bincount(group, came, _EXPECTED_BINS) / np.maximum(in_group, 1))[group[odds_bins(p)]]
    if plan.labels is not Labels.BINARY:
        return {"accuracy": float(true.mean())}
    p = p.astype(np.float64)
    return {
        "accuracy": float(np.where(p > 0.5, true, 1 - true).mean()),
        "log_loss": float(-(true * np.log(p) + (1 - true) * np.log(1 - p)).mean()),
    }
