"""What the trainer works with, by role: the parts that it drives, what it reports to, and its options."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.training.commands import Commands
from millrace.training.ledger.ledger import Ledger
from millrace.training.model.learner import Learner
from millrace.training.recovery.crash_guard import InFlight, leave_no_record
from millrace.training.recovery.step_errors import StepErrorOptions
from millrace.training.stream import Hold, NoHold, StreamSource
from millrace.training.telemetry.events import ReportEvent, ignore_event
from millrace.training.telemetry.live_metrics import LiveMetrics
from millrace.training.telemetry.meter import Meter
from millrace.training.telemetry.phases import Phases
from millrace.training.telemetry.watcher import Watcher
from millrace.training.trainer.board import Board
from millrace.training.trainer.saving import Saving


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerParts:
    """The parts that the trainer drives, all on its own thread."""

    learner: Learner
    ledger: Ledger
    saving: Saving
    streams: StreamSource
    commands: Commands
    """The queue of commands that the trainer obeys between calls."""
    in_flight: InFlight = leave_no_record
    """Surrounds each call, so that the death of the process in a call can be traced to its block."""
    release_guard: Callable[[], None] = lambda: None
    """Called when a person pauses or resumes: the crash-loop guard then no longer holds the trainer."""
    blocked: Callable[[], bool] = lambda: False
    """Whether too many dead letters of refused records wait: until they are sent, no block is learnt."""
    hold: Hold = field(default_factory=NoHold)
    """What may hold the learning without a command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerReports:
    """What the trainer reports to; other threads read from these."""

    phases: Phases
    meter: Meter
    live: LiveMetrics
    on_refused: Callable[[Partition, int, Reason], None]
    """Called for each record that decodes and still cannot be learnt; never waits."""
    watchers: Sequence[Watcher] = ()
    board: Board = field(default_factory=Board)
    report_event: ReportEvent = ignore_event


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerOptions:
    """How the trainer works."""

    clock: Callable[[], float]
    """Monotonic seconds."""
    wall: Callable[[], float]
    """Seconds since 1970."""
    due_after_s: float = 0.0
    """How long after its event time a record is due; only from then on it grows stale."""
    paused: str | None = None
    """Why the trainer starts paused; None to start learning."""
    batches_per_call: int = 16
    """The most batches of a call."""
    step_errors: StepErrorOptions = field(default_factory=StepErrorOptions)
