"""The learning of one block, and the figures about it: what a trainer does, alone or as a member of a group.

Owns the recovery's suspects, the size of calls and the counts of this process. Runs on the trainer's thread.
"""

import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.consumers.failpoints import failpoint
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import BlockFacts, CallTarget, Delivery
from millrace.training.errors import LettersMissingError
from millrace.training.ledger.ledger import Ledger
from millrace.training.model.call.culprit_search import Culprits
from millrace.training.model.learner import Learner
from millrace.training.recovery.crash_guard import InFlight
from millrace.training.recovery.isolation import Culprit, Piece
from millrace.training.recovery.step_errors import LearntBlock, StepRecovery
from millrace.training.stream import BlockStream
from millrace.training.telemetry.baseline import BaselinePlan
from millrace.training.telemetry.label_sums import Floats, Labels, LabelSums, no_labels
from millrace.training.telemetry.live_metrics import LiveMetrics, Sums
from millrace.training.telemetry.meter import CallTimes
from millrace.training.telemetry.phases import Phase
from millrace.training.telemetry.watcher import Call, target_of
from millrace.training.trainer import announcements
from millrace.training.trainer.board import ModelFacts, Posting
from millrace.training.trainer.dependencies import TrainerOptions, TrainerReports
from millrace.training.trainer.profiling import Profiling
from millrace.training.trainer.save_figures import SaveFigures


class LearntRows(NamedTuple):
    """A piece of a block, and which of its rows are learnt: those that are present, and their update finite."""

    piece: Piece
    mask: npt.NDArray[np.bool_]
    number: int

    @classmethod
    def of(cls, piece: Piece) -> "LearntRows":
        """Find them."""
        rows, culprits = piece.rows, piece.lesson.culprits.offsets
        offsets = rows.offsets.numpy()
        mask = np.asarray(offsets >= 0)
        if culprits:
            # By partition and offset: the same offset of another partition is another record.
            places = np.stack([rows.partitions.numpy(), offsets], axis=-1).astype(np.int64)
            mask &= ~np.isin(_as_one(places), _as_one(np.array(culprits, np.int64)))
        return cls(piece, mask, int(mask.sum()))

    def values(self, column: Any) -> npt.NDArray[Any]:
        """Return what a column of batches has of these rows; of all of them without a copy."""
        array: npt.NDArray[Any] = column.numpy()
        return array.reshape(-1, *array.shape[2:]) if self.number == self.mask.size else array[self.mask]


def sums_of(learnt: LearntRows, plan: BaselinePlan, batch_size: int) -> Sums:
    """Sum up the rows of one call for the live metrics. Each record is scored by the weights before its update."""
    rows, result = learnt.piece.rows, learnt.piece.lesson.result
    # A train_step that reports no loss gives NaN for every batch; then no record counts as scored by loss.
    applied = result.finite & np.isfinite(result.losses)
    # Keras divides a batch's loss by all of its rows: times the batch size it is a sum over the rows that are present.
    loss = float(result.losses[applied].sum()) * batch_size
    sums = Sums(learnt.number, loss, learnt.number if applied.any() else 0, list(result.states))
    target = target_of(rows)
    if plan.labels is not Labels.NONE and target is not None:
        labels, weights = learnt.values(target), learnt.values(rows.weights)
        sums.labels = sums.weighted_labels = LabelSums.over(plan.labels, labels, quantiles=plan.quantiles)
        if not (weights == 1.0).all():
            sums.weighted_labels = LabelSums.over(plan.labels, labels, weights, quantiles=plan.quantiles)
    return sums


def repeats_of(pieces: Sequence[LearntRows], facts: BlockFacts, live: LiveMetrics) -> Floats:
    """Sum up what guessing that nothing changes scored on a block, and keep the last labels of its partitions."""
    targets = [target_of(learnt.piece.rows) for learnt in pieces]
    if not live.plan.repeats or not pieces or any(target is None for target in targets):
        return no_labels()

    def joined(columns: Iterable[Any]) -> npt.NDArray[Any]:
        found = [learnt.values(column) for learnt, column in zip(pieces, columns, strict=True)]
        return found[0] if len(found) == 1 else np.concatenate(found)

    pairs = live.last_labels.follow(
        joined(targets),
        joined(learnt.piece.rows.weights for learnt in pieces),
        {span.index: span.partition for span in facts.spans},
        joined(learnt.piece.rows.partitions for learnt in pieces),
        joined(learnt.piece.rows.offsets for learnt in pieces),
    )
    return no_labels() if pairs is None else pairs.sums(live.plan.repeats)


def _as_one(places: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """View pairs [..., 2] as one comparable value each."""
    return np.ascontiguousarray(places).view([("partition", np.int64), ("offset", np.int64)])[..., 0]


AIM_S = 0.25
_CALLS = 5
"""The most calls whose median counts: any call may be delayed, and the first one more than others."""
_SLACK = 1.25
"""The factor by which a new size must differ, so that the size does not change back and forth."""


class CallSize:
    """The number of batches of the next calls, so that a call stays short: nothing is saved or obeyed within one.

    With a model that takes a second a step, a call of 16 batches would make a stop or a save wait for 16 seconds. So
    calls get fewer batches as steps get longer, but no fewer than needed: each call costs some milliseconds between
    itself and the next, which is 2 % for a model of 10 ms a step if calls are cut to 100 ms.

    Nothing is known of a model before its first call, and the first blocks are made before that call has returned. So
    they have one batch each: a stop during the first seconds waits for a step, not for sixteen. Every call from the
    first on is measured, so a fast model has calls of full size after a few of one batch.
    """

    def __init__(self, most: int, aim_s: float = AIM_S) -> None:
        self._most, self._aim_s = most, aim_s
        self._batch_s: deque[float] = deque(maxlen=_CALLS)
        self.target = CallTarget(1)
        """Shared with the stream: the next block that it begins has at most this many batches."""

    def called(self, batches: int, seconds: float) -> None:
        """Record the duration of a call, and change the target if the next calls should have another size."""
        # By batch, so that calls of the size before a change still count.
        self._batch_s.append(seconds / batches)
        # Of two calls the faster one counts: the first one may have warmed something up.
        batch_s = max(1e-9, statistics.median_low(self._batch_s))
        fitting = min(self._most, max(1, round(self._aim_s / batch_s)))
        if not self.target.batches / _SLACK < fitting < self.target.batches * _SLACK:
            self.target.batches = fitting


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningParts:
    """What learning a block moves."""

    learner: Learner
    ledger: Ledger
    figures: SaveFigures
    in_flight: InFlight


class Learning:
    """Learns blocks into one state."""

    def __init__(
        self,
        parts: LearningParts,
        reports: TrainerReports,
        options: TrainerOptions,
        *,
        newest: Callable[[], int],
        score: Callable[[Sums], None] | None = None,
    ) -> None:
        """`newest` returns the number of the newest durable checkpoint; `score` takes sums in place of `live`."""
        self.learner, self.ledger = parts.learner, parts.ledger
        self._figures, self._in_flight = parts.figures, parts.in_flight
        self._reports, self._options, self._clock = reports, options, options.clock
        self._score = score or reports.live.add
        self.profiling = Profiling(options.clock)
        self.sizes = CallSize(options.batches_per_call)
        self.steps = StepRecovery(
            parts.learner,
            options.step_errors,
            progress=self._show_progress,
            newest=newest,
            report_event=reports.report_event,
        )
        self.learnt = 0
        """Records learnt by this process, which count against a limit on records."""
        self.learnt_to_ms: int | None = None
        self._facts = ModelFacts(
            parameters=parts.learner.parameters, replicas=parts.learner.replicas, devices=parts.learner.devices
        )

    def learn(self, delivery: Delivery, stream: BlockStream, culprits: Sequence[Culprit] | None = None) -> None:
        """Learn one block in one call, all or nothing, and settle its records once the call has returned.

        With `culprits` the block has been searched before: it is without them, and they are set aside with it.
        """
        facts = delivery.facts
        began = stepped = self._clock()
        refused: dict[Partition, dict[Reason, int]] = {}
        pieces: Sequence[LearntRows] = ()
        searched, scored = False, list[Sums]()
        # Before the call, which counts in the rows of the witness that its partitions have.
        for span in facts.spans:  # (6)
            if self.ledger.join_if_new(span.partition, span.start):
                announcements.joined(self._reports.report_event, span.partition, span.start)
            self.learner.witness.know(span.partition, span.index)
        failpoint("call.before")
        if facts.batches:  # none where every record of the block was skipped or set aside before
            with self.profiling.call(), self._in_flight(facts):
                # Drawing takes the interpreter lock: between two calls the trainer would wait for it, some 5 of 220 ms.
                stream.draw_ahead()
                learnt = (
                    self.steps.learn(delivery)
                    if culprits is None
                    else LearntBlock([Piece(delivery.rows, self.learner.learn(delivery.rows))], culprits)
                )
            stepped = self._clock()
            self.sizes.called(facts.batches, stepped - began)
            refused, searched = self._set_aside(facts, learnt.culprits()), learnt.searched
            live, pieces = self._reports.live, [*map(LearntRows.of, learnt.pieces)]
            scored = [sums_of(each, live.plan, self.learner.batch_size) for each in pieces]
            if scored:
                # Of all pieces at once: a shuffle has dealt the records of a partition to several.
                scored[-1].repeats = repeats_of(pieces, facts, live)
            for sums in scored:
                self._score(sums)
        for partition, offset in facts.unplaced:
            self._reports.on_refused(partition, offset, Reason.CLASS_LIMIT)
            counts = refused.setdefault(partition, {})
            counts[Reason.CLASS_LIMIT] = counts.get(Reason.CLASS_LIMIT, 0) + 1
        failpoint("call.after")
        self.ledger.settle(facts, refused)  # (7)
        rows = facts.rows - sum(sum(counts.values()) for counts in refused.values())
        bypassed = delivery.prepare is not None
        self._figures.note_settled(facts, refused=facts.rows - rows, searched=searched, bypassed=bypassed)
        if watchers := self._reports.watchers:
            call = Call(
                facts=facts,
                rows=[(each.piece.rows, each.mask) for each in pieces],
                scored=scored,
                outputs=[each.piece.lesson.result.outputs for each in pieces],
                step=self._figures.step,
                records=sum(self.ledger.learnt().values()),
            )
            for watcher in watchers:
                watcher.called(call)
        failpoint("call.settled")
        self.learnt += rows  # (8)
        # A block without rows has no event times; where records were filtered, all that there was is learnt.
        settled = [span.fingerprint.timestamp_ms for span in facts.spans if span.filtered and span.fingerprint]
        self.learnt_to_ms = facts.newest_ms if facts.rows else max(settled, default=self.learnt_to_ms)
        freshness = self._options.wall() - self._options.due_after_s - facts.oldest_ms / 1000 if facts.rows else None
        settled_offsets = sum(span.end - span.start for span in facts.spans)
        meter, ended = self._reports.meter, self._clock()
        meter.called(ended - began, rows, facts.batches, freshness, settled_offsets)
        meter.last_call = CallTimes(facts=facts, began=began, stepped=stepped, ended=ended, step=self._figures.step)

    def between_calls(self) -> None:
        """Give those that watch their time."""
        for watcher in self._reports.watchers:
            watcher.between_calls(self._clock())

    def post(self) -> None:
        """Post the figures if the board wants them; computing the live values takes a moment."""
        now, figures = self._clock(), self._figures
        if self._reports.board.wants(now, figures.last):
            posting = Posting(
                live=self._reports.live.look(),
                learning_rate=self.learner.learning_rate,
                step=figures.step,
                model=self._facts,
                last_save=figures.last,
                saves=figures.saved,
                failed_saves=figures.failed,
                save_error=None if figures.last_error is None else str(figures.last_error),
                letters_missing=isinstance(figures.last_error, LettersMissingError),
                learnt_to_ms=self.learnt_to_ms,
                changes=figures.changes,
                figures=figures.reported(),
            )
            self._reports.board.post(posting, now)

    def _set_aside(self, facts: BlockFacts, by_reason: Mapping[Reason, Culprits]) -> dict[Partition, dict[Reason, int]]:
        """Report each culprit as refused; return how many there are of each partition, by reason."""
        partitions = {span.index: span.partition for span in facts.spans}
        refused: dict[Partition, dict[Reason, int]] = {}
        for reason, culprits in by_reason.items():
            for index, offset in culprits.offsets:
                self._reports.on_refused(partitions[index], offset, reason)
            for index, count in culprits.by_partition().items():
                refused.setdefault(partitions[index], {})[reason] = count
        return refused

    def _show_progress(self) -> None:
        """Enter the phase again: a search for culprits may take longer than a phase may without progress."""
        self._reports.phases.enter(Phase.TRAINING)
