"""The learning of one block, and the figures about it: what a trainer does, alone or as a member of a group.

Owns the recovery's suspects, the size of calls and the counts of this process. Runs on the trainer's thread.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from millrace.consumers.failpoints import failpoint
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import BlockFacts, Delivery
from millrace.training.ledger.ledger import Ledger
from millrace.training.model.call.culprit_search import Culprits
from millrace.training.model.learner import Learner
from millrace.training.recovery.crash_guard import InFlight
from millrace.training.recovery.isolation import Culprit, Piece
from millrace.training.recovery.step_errors import LearntBlock, StepRecovery
from millrace.training.stream import BlockStream
from millrace.training.telemetry.live_metrics import Sums
from millrace.training.telemetry.phases import Phase
from millrace.training.trainer import announcements
from millrace.training.trainer.board import ModelFacts, Posting
from millrace.training.trainer.call_size import CallSize
from millrace.training.trainer.dependencies import TrainerOptions, TrainerReports
from millrace.training.trainer.profiling import Profiling
from millrace.training.trainer.save_figures import SaveFigures
from millrace.training.trainer.scoring import sums_of


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
        self._learner, self._ledger = parts.learner, parts.ledger
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
        began = self._clock()
        refused: dict[Partition, dict[Reason, int]] = {}
        searched, scored = False, list[Sums]()
        # Before the call, which counts in the rows of the witness that its partitions have.
        for span in facts.spans:  # (6)
            if self._ledger.join_if_new(span.partition, span.start):
                announcements.joined(self._reports.report_event, span.partition, span.start)
            self._learner.witness.know(span.partition, span.index)
        failpoint("call.before")
        if facts.batches:  # none where every record of the block was skipped or set aside before
            with self.profiling.call(), self._in_flight(facts):
                # Drawing takes the interpreter lock: between two calls the trainer would wait for it, some 5 of 220 ms.
                stream.draw_ahead()
                learnt = self.steps.learn(delivery) if culprits is None else self._learn_rest(delivery, culprits)
            self.sizes.called(facts.batches, self._clock() - began)
            refused, searched = self._set_aside(facts, learnt.culprits()), learnt.searched
            for piece in learnt.pieces:
                scored.append(sums_of(piece, self._reports.live.plan, self._learner.batch_size))
                self._score(scored[-1])
        failpoint("call.after")
        self._ledger.settle(facts, refused)  # (7)
        rows = facts.rows - sum(sum(counts.values()) for counts in refused.values())
        bypassed = delivery.prepare is not None
        self._figures.note_settled(facts, refused=facts.rows - rows, searched=searched, bypassed=bypassed)
        if scored and (detectors := self._reports.detectors) is not None:
            # Before any save, so that their state is that of the same call.
            detectors.called(scored, facts, self._figures.step, sum(self._ledger.learnt().values()))
        failpoint("call.settled")
        self.learnt += rows  # (8)
        # A block without rows has no event times.
        self.learnt_to_ms = facts.newest_ms if facts.rows else self.learnt_to_ms
        freshness = self._options.wall() - facts.oldest_ms / 1000 if facts.rows else None
        self._reports.meter.called(self._clock() - began, rows, facts.batches, freshness)

    def _learn_rest(self, delivery: Delivery, culprits: Sequence[Culprit]) -> LearntBlock:
        return LearntBlock([Piece(delivery.rows, self._learner.learn(delivery.rows))], culprits)

    def post(self) -> None:
        """Post the figures if the board wants them; computing the live values takes a moment."""
        now, figures = self._clock(), self._figures
        if self._reports.board.wants(now, figures.last):
            posting = Posting(
                live=self._reports.live.look(),
                learning_rate=self._learner.learning_rate,
                step=figures.step,
                model=self._facts,
                last_save=figures.last,
                saves=figures.saved,
                failed_saves=figures.failed,
                save_error=figures.last_error,
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
