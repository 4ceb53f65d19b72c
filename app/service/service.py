"""The service: everything wired, started in order, run, stopped in order. The one place that knows all the stages.

Owns the trainer's thread and, through its parts, every other; the main thread keeps the HTTP side and the signals.
Starting happens on the trainer's thread, so that the HTTP side answers from the beginning. It ends when the trainer
has: by reaching what it was told to learn, by `stop`, or by an error, which is kept for the exit code.

Start: (1) the folder's lock, (2) Kafka, (3) the model and its proof, (4) the newest checkpoint or number 0,
(5) dead letters, (6) learn. Stop: (1) stop taking, (2) finish the call, (3) last checkpoint, (4) commit, (5) close.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from app.service.kafka_stream import StreamFactory, StreamOptions
from app.service.lifecycle_events import tell_ended, tell_started
from app.service.model_setup import build_learner, prove
from app.service.phase_limits import phase_limits
from app.service.process_tuning import tune
from app.service.provenance import provenance_of
from app.service.recorded_settings import hyperparameter_options
from app.service.retention import keep_policy
from app.settings import Loaded, Settings
from app.settings.connection import kafka_options
from consumers.dead_letters.letter import CountedOnly, DeadLetter, DeadLetters
from consumers.dead_letters.producer import DeadLetterOptions, KafkaDeadLetters
from consumers.errors import MillraceError
from consumers.failpoints import failpoint
from consumers.kafka.positions import Until
from consumers.kafka.source import KafkaSource
from consumers.reasons import Reason
from consumers.records import Partition
from training.checkpoints.folder import Folder
from training.checkpoints.lease import FolderLease
from training.checkpoints.manifest import Manifest, SaveRequest
from training.checkpoints.policies import EverySeconds, EverySteps, SavePolicy
from training.checkpoints.store import CheckpointStore, StoreOptions
from training.checkpoints.writer import CheckpointWriter
from training.commands import Commands, Stop
from training.errors import CheckpointError, PassedError
from training.ledger.ledger import Ledger
from training.model.cores import usable_cores
from training.model.learner import Learner
from training.recovery.crash_guard import CrashGuard
from training.recovery.step_errors import OnStepError, StepErrorOptions
from training.telemetry.baseline import Baseline
from training.telemetry.events import EventKind, Events, Severity
from training.telemetry.live_metrics import LiveMetrics
from training.telemetry.meter import Meter
from training.telemetry.phases import Phase, Phases
from training.trainer.board import Board
from training.trainer.dependencies import TrainerOptions, TrainerParts, TrainerReports
from training.trainer.saving import Saving, SavingOptions
from training.trainer.trainer import Trainer

log = logging.getLogger(__name__)
_CONNECT_S = 15.0
_ACKNOWLEDGE_S = 30.0
_COMMIT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the command line adds to the settings."""

    until: Until | None = None
    max_records: int | None = None
    paused: bool = False
    start_over: bool = False
    """Begin anew, though there are checkpoints: they stay, and are not gone on from."""
    commits: bool = True
    """Whether what is durable is committed to Kafka; a trial leaves the group's offsets alone."""


@dataclass(slots=True)
class Parts:
    """What the service is made of; filled in while it starts."""

    writer: FolderLease | None = None
    source: KafkaSource | None = None
    learner: Learner | None = None
    dead_letters: DeadLetters = field(default_factory=CountedOnly)
    brake: CrashGuard = field(default_factory=CrashGuard)
    store: CheckpointStore | None = None
    saving: Saving | None = None
    live: LiveMetrics | None = None
    streams: StreamFactory | None = None
    trainer: Trainer | None = None


class _Stopped(Exception):  # noqa: N818 - not an error: a stop was asked for while starting
    """Ends the start."""


class Service:
    """One model, learning."""

    def __init__(self, loaded: Loaded, options: RunOptions, on_end: Callable[[], None] = lambda: None) -> None:
        self.settings: Settings = loaded.settings
        self.options = options
        self.phases = Phases(phase_limits(self.settings))
        self.meter = Meter(time.monotonic)
        self.ledger = Ledger()
        self.board = Board()
        self.events = Events()
        self.commands = Commands()
        self.parts = Parts()
        self.began_at = time.time()
        self.error: BaseException | None = None
        self._loaded = loaded
        self._on_end = on_end
        self._stop_asked = threading.Event()
        self._stop_asked_at: float | None = None
        self._commit: Future[bool] | None = None
        self._thread = threading.Thread(target=self._run, name="trainer", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the trainer's thread runs."""
        return self._thread.is_alive()

    @property
    def nothing_to_save(self) -> bool:
        """Whether it has not come so far as to restore its state, let alone learn: an end then loses nothing."""
        return self.parts.saving is None

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Ask for the ordered end, if it has not come; returns at once. Safe in a signal handler's wake."""
        ended = self._thread.ident is not None and not self._thread.is_alive()
        if not (ended or self._stop_asked.is_set()):
            self._stop_asked_at = time.monotonic()
            self._stop_asked.set()
            log.info("stopping: finishing the call, then the last checkpoint")
            self.events.tell(EventKind.STOPPING, "Asked to stop: finishing the call, then the last checkpoint.")
            self.commands.send(Stop())

    def grace_left_s(self) -> float:
        """How much of the grace is left since the stop was asked for."""
        asked = time.monotonic() if self._stop_asked_at is None else self._stop_asked_at
        return max(0.0, asked + self.settings.stop.grace - time.monotonic())

    def join(self, timeout_s: float) -> bool:
        """Wait for the end. Whether it has come."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        """The trainer's thread, from the first step of the start to the last of the stop."""
        try:
            trainer = self._prepare()
            tune()
            trainer.run()
            self.error = trainer.error
        except _Stopped:
            self.phases.enter(Phase.STOPPING)
            self.phases.enter(Phase.ENDED)
        except BaseException as error:
            self.error = error
            self.phases.enter(Phase.FAILED, str(error))
            if not isinstance(error, MillraceError):
                log.exception("the service failed")
        finally:
            self.commands.refuse_all(MillraceError("the service has ended; start it again"))
            self._close()
            tell_ended(self.events.tell, self.error)
            self._on_end()

    def _prepare(self) -> Trainer:
        """Everything before the first record."""
        self._take_folder()
        self._go_on()
        self._connect()
        self._go_on()
        self._build()
        self._go_on()
        return self._assemble()

    def _go_on(self) -> None:
        if self._stop_asked.is_set():
            raise _Stopped

    def _take_folder(self) -> None:
        folder = Folder(self.settings.checkpoints.path / self.settings.name)
        self.parts.writer = FolderLease.acquire(folder, f"millrace run {self.settings.name}", on_passed=self._passed)

    def _passed(self, error: PassedError) -> None:
        """Another trainer took over: nothing that we do counts any more, so there is nothing to end in order."""
        log.critical("%s", error)
        os._exit(error.exit_code)

    def _connect(self) -> None:
        options = kafka_options(self.settings.kafka)
        if self.settings.training.deterministic:
            options = replace(options, freeze_partitions=True)
        source = KafkaSource(options)
        source.start(_CONNECT_S)
        self.parts.source = source
        if (topic := self.settings.records.dead_letters.topic) is not None:
            letters = KafkaDeadLetters(options, DeadLetterOptions(topic=topic))
            letters.start(_CONNECT_S)
            self.parts.dead_letters = letters

    def _build(self) -> None:
        self.phases.enter(Phase.TRACING)
        self.parts.learner = build_learner(self.settings)
        self._go_on()
        prove(self.parts.learner, self.settings)

    def _assemble(self) -> Trainer:
        parts, settings = self.parts, self.settings
        learner, source = parts.learner, parts.source
        assert learner is not None
        assert source is not None
        parts.live = LiveMetrics(
            window_s=settings.training.live_metrics.window,
            scored="inference_pass" if learner.call.options.second_pass else "before_update",
            results=learner.call.metrics.results,
            task=Baseline.of(learner.model.loss),
            clock=time.monotonic,
            names=tuple(learner.call.metrics.metrics),
        )
        saving = self._open_store(learner)
        options = StreamOptions(
            settings=settings,
            threads=max(1, min(4, usable_cores() - 1)),
            until=None if self.options.until is None else source.resolve_until(self.options.until),
            max_records=self.options.max_records,
            preprocess=learner.preprocess,
        )
        parts.streams = StreamFactory(source, parts.dead_letters, options)
        parts.trainer = Trainer(
            TrainerParts(
                learner=learner,
                ledger=self.ledger,
                saving=saving,
                streams=parts.streams,
                commands=self.commands,
                in_flight=parts.brake.in_flight,
                blocked=lambda: parts.dead_letters.full,
            ),
            TrainerReports(
                phases=self.phases,
                meter=self.meter,
                live=parts.live,
                on_refused=self._refused,
                board=self.board,
                tell=self.events.tell,
            ),
            TrainerOptions(
                clock=time.monotonic,
                wall=time.time,
                paused=self._paused_because(),
                batches_per_call=settings.training.batches_per_call,
                step_errors=StepErrorOptions(
                    policy=OnStepError(settings.training.on_step_error), exact=settings.training.deterministic
                ),
            ),
        )
        return parts.trainer

    def _open_store(self, learner: Learner) -> Saving:
        """The store, and in it the state to go on from: the newest checkpoint, or a new number 0."""
        parts, settings = self.parts, self.settings
        assert parts.writer is not None
        assert parts.source is not None
        assert parts.live is not None
        self.phases.enter(Phase.RESTORING)
        options = StoreOptions(
            keep=keep_policy(settings),
            before_manifest=self._letters_acknowledged,
            on_durable=self._durable,
        )
        parts.store = store = CheckpointStore(parts.writer.folder, parts.writer, options)
        store.require_space(3 * learner.state_bytes)
        parts.saving = saving = Saving(
            store,
            CheckpointWriter(store),
            learner,
            self.ledger,
            parts.live,
            SavingOptions(
                policy=_save_policy(settings),
                provenance=provenance_of(self._loaded, parts.source.cluster_id()),
                stop_timeout_s=settings.stop.grace * 0.8,
                hyperparameters=hyperparameter_options(settings),
                clock=time.monotonic,
                tell=self.events.tell,
            ),
        )
        start = settings.kafka.start_position
        source = parts.source
        manifest = saving.begin_or_restore(lambda: source.resolve_start(start), start_over=self.options.start_over)
        what = "began at" if manifest.parent is None and manifest.step == 0 else "resumed from"
        log.info("%s checkpoint %d", what, manifest.number, extra={"step": manifest.step})
        tell_started(self.events.tell, manifest, saving.provenance)
        parts.brake = CrashGuard.of(parts.writer, manifest.number, settings.training.pause_after_crashes)
        return saving

    def _paused_because(self) -> str | None:
        """Why it comes up paused, where it does."""
        if (loop := self.parts.brake.loop) is not None:
            log.error("paused: %s", loop)
            self.events.tell(EventKind.BRAKE, f"Came up paused: {loop}.", Severity.ERROR, checkpoint=loop.number)
            return str(loop)
        return "started with --paused" if self.options.paused else None

    # Callbacks from the left and from the store.

    def _letters_acknowledged(self, _order: SaveRequest) -> None:
        """On the checkpoint writer's thread: no manifest before the dead letters up to it are safe."""
        letters = self.parts.dead_letters
        if not letters.wait_acknowledged(letters.sequence(), _ACKNOWLEDGE_S):
            raise CheckpointError(
                f"records.dead_letters.topic: {self.settings.records.dead_letters.topic} has not acknowledged its "
                f"letters within {_ACKNOWLEDGE_S:g} s, so the checkpoint waits for the next save; is the topic there?"
            )

    def _durable(self, manifest: Manifest) -> None:
        """On the checkpoint writer's thread: what is durable may be committed."""
        if self.parts.source is not None and self.options.commits:
            positions = {Partition.parse(name): offset for name, offset in manifest.positions.items()}
            failpoint("commit.before")
            self._commit = self.parts.source.commit(positions)
            self._commit.add_done_callback(lambda _committed: failpoint("commit.after"))

    def _refused(self, partition: Partition, offset: int, reason: Reason) -> None:
        """On the trainer's thread: a record that decodes and yet cannot be learnt goes by its origin alone."""
        letter = DeadLetter(
            partition=partition,
            offset=offset,
            timestamp_ms=0,
            key=None,
            value=None,
            headers=(),
            reason=reason,
            field=None,
            model=self.settings.name,
        )
        self.parts.dead_letters.put_at_once(letter)

    def _close(self) -> None:
        """Close what is open once nothing is learnt any more; each step is bounded."""
        parts = self.parts
        if self._commit is not None:
            _within(_COMMIT_S, "the last commit", self._commit)
        abandoned = parts.dead_letters.stop(_COMMIT_S)
        if abandoned:
            log.warning("%d dead letters were not acknowledged; a restart sends them again", abandoned)
        if parts.source is not None:
            parts.source.stop(_COMMIT_S)
        parts.brake.close(well=self.error is None)
        if parts.writer is not None:
            parts.writer.release()


def _save_policy(settings: Settings) -> SavePolicy:
    every = settings.checkpoints.every
    return EverySeconds(every.seconds) if every.seconds is not None else EverySteps(every.steps or 1)


def _within(seconds: float, what: str, future: "Future[Any]") -> None:
    try:
        future.result(seconds)
    except Exception as error:  # noqa: BLE001 - said, and lived with: nothing durable depends on it
        log.warning("%s did not end well: %s", what, error or type(error).__name__)
