"""The service: everything wired, started in order, run, stopped in order. The one place that knows all the stages.

Owns the trainer's thread and, through what it starts, every other; the main thread keeps the HTTP side and the signals.
Starting happens on the trainer's thread, so that the HTTP side answers from the beginning. It ends when the trainer
has: by reaching the end that the options set, by `stop`, or by an error, which is kept for the exit code.

Start: (1) the folder's lock, (2) Kafka, (3) the model and its proof, (4) the newest checkpoint or number 0,
(5) dead letters, (6) learn. Stop: (1) stop taking, (2) finish the call, (3) last checkpoint, (4) commit, (5) close.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from millrace.app.service.beginning_again import Again
from millrace.app.service.checkpoint_policies import (
    keep_policy,
    remove_some,
    save_policy,
    store_options,
    warn_of_shortage,
)
from millrace.app.service.exporting import Exporting, RunExport
from millrace.app.service.first_weights import log_ignored, take_initial_weights
from millrace.app.service.gpus import Gpus
from millrace.app.service.holding import Holding, NotConnected, SourceView
from millrace.app.service.kafka_stream import NO_STREAM, StreamFactory, StreamOptions, StreamStatistics
from millrace.app.service.kept_history import KeptHistory
from millrace.app.service.kept_sample import RecordSamples
from millrace.app.service.label_join import connect_labels, due_start, due_until, ends_of
from millrace.app.service.lifecycle_events import tell_ended, tell_started
from millrace.app.service.lost_history import LostHistory, lost_history
from millrace.app.service.model_setup import (
    build_learner,
    golden_of,
    golden_records_of,
    live_metrics_of,
    prove,
    require_known_conditions,
)
from millrace.app.service.phase_limits import phase_limits
from millrace.app.service.process import tune
from millrace.app.service.provenance import hyperparameter_options, proven_with, provenance_of
from millrace.app.service.senders import senders_of
from millrace.app.service.step_numbers import settled
from millrace.app.service.watchers import scored_by, watchers_of
from millrace.app.settings import Loaded, Settings
from millrace.app.settings.connection import kafka_history, kafka_options
from millrace.consumers.dead_letters.letter import Absence, CountedOnly, DeadLetter, DeadLetters
from millrace.consumers.dead_letters.producer import DeadLetterOptions, KafkaDeadLetters
from millrace.consumers.errors import MillraceError
from millrace.consumers.failpoints import failpoint
from millrace.consumers.kafka.positions import Until
from millrace.consumers.kafka.source import KafkaSource
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.pipelines.gates.label_gate import LabelGate
from millrace.pipelines.shaping.labels.clock import Jumps
from millrace.pipelines.shaping.labels.label_reader import Role
from millrace.training.checkpoints.folder import Folder
from millrace.training.checkpoints.lease import FolderLease
from millrace.training.checkpoints.manifest import Manifest, SaveRequest
from millrace.training.checkpoints.mirror.mirroring import Mirroring
from millrace.training.checkpoints.store import CheckpointStore
from millrace.training.checkpoints.writer import CheckpointWriter
from millrace.training.commands import Commands, Pause, Stop
from millrace.training.errors import LettersMissingError, PassedError
from millrace.training.history.journal_blocks import recorder_of
from millrace.training.ledger.ledger import Ledger
from millrace.training.model.golden.golden_set import GoldenSet, scoring
from millrace.training.model.learner import Learner
from millrace.training.model.proof.remembered_proof import RememberedProof
from millrace.training.model.setup.cores import usable_cores
from millrace.training.recovery.crash_guard import CrashGuard
from millrace.training.recovery.step_errors import OnStepError, StepErrorOptions
from millrace.training.telemetry.events import EventKind, Events, Severity
from millrace.training.telemetry.live_metrics import LiveMetrics
from millrace.training.telemetry.meter import Meter
from millrace.training.telemetry.phases import Phase, Phases
from millrace.training.telemetry.watcher import Watcher
from millrace.training.trainer.board import Board
from millrace.training.trainer.dependencies import TrainerOptions, TrainerParts, TrainerReports
from millrace.training.trainer.saving import Saving, SavingOptions
from millrace.training.trainer.trainer import Trainer

log = logging.getLogger(__name__)
_CONNECT_S = 15.0
_COMMIT_S = 5.0
_STOP_S = 5.0
_ACKNOWLEDGE_S = 30.0


class AnyTrainer(Protocol):
    """The trainer of this process, alone or one of a group."""

    error: BaseException | None
    """The error that ended it."""

    def run(self) -> None:
        """Learn until the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRunning:
    """A service that is still starting."""

    dead_letters: DeadLetters = field(default_factory=CountedOnly)
    guard: CrashGuard = field(default_factory=CrashGuard)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def stream_statistics(self) -> StreamStatistics:
        """Return empty statistics."""
        return NO_STREAM


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A service whose state is restored and whose trainer may learn.

    Everything that other threads read is in one of two places: `Service.source` is the way to Kafka, `Service.running`
    is the rest, built at once when the start has succeeded. Before that both are null objects with empty statistics, so
    no reader has to ask whether they are there.
    """

    dead_letters: DeadLetters
    guard: CrashGuard
    provenance: Mapping[str, Any]
    """What this process writes into the manifest of each checkpoint."""
    live: LiveMetrics
    streams: StreamFactory
    trainer: AnyTrainer

    def stream_statistics(self) -> StreamStatistics:
        """Return the statistics of the present stream; empty ones before the first."""
        return self.streams.statistics()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the command line adds to the settings."""

    until: Until | None = None
    max_records: int | None = None
    paused: bool = False
    start_over: bool = False
    """Start over though there are checkpoints: they stay, and the training does not resume from them."""
    commits: bool = True
    """Whether what is durable is committed to Kafka; a trial leaves the group's offsets alone."""
    run_export: RunExport | None = None
    """Exports a checkpoint in a process of its own; without it none are exported."""


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
        self.shapers = self.settings.shapers()
        self.board = Board()
        self.events = Events()
        self.kept_history = KeptHistory(self.events)
        self.gpus = Gpus()
        self.holding = Holding(self.settings, self.events.report)
        self.commands = Commands()
        # A trial is nobody's service to tell of.
        self.senders = senders_of(lambda: self.settings, self.meter, self.board) if options.commits else ()
        self.exporting = Exporting(self.settings, self.events.report, options.run_export)
        self.mirroring = Mirroring(
            # A trial's checkpoints are nobody's to resume from.
            self.settings.checkpoints.mirror if options.commits else None,
            self.settings.name,
            keep_policy(self.settings),
        )
        self.source: SourceView = NotConnected()
        """The way to Kafka; replaced once, when it is connected."""
        self.watchers: tuple[Watcher, ...] = ()
        """What watches the calls; set by the start as the settings ask for it."""
        self.golden: GoldenSet | None = None
        """The records by which checkpoints are judged; set by the start if the settings name any."""
        self.labels: LabelGate | None = None
        """What records wait at for labels that come later; set by the start if the settings ask for it."""
        self.running: Running | NotRunning = NotRunning()
        """Replaced once, when the start has succeeded."""
        self.lost_history: LostHistory | None = None
        """What shows that this name has learnt before, where no checkpoint was found; set by the start."""
        self.began_at = time.time()
        self.error: BaseException | None = None
        self._loaded = loaded
        self._on_end = on_end
        self._stop_asked = threading.Event()
        self._stop_asked_at: float | None = None
        self._commit: Future[bool] | None = None
        # A daemon, because a call that hangs cannot be interrupted and must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="trainer", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the trainer's thread runs."""
        return self._thread.is_alive()

    @property
    def nothing_to_save(self) -> bool:
        """Whether no state is restored yet, so that an end now loses nothing."""
        return self.phases.snapshot().phase in {Phase.STARTING, Phase.WAITING, Phase.TRACING}

    def again(self) -> Again | None:
        """Return with what the process has to be replaced by a new one of the same command; None where it ends."""
        return None

    def start(self) -> None:
        """Start the trainer's thread; return at once."""
        self._thread.start()

    def stop(self) -> None:
        """Ask for the ordered end, unless it has come; return at once."""
        ended = self._thread.ident is not None and not self._thread.is_alive()
        if not (ended or self._stop_asked.is_set()):
            self._stop_asked_at = time.monotonic()
            self._stop_asked.set()
            log.info("stopping: finishing the call, then the last checkpoint")
            self.events.report(EventKind.STOPPING, "Asked to stop: finishing the call, then the last checkpoint.")
            self.commands.send(Stop())

    def grace_left_s(self) -> float:
        """Return the seconds of stop.grace that are left since the stop was asked for."""
        asked = time.monotonic() if self._stop_asked_at is None else self._stop_asked_at
        return max(0.0, asked + self.settings.stop.grace - time.monotonic())

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; return whether it has come."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        """Start, learn, and close what was opened, the newest first: the body of the trainer's thread."""
        with ExitStack() as opened:
            try:
                self.gpus.start()
                opened.callback(self.gpus.stop)
                self.running = running = self._start(opened)
                # After the start, so that the collector freezes the objects that stay: model, traces and modules.
                tune()
                running.trainer.run()
                self.error = running.trainer.error
            except _Stopped:
                # No phase but STOPPING leads to ENDED.
                self.phases.enter(Phase.STOPPING)
                self.phases.enter(Phase.ENDED)
            except BaseException as error:
                self.error = error
                self.phases.enter(Phase.FAILED, str(error))
                if not isinstance(error, MillraceError):
                    log.exception("the service failed")
            finally:
                # Where the start failed, no trainer has refused the commands that wait.
                self.commands.refuse_all(MillraceError("the service has ended; start it again"))
                # Before what is open is closed, so that the next process knows it from the kept history.
                tell_ended(self.events.report, self.error)
        self._on_end()

    def _start(self, opened: ExitStack) -> Running:
        """Do everything that comes before the first record; what has to be closed at the end goes on `opened`."""
        lease = self._take_folder(opened)
        self._raise_if_stopped()
        source, dead_letters = self._connect(opened)
        self._raise_if_stopped()
        self.settings = settled(self.settings, source, start_over=self.options.start_over)
        self._loaded = replace(self._loaded, settings=self.settings)
        self.phases.enter(Phase.TRACING)
        samples = RecordSamples(self.settings, lease.folder)
        learner = build_learner(self.settings, samples.sources(source))
        self._raise_if_stopped()
        remembered = RememberedProof(lease.folder.proof, proven_with(self._loaded))
        if not remembered.holds(learner):
            remembered.keep(learner, prove(learner, self.settings))
        self._raise_if_stopped()
        self._connect_labels(Jumps(lease.folder.label_jumps), opened, source)
        live = live_metrics_of(learner, self.settings)
        self.watchers = watchers_of(
            learner, self.settings, opened, self.events.report, lambda reason: self.commands.send(Pause(reason=reason))
        )
        self.holding.gates = (*self.holding.gates, *(gate for one in self.watchers for gate in one.gates))
        self.golden = golden_of(learner, golden_records_of(self.settings))
        saving, guard = self._restore(lease, source, dead_letters, learner, live)
        # A lambda, because only the end of the run shows whether there was an error.
        opened.callback(lambda: guard.close(well=self.error is None))
        streams = self._streams(source, dead_letters, learner)
        for watcher in self.watchers:
            watcher.begin()
        trainer = Trainer(
            TrainerParts(
                learner=learner,
                ledger=self.ledger,
                saving=saving,
                streams=streams,
                commands=self.commands,
                in_flight=guard.in_flight,
                release_guard=guard.release,
                blocked=lambda: dead_letters.full,
                hold=self.holding,
            ),
            self._reports(dead_letters, live),
            self._trainer_options(guard),
        )
        return Running(
            dead_letters=dead_letters,
            guard=guard,
            provenance=saving.provenance,
            live=live,
            streams=streams,
            trainer=trainer,
        )

    def _raise_if_stopped(self) -> None:
        if self._stop_asked.is_set():
            raise _Stopped

    def _take_folder(self, opened: ExitStack) -> FolderLease:
        folder = Folder(self.settings.checkpoints.path / self.settings.name)
        self.mirroring.pull_terms(folder)
        lease = FolderLease.acquire(
            folder,
            f"millrace run {self.settings.name}",
            on_passed=self._passed,
            make_room=partial(remove_some, self.settings),
            before_term=partial(self.mirroring.bring_back, wanted=not self.options.start_over),
        )
        # The first on the stack is the last to run: the folder is free only when everything else is closed.
        opened.callback(lease.release)
        self.mirroring.start(lease)
        # A lambda, because only the end shows how much time is left; one that failed, or begins again, ends soon.
        opened.callback(
            lambda: self.mirroring.stop(
                self.grace_left_s() * 0.8 if self.error is None and self.again() is None else _STOP_S
            )
        )
        self.kept_history.start(lease)
        opened.callback(self.kept_history.stop)
        self.exporting.start()
        opened.callback(self.exporting.stop)
        return lease

    def _passed(self, error: PassedError) -> None:
        """Exit at once: another trainer has taken the folder, so nothing that this one does counts any more."""
        log.critical("%s", error)
        # On the thread of the lease an exception would end that thread alone, and an ordered end would wait for a
        # trainer that may be stuck.
        os._exit(error.exit_code)

    def _connect(self, opened: ExitStack) -> tuple[KafkaSource, DeadLetters]:
        """Connect to Kafka; at the end the last commit is awaited first, and the source stops last."""
        options = kafka_options(self.settings.kafka)
        if self.settings.training.deterministic:
            options = replace(options, freeze_partitions=True)
        if self.settings.scale.workers > 1:
            options = replace(options, only_given=True)
        options = replace(options, due_after_s=self.settings.labels.due_after)
        source = KafkaSource(options, kafka_history(self.settings))
        source.start(_CONNECT_S)
        opened.callback(source.stop, _COMMIT_S)
        self.source = source
        dead_letters: DeadLetters = CountedOnly()
        if (topic := self.settings.records.dead_letters.topic) is not None:
            producer = KafkaDeadLetters(options, DeadLetterOptions(topic=topic))
            producer.start(_CONNECT_S)
            opened.callback(stop_dead_letters, producer)
            dead_letters = producer
        self.holding.watch(source, dead_letters, options, opened)
        opened.callback(self._await_commit)
        return source, dead_letters

    def _connect_labels(self, jumps: Jumps, opened: ExitStack, source: KafkaSource, role: Role = Role.ALONE) -> None:
        """Connect to the topics of labels that come later, if the settings name any."""
        ends, of_records = partial(ends_of, source), source.partitions()
        self.labels = connect_labels(self.settings, self.shapers, jumps, opened, ends, role, of_records)
        if self.labels is not None:
            self.holding.gates = (*self.holding.gates, self.labels)

    def _restore(
        self, lease: FolderLease, source: KafkaSource, dead_letters: DeadLetters, learner: Learner, live: LiveMetrics
    ) -> tuple[Saving, CrashGuard]:
        """Open the store, restore its newest checkpoint or publish a new number 0, and look for a crash loop there."""
        require_known_conditions(learner, self.settings, scored_by(learner, self.settings))
        self.phases.enter(Phase.RESTORING)
        options = replace(
            store_options(self.settings, lease.folder),
            before_manifest=partial(await_letters, dead_letters, self.settings.records.dead_letters.topic),
            on_durable=partial(self._commit_durable, source),
        )
        store = CheckpointStore(lease.folder, lease, options)
        store.require_room(learner.state_bytes)
        warn_of_shortage(self.settings, store, learner.state_bytes)
        saving = Saving(
            store,
            CheckpointWriter(store),
            learner,
            self.ledger,
            live,
            SavingOptions(
                policy=save_policy(self.settings),
                provenance=provenance_of(self._loaded, source.cluster_id()),
                # The rest of the grace is for the call, the commit and closing.
                stop_timeout_s=self.settings.stop.grace * 0.8,
                hyperparameters=hyperparameter_options(self.settings),
                clock=time.monotonic,
                report_event=self.events.report,
                recorder=recorder_of(self.ledger) if self.settings.training.deterministic else None,
                shapers=self.shapers,
                watchers=self.watchers,
                golden=scoring(self.golden),
                prepare=partial(take_initial_weights, self.settings, learner, self.shapers),
            ),
        )
        manifest = saving.begin_or_restore(partial(self._first_offsets, source), start_over=self.options.start_over)
        self.mirroring.durable(manifest)
        if self.golden is not None:
            self.golden.durable(manifest)
        what = "began at" if manifest.parent is None and manifest.step == 0 else "resumed from"
        log_ignored(self.settings, manifest)
        log.info("%s checkpoint %d", what, manifest.number, extra={"step": manifest.step})
        tell_started(self.events.report, manifest, saving.provenance, self.settings.model.build.file)
        return saving, CrashGuard.of(lease, manifest.number, self.settings.training.pause_after_crashes)

    def _first_offsets(self, source: KafkaSource) -> Mapping[Partition, int]:
        """Return the offsets to begin at; called only where there is no checkpoint to resume from."""
        offsets = source.resolve_start(due_start(self.settings))
        # A trial commits nothing and keeps its checkpoints elsewhere, so the group's commits are not its own.
        if self.options.commits and not self.options.start_over:
            self.lost_history = lost_history(source, self.settings, offsets)
            if self.lost_history is not None:
                log.warning("%s", self.lost_history)
        return offsets

    def _streams(self, source: KafkaSource, dead_letters: DeadLetters, learner: Learner) -> StreamFactory:
        options = StreamOptions(
            settings=self.settings,
            batch_size=learner.options.batch_size,
            # One for each core: parsers work without Python's lock, and a thread that waits for a chunk costs nothing.
            threads=min(4, usable_cores()),
            until=self._until(source),
            max_records=self.options.max_records,
            preprocess=learner.preprocess,
            shapers=self.shapers,
            gates=self.holding.gates,
            portions=None if self.labels is None else self.labels.portions,
        )
        return StreamFactory(source, dead_letters, options)

    def _until(self, source: KafkaSource) -> Mapping[Partition, int] | None:
        until = self.options.until
        return None if until is None else source.resolve_until(due_until(self.settings, until))

    def _reports(self, dead_letters: DeadLetters, live: LiveMetrics) -> TrainerReports:
        return TrainerReports(
            phases=self.phases,
            meter=self.meter,
            live=live,
            on_refused=partial(post_refused, dead_letters, self.settings.name, framed=self.settings.framed_topics),
            board=self.board,
            report_event=self.events.report,
            watchers=self.watchers,
        )

    def _trainer_options(self, guard: CrashGuard) -> TrainerOptions:
        training = self.settings.training
        return TrainerOptions(
            clock=time.monotonic,
            wall=time.time,
            due_after_s=self.settings.labels.due_after,
            paused=self._paused_because(guard),
            batches_per_call=training.batches_per_call,
            step_errors=StepErrorOptions(policy=OnStepError(training.on_step_error), exact=training.deterministic),
        )

    def _paused_because(self, guard: CrashGuard) -> str | None:
        """Return why the trainer starts paused; None where it does not."""
        if (loop := guard.loop) is not None:
            log.error("paused: %s", loop)
            self.events.report(EventKind.BRAKE, f"Came up paused: {loop}.", Severity.ERROR, checkpoint=loop.number)
            return str(loop)
        return "started with --paused" if self.options.paused else None

    # The checkpoint writer's thread calls this one.

    def _commit_durable(self, source: KafkaSource, manifest: Manifest) -> None:
        """Begin to commit the positions of a checkpoint that is durable, which may be exported."""
        self.mirroring.durable(manifest)
        if self.golden is not None:
            self.golden.durable(manifest)
        scores = {name: score for one in self.watchers for name, score in one.scores().items()}
        self.exporting.durable(manifest, self.meter, scores)
        if self.options.commits:
            positions = {Partition.parse(name): offset for name, offset in manifest.positions.items()}
            failpoint("commit.before")
            self._commit = source.commit(positions)
            self._commit.add_done_callback(lambda _committed: failpoint("commit.after"))

    def _await_commit(self) -> None:
        """Wait for the last commit; one that fails is only logged, because nothing durable depends on it."""
        if self._commit is None:
            return
        try:
            self._commit.result(_COMMIT_S)
        except Exception as error:  # noqa: BLE001 - a commit only informs lag tools
            log.warning("the last commit failed: %s", str(error) or type(error).__name__)


def post_refused(
    dead_letters: DeadLetters,
    name: str,
    partition: Partition,
    offset: int,
    reason: Reason,
    *,
    framed: Collection[str] = (),
) -> None:
    """Post a record that decodes but cannot be learnt. Values of the topics of `framed` begin with a schema's number.

    The trainer no longer has its bytes, so it posts the origin, and the dead letters read the record there again.
    """
    letter = DeadLetter(
        partition=partition,
        offset=offset,
        timestamp_ms=0,
        key=None,
        value=None,
        headers=(),
        reason=reason,
        field=None,
        framed=partition.topic in framed,
        model=name,
        absent=Absence.UNREAD,
    )
    # It never waits: while too many letters wait for room, `blocked` keeps the trainer from the next block instead.
    dead_letters.put_at_once(letter)


def await_letters(dead_letters: DeadLetters, topic: str | None, _request: SaveRequest) -> None:
    """Wait until the dead letters so far are acknowledged, so that no manifest is ahead of them."""
    if not dead_letters.wait_acknowledged(dead_letters.sequence(), _ACKNOWLEDGE_S):
        raise LettersMissingError(
            f"records.dead_letters.topic: {topic} has not acknowledged its letters within {_ACKNOWLEDGE_S:g} s, so the "
            "checkpoint waits for the next save; is the topic there?"
        )


def stop_dead_letters(dead_letters: DeadLetters) -> None:
    """Stop sending; what is not acknowledged within a few seconds is left for the next start."""
    if abandoned := dead_letters.stop(_STOP_S):
        log.warning("dead letters that were not acknowledged: %d; a restart sends them again", abandoned)
