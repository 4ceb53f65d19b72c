"""Relearning: the blocks that a journal has recorded, learnt once more into the state of an older checkpoint.

The same compiled call learns them, through the same code as a trainer's (`training/trainer/learning.py`), and a block
that was searched for culprits then is searched again. So the state has the same bits, or the difference is found at the
first checkpoint on the way that has others.

Owns the state. Nothing is written. Runs on the caller's thread.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace.consumers.records import Partition
from millrace.pipelines.shaping.labels.rules import NAME as LABELS
from millrace.pipelines.shaping.shaper import Shaper
from millrace.pipelines.stream.blocks import Delivery
from millrace.training.checkpoints.part_files import digests
from millrace.training.checkpoints.parts import PartState
from millrace.training.detectors.detectors import NAME as DETECTORS
from millrace.training.errors import RebuiltOtherwiseError, StepError
from millrace.training.history.journal import Segment, ledger_digest
from millrace.training.history.journal_blocks import RecordedBlock
from millrace.training.ledger.interventions import Interventions
from millrace.training.ledger.ledger import Ledger
from millrace.training.model.hyperparameters import HyperparameterOptions
from millrace.training.model.learner import Learner
from millrace.training.recovery.crash_guard import leave_no_record
from millrace.training.recovery.step_errors import BlockRaised, StepErrorOptions
from millrace.training.stream import BlockStream
from millrace.training.telemetry.calibration.calibration import NAME as CALIBRATION
from millrace.training.telemetry.live_metrics import LiveMetrics
from millrace.training.telemetry.meter import Meter
from millrace.training.telemetry.phases import Phase, Phases
from millrace.training.telemetry.watcher import Watcher
from millrace.training.trainer.arrivals.arrival_score import NAME as ARRIVALS
from millrace.training.trainer.dependencies import TrainerOptions, TrainerReports
from millrace.training.trainer.inputs.figures import NAME as INPUTS
from millrace.training.trainer.learning import Learning, LearningParts
from millrace.training.trainer.save_figures import SaveFigures
from millrace.training.trainer.served.figures import NAME as SERVED
from millrace.training.trainer.slices.figures import NAME as SLICES
from millrace.training.trainer.state import TrainerState

OF_ONE_RUN = frozenset({DETECTORS, LABELS, ARRIVALS, CALIBRATION, INPUTS, SERVED, SLICES})
"""The parts that another run of the same blocks fills otherwise: every watcher's, and what became of labels.

What detectors remember hangs on when they were named and on which of them has raised, which no journal holds. What
became of labels hangs on how far ahead they had been read, predictions on when records arrived, and those of servers on
when they were read. A calibration, slices and the inputs are counted by the run alone, as they take no part in what is
learnt.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relearnt:
    """The state at a checkpoint on the way."""

    differing: tuple[str, ...]
    """The files that have other bits than the checkpoint's; `ledger` stands for what it says of records."""
    parts: Mapping[str, PartState]
    """Copies, to be released."""


class Relearning:
    """A state that learns recorded blocks."""

    def __init__(
        self,
        learner: Learner,
        live: LiveMetrics,
        options: HyperparameterOptions,
        shapers: Sequence[Shaper] = (),
        watchers: Sequence[Watcher] = (),
    ) -> None:
        self.ledger = Ledger()
        self._learner = learner
        self._state = TrainerState(learner, self.ledger, live, options, shapers, watchers)
        figures, phases = SaveFigures(self._state), Phases()
        phases.enter(Phase.RESTORING)
        self._learning = Learning(
            LearningParts(learner=learner, ledger=self.ledger, figures=figures, in_flight=leave_no_record),
            TrainerReports(
                phases=phases,
                meter=Meter(time.monotonic),
                live=live,
                on_refused=lambda *_refused: None,  # what was set aside then has its dead letter
                watchers=watchers,
            ),
            TrainerOptions(clock=time.monotonic, wall=time.time, step_errors=StepErrorOptions(exact=True)),
            newest=lambda: 0,
        )

    @property
    def incarnation(self) -> int:
        """The incarnation of the blocks that it learns."""
        return self.ledger.incarnation

    def begin(self, number: int, parts: Mapping[str, PartState]) -> None:
        self._state.restore(self._state.fitting(number, parts))
        self._open()

    def begin_anew(self, positions: Mapping[Partition, int]) -> None:
        """Begin with the weights that the model was built with, at these offsets."""
        for partition, offset in positions.items():
            self.ledger.join(partition, offset)
        self._open()

    def follow(self, segment: Segment) -> None:
        """Take over the interventions of a segment that is a rewind or a skip."""
        if segment.orders is not None:
            self.ledger.follow(Interventions.of_facts(segment.orders))

    def learn(self, delivery: Delivery, recorded: RecordedBlock, name: str, stream: BlockStream) -> None:
        """Learn one block as it was learnt then; RebuiltOtherwiseError where that comes out otherwise."""
        before = self._learning.learnt
        if recorded.searched and not recorded.bypassed:
            self._learning.steps.search(delivery.facts.spans)
        try:
            self._learning.learn(delivery, stream)
        except (BlockRaised, StepError) as error:
            raise RebuiltOtherwiseError(f"{name} raises now, and did not then: {error}") from error
        refused = delivery.facts.rows - (self._learning.learnt - before)
        if refused != recorded.refused:
            raise RebuiltOtherwiseError(
                f"of {name} {refused} rows are set aside by the call now, and {recorded.refused} were then"
            )

    def compared(self, segment: Segment) -> Relearnt:
        """Compare the state with the checkpoint that a segment has recorded, by the hashes of its files."""
        parts = self._state.snapshot()
        found = {**digests(parts), "ledger": ledger_digest(parts[self.ledger.name].facts)}
        # The rows of the partitions of which any offset was seen.
        witness = PartState(
            facts={name: row for name, row in parts[self._learner.witness.name].facts.items() if any(row)}
        )
        # Before its first incarnation a run's witness names no partition; afterwards also those that it has not seen.
        found |= {
            name: sha
            for name, sha in digests({self._learner.witness.name: witness}).items()
            if sha == segment.files.get(name)
        }
        files = {name: sha for name, sha in segment.files.items() if name.partition(".")[0] not in OF_ONE_RUN}
        expected = {**files, "ledger": segment.ledger_sha256}
        # A part that only this version has was no part of the state then.
        return Relearnt(differing=tuple(n for n in sorted(expected) if found.get(n) != expected[n]), parts=parts)

    def _open(self) -> None:
        self.ledger.begin_incarnation()
        self._learner.witness.lay(self.ledger.positions())
