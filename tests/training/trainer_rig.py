"""A running trainer with real model, ledger, store and writer; only the stream is made from a topic in memory.

The topic is the log: every run, and every incarnation of a run, reads the same records at the same offsets.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.pipelines.shaping.labels.arrivals import ArrivalReader
from millrace.pipelines.stream.blocks import BlockFacts, Delivery, Rows, Span
from millrace.training.checkpoints import CheckpointStore, CheckpointWriter, Folder, FolderLease, Manifest, StoreOptions
from millrace.training.checkpoints.policies import Never, SavePolicy
from millrace.training.commands import Command, Commands, Pause, Stop
from millrace.training.detectors.detectors import Detectors
from millrace.training.ledger.ledger import Ledger
from millrace.training.model.golden.golden_records import GoldenRecords
from millrace.training.model.golden.golden_set import GoldenSet, scoring
from millrace.training.model.hyperparameters import HyperparameterOptions
from millrace.training.model.learner import Learner
from millrace.training.recovery.crash_guard import InFlight, leave_no_record
from millrace.training.recovery.step_errors import StepErrorOptions
from millrace.training.stream import Hold, NoHold, StreamEnded, StreamStart
from millrace.training.telemetry.events import Events
from millrace.training.telemetry.live_metrics import LiveMetrics, choose_watched
from millrace.training.telemetry.meter import Meter
from millrace.training.telemetry.phases import Phase, Phases
from millrace.training.telemetry.watcher import Watcher
from millrace.training.trainer.arrivals.arrival_score import ArrivalScore
from millrace.training.trainer.board import Board
from millrace.training.trainer.dependencies import TrainerOptions, TrainerParts, TrainerReports
from millrace.training.trainer.metric_guesses import plan_of
from millrace.training.trainer.saving import Saving, SavingOptions
from millrace.training.trainer.trainer import Trainer
from tests.training.conftest import BATCH, FEATURES, mlp, options_of
from tests.training.learner_pool import POOL

P0, P1 = Partition("clicks", 0), Partition("clicks", 1)
SHARE = 2 * BATCH
"""The most offsets of each partition in a block."""
_TICK_S = 0.02
_SOON_S = 60.0


class Topic:
    """Partitions that grow; every record is a function of its partition and offset."""

    def __init__(self, *partitions: Partition) -> None:
        self.changed = threading.Condition()
        self.ends = dict.fromkeys(partitions or (P0,), 0)
        self.bad: set[tuple[Partition, int]] = set()
        """Records that cannot be decoded."""
        self.poison: dict[tuple[Partition, int], float] = {}
        """Records with this value in one feature."""
        self.ended = False

    def produce(self, count: int, partition: Partition = P0) -> None:
        """Append this many records; a partition that does not exist is created."""
        with self.changed:
            self.ends[partition] = self.ends.get(partition, 0) + count
            self.changed.notify_all()

    def end(self) -> None:
        """End the topic: no more records will come."""
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def label(self, partition: Partition, offset: int) -> float:
        """Return the label of one record."""
        return float(np.nan_to_num(self.x(partition, offset)).sum() > 0)

    def x(self, partition: Partition, offset: int) -> npt.NDArray[np.float32]:
        """Return the features of one record."""
        x = np.random.default_rng([partition.number, offset]).normal(size=FEATURES).astype(np.float32)
        if (partition, offset) in self.poison:
            x[2] = self.poison[partition, offset]
        return x


class TopicStream:
    """Blocks of one incarnation, each with the next offsets of every partition that has any."""

    def __init__(self, topic: Topic, start: StreamStart) -> None:
        self._topic = topic
        self.start = start
        self.closed = False
        self._positions = dict(start.positions)
        self._table = sorted(start.positions)
        self._number = 0
        self.delivered_first: list[Delivery] = []
        """Blocks to deliver before any other, for example a late one."""

    def take(self) -> Delivery | None:
        assert not self.closed
        if self.delivered_first:
            return self.delivered_first.pop(0)
        with self._topic.changed:
            if not self._ready():
                if self._topic.ended:
                    raise StreamEnded
                self._topic.changed.wait(_TICK_S)
            return self._block() if self._ready() else None

    def draw_ahead(self) -> None:
        """Do nothing: blocks are made when they are taken."""

    def close(self) -> None:
        self.closed = True

    def _ready(self) -> list[Partition]:
        return [p for p, end in sorted(self._topic.ends.items()) if end > self._positions.get(p, 0)]

    def _block(self) -> Delivery:
        spans, rows = [], list[tuple[Partition, int]]()
        for partition in self._ready():
            if partition not in self._table:
                self._table.append(partition)
            start = self._positions.get(partition, 0)
            end = min(self._topic.ends[partition], start + SHARE)
            span, present = self._span(partition, start, end)
            spans.append(span)
            rows += [(partition, offset) for offset in present]
            self._positions[partition] = end
        return delivery(self._topic, self._table, tuple(spans), rows, (self.start.incarnation, self._count()))

    def _span(self, partition: Partition, start: int, end: int) -> tuple[Span, list[int]]:
        skipped: dict[str, int] = {}
        present, bad = list[int](), 0
        for offset in range(start, end):
            cut = next((s for s in self.start.skips if s.partition == partition and s.start <= offset < s.end), None)
            if cut is not None:
                skipped[cut.order] = skipped.get(cut.order, 0) + 1
            elif (partition, offset) in self._topic.bad:
                bad += 1
            else:
                present.append(offset)
        span = Span(
            partition=partition,
            index=self._table.index(partition),
            start=start,
            end=end,
            learnt=len(present),
            set_aside={Reason.MALFORMED: bad} if bad else {},
            skipped=skipped,
        )
        return span, present

    def _count(self) -> int:
        self._number += 1
        return self._number - 1


def delivery(
    topic: Topic,
    table: list[Partition],
    spans: tuple[Span, ...],
    rows: list[tuple[Partition, int]],
    place: tuple[int, int],
) -> Delivery:
    """Make a block of these records; the last batch is filled up with copies of the first row."""
    batches = -(-len(rows) // BATCH)
    size = batches * BATCH
    facts = BlockFacts(
        number=place[1],
        incarnation=place[0],
        spans=spans,
        batches=batches,
        rows=len(rows),
        seed=0,
        fetched_at=0.0,
        oldest_ms=round(time.time() * 1000),
        newest_ms=round(time.time() * 1000),
    )
    filled = rows + rows[:1] * (size - len(rows))
    x = np.array([topic.x(*row) for row in filled], np.float32).reshape(batches, BATCH, FEATURES)
    here = np.arange(size) < len(rows)
    offsets = np.where(here, [offset for _, offset in filled], -1).reshape(batches, BATCH)
    indices = np.where(here, [table.index(partition) for partition, _ in filled], -1).reshape(batches, BATCH)
    tensors = Rows(
        features={"x": tf.constant(x)},
        labels=tf.constant(np.array([topic.label(*row) for row in filled], np.float32).reshape(batches, BATCH)),
        weights=tf.constant(here.astype(np.float32).reshape(batches, BATCH)),
        offsets=tf.constant(offsets, tf.int64),
        partitions=tf.constant(indices, tf.int32),
    )
    return Delivery(tensors, facts)


def live_of(learner: Learner, clock: Callable[[], float] = time.monotonic) -> LiveMetrics:
    """Return empty live metrics of a model."""
    return LiveMetrics(
        window_s=3600.0,
        scored="before_update",
        results=learner.call.metrics.results,
        plan=plan_of(learner.model, learner.call.metrics),
        clock=clock,
        watch=choose_watched(learner.call.metrics.directions),
    )


@dataclass
class Clock:
    """A clock that a test advances."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, kw_only=True)
class RigOptions:
    """The options that differ from test to test."""

    build: Callable[[], Any] = mlp
    passes: int = 1
    policy: SavePolicy = field(default_factory=Never)
    paused: bool = False
    clock: Callable[[], float] = time.monotonic
    before_manifest: Callable[[Any], None] = lambda _request: None
    newcomers: Mapping[Partition, int] = field(default_factory=dict)
    start_over: bool = False
    hyperparameters: HyperparameterOptions = field(default_factory=HyperparameterOptions)
    step_errors: StepErrorOptions = field(default_factory=StepErrorOptions)
    in_flight: InFlight = leave_no_record
    release_guard: Callable[[], None] = lambda: None
    blocked: Callable[[], bool] = lambda: False
    hold: Hold = field(default_factory=NoHold)
    prepare: Callable[[Any], Mapping[str, Any]] = lambda _learner: {}
    detectors: Mapping[str, str] = field(default_factory=dict)
    pause_on_mark: bool = False
    golden: GoldenRecords | None = None
    arrivals: ArrivalReader | None = None
    watchers: Callable[[Learner], Sequence[Watcher]] = lambda _learner: ()


class Run:
    """The trainer of one process, on a folder that earlier ones may have used."""

    def __init__(self, root: Path, topic: Topic, options: RigOptions) -> None:
        self.topic, self.options = topic, options
        self.phases, self.ledger, self.commands, self.board = Phases(), Ledger(), Commands(), Board()
        self.events = Events()
        self.refused: list[tuple[Partition, int, Reason]] = []
        self.streams: list[TopicStream] = []
        self.delivered_first: list[Delivery] = []
        self.durable: list[Manifest] = []
        self.raised: BaseException | None = None
        self._lease = FolderLease.acquire(Folder(root / "clicks"), "a test")
        store_options = StoreOptions(before_manifest=options.before_manifest, on_durable=self._durable)
        self.store = CheckpointStore(Folder(root / "clicks"), self._lease, store_options)
        self.learner = POOL.lend(options.build, options_of(passes=options.passes))
        self.golden = None if options.golden is None else GoldenSet(self.learner, options.golden)
        self.live = live_of(self.learner, options.clock)
        self.arrivals = None
        if options.arrivals is not None:
            self.arrivals = ArrivalScore(self.learner, live_of(self.learner, options.clock), options.arrivals)
        results = self.learner.call.metrics.results_or_nan
        self.watchers: list[Watcher] = [] if self.arrivals is None else [self.arrivals]
        if options.detectors:
            pause = self._pause if options.pause_on_mark else None
            self.watchers.append(Detectors(options.detectors, results, self.events.report, pause))
        self.watchers += options.watchers(self.learner)
        self.saving = Saving(
            self.store,
            CheckpointWriter(self.store),
            self.learner,
            self.ledger,
            self.live,
            SavingOptions(
                policy=options.policy,
                provenance={"model": "mlp"},
                hyperparameters=options.hyperparameters,
                clock=options.clock,
                report_event=self.events.report,
                watchers=self.watchers,
                golden=scoring(self.golden),
                prepare=lambda: options.prepare(self.learner),
            ),
        )
        self.meter = Meter(options.clock)
        self._thread = threading.Thread(target=self._run, name="trainer", daemon=True)

    def start(self) -> "Run":
        """Resume from the newest checkpoint, or begin at offset 0 of every partition."""
        self.phases.enter(Phase.RESTORING)
        self.begun_at = self.saving.begin_or_restore(
            lambda: dict.fromkeys(self.topic.ends, 0), start_over=self.options.start_over
        )
        parts = TrainerParts(
            learner=self.learner,
            ledger=self.ledger,
            saving=self.saving,
            streams=self,
            commands=self.commands,
            in_flight=self.options.in_flight,
            release_guard=self.options.release_guard,
            blocked=self.options.blocked,
            hold=self.options.hold,
        )
        reports = TrainerReports(
            phases=self.phases,
            meter=self.meter,
            live=self.live,
            on_refused=lambda *refused: self.refused.append(refused),
            board=self.board,
            report_event=self.events.report,
            watchers=self.watchers,
        )
        options = TrainerOptions(
            clock=self.options.clock,
            wall=time.time,
            paused="started with --paused" if self.options.paused else None,
            step_errors=self.options.step_errors,
        )
        self.trainer = Trainer(parts, reports, options)
        self._thread.start()
        self.sees(lambda: self.streams)
        return self

    def ask(self, command: Command) -> Any:
        """Send a command and return its answer; raise the error that it is answered with."""
        return self.commands.send(command).result(_SOON_S)

    def stop(self) -> None:
        """Stop the trainer in order, and wait for its end."""
        self.ask(Stop())
        self.join()

    def join(self) -> None:
        """Wait until the trainer's thread has ended."""
        self._thread.join(_SOON_S)
        assert not self._thread.is_alive()

    def leave(self) -> None:
        """Stop the trainer if it runs, and release the folder."""
        if self._thread.is_alive():
            self.stop()
        self._lease.release()

    def settled(self, position: int, partition: Partition = P0) -> bool:
        """Return whether the ledger has reached this offset."""
        return self.ledger.positions().get(partition) == position

    def reaches(self, position: int, partition: Partition = P0) -> None:
        """Wait until the ledger has reached this offset."""
        self.sees(lambda: self.settled(position, partition))

    def _pause(self, reason: str) -> None:
        self.commands.send(Pause(reason=reason))

    def sees(self, condition: Callable[[], object]) -> None:
        """Wait for a condition; fail at once if the trainer ends before it holds."""
        deadline = time.monotonic() + _SOON_S
        while not condition():
            assert self._thread.is_alive(), f"the trainer has ended: {self.raised or self.trainer.error}"
            assert time.monotonic() < deadline, f"the condition did not hold within {_SOON_S} s"
            time.sleep(0.005)

    def newcomers(self, known: Collection[Partition]) -> Mapping[Partition, int]:
        return {partition: first for partition, first in self.options.newcomers.items() if partition not in known}

    def open(self, start: StreamStart) -> TopicStream:
        stream = TopicStream(self.topic, start)
        stream.delivered_first, self.delivered_first = self.delivered_first, []
        self.streams.append(stream)
        return stream

    def _durable(self, manifest: Manifest) -> None:
        self.durable.append(manifest)
        if self.golden is not None:
            self.golden.durable(manifest)

    def _run(self) -> None:
        try:
            self.trainer.run()
        except BaseException as error:  # noqa: BLE001 - kept for the test to look at
            self.raised = error


@contextmanager
def running(root: Path, topic: Topic, **options: Any) -> Iterator[Run]:
    """Run a trainer; afterwards, stop it if it has not ended, and release the folder."""
    run = Run(root, topic, RigOptions(**options))
    try:
        yield run.start()
    finally:
        run.leave()
