"""The lives of a trainer, laid end to end: all real, but for Kafka, the compiled step, and threads that run free.

A test decides who moves next: a turn of the trainer, a fetch, the disk.
"""

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any

from millrace.consumers.dead_letters.backlog import Backlog, BacklogOptions
from millrace.consumers.dead_letters.letter import DeadLetter
from millrace.consumers.failpoints import FailpointError
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.training.checkpoints import CheckpointStore, CheckpointWriter, Folder, FolderLease, LeaseOptions, Manifest
from millrace.training.checkpoints.manifest import SaveRequest
from millrace.training.checkpoints.policies import EverySeconds, KeepLast
from millrace.training.checkpoints.store import StoreOptions
from millrace.training.commands import Commands
from millrace.training.errors import CheckpointError
from millrace.training.ledger.account import PartitionAccount
from millrace.training.ledger.ledger import Ledger
from millrace.training.stream import StreamStart
from millrace.training.telemetry.baseline import BaselinePlan
from millrace.training.telemetry.live_metrics import LiveMetrics
from millrace.training.telemetry.meter import Meter
from millrace.training.telemetry.phases import Phase, Phases
from millrace.training.trainer.dependencies import TrainerOptions, TrainerParts, TrainerReports
from millrace.training.trainer.saving import Saving, SavingOptions
from millrace.training.trainer.trainer import Trainer
from tests.properties.lives.line import Line
from tests.properties.lives.recorder import Recorder
from tests.properties.lives.world import World

KEPT = 3
DEATHS = (
    "call.before",
    "call.after",
    "call.settled",
    "save.before_data",
    "save.after_data",
    "save.before_manifest",
    "save.after_manifest",
    "save.after_rename",
    "save.before_prune",
    "rewind.before_order",
    "rewind.after_order",
    "rewind.after_restore",
    "fallback.before_restore",
    "fallback.after_restore",
    "careful.culprit",
)
"""Where a life may end, but for its start."""
_AT_ONCE = LeaseOptions(renew_every=60.0, stale_after=0.0, poll_every=0.001)
_SOON_S = 20.0


class _Writer(CheckpointWriter):
    """An order finds the disk fast or slow: the save under way ends well, or is cancelled; at once in either case."""

    def __init__(self, store: CheckpointStore, life: "Life") -> None:
        super().__init__(store)
        self._life = life

    def cancel_or_settle(self, deadline_s: float) -> Manifest | None:
        life, save = self._life, self._current
        if life.fast:
            with life.getting_on():
                return super().cancel_or_settle(deadline_s)
        settled = super().cancel_or_settle(0.0)
        if save is not None:
            assert wait([save.future], _SOON_S).done
        return settled


class Life:
    """One process, from its start to its death."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.dying = False
        self.fast = False
        """Whether the disk is fast enough for an order to wait for the save under way."""
        self.acknowledges = True
        self.disk = threading.Event()
        """Set while saves get on; else each waits right before its manifest."""
        self.disk.set()
        self.backlog = Backlog(BacklogOptions())
        self.line: Line | None = None
        self.began: Mapping[Partition, PartitionAccount] = {}
        """How the ledger stood when the line began."""
        self.ledger, self.learner, self.commands = Ledger(), Recorder(world.log), Commands()
        self.phases = Phases()
        self._right = FolderLease.acquire(Folder(world.root / "clicks"), "a life", options=_AT_ONCE)
        options = StoreOptions(keep=KeepLast(KEPT), before_manifest=self._before_manifest, on_durable=world.told.append)
        self.store = CheckpointStore(self._right.folder, self._right, options)
        self.writer = _Writer(self.store, self)
        self.saving, self.trainer = self._made()

    def _made(self) -> tuple[Saving, Trainer]:
        clock, learner = self.world.clock, self.learner
        live = LiveMetrics(
            window_s=60.0, scored="before_update", results=lambda _: {}, plan=BaselinePlan(), clock=clock
        )
        saving = Saving(
            self.store,
            self.writer,
            learner,  # type: ignore[arg-type]
            self.ledger,
            live,
            SavingOptions(policy=EverySeconds(10.0), provenance={}, stop_timeout_s=_SOON_S, clock=clock),
        )
        parts = TrainerParts(
            learner=learner,  # type: ignore[arg-type]
            ledger=self.ledger,
            saving=saving,
            streams=self,
            commands=self.commands,
        )
        reports = TrainerReports(phases=self.phases, meter=Meter(clock), live=live, on_refused=self.put_letter)
        return saving, Trainer(parts, reports, TrainerOptions(clock=clock, wall=clock))

    def start(self) -> Manifest:
        """Start as a service does: from the newest checkpoint, or number 0; then begin the first incarnation."""
        self.phases.enter(Phase.RESTORING)
        begun = self.saving.begin_or_restore(lambda: dict(self.world.log.firsts), start_over=False)
        self.trainer._open()
        self.disk.clear()
        return begun

    def turn(self) -> bool:
        """Run one iteration of the trainer's loop."""
        return self.trainer._iterate()

    def stop(self) -> None:
        """End in order."""
        self.disk.set()
        self.trainer._finish()
        self._right.release()

    def die(self) -> None:
        """Lose all that is in memory; a save under way ends where it is."""
        self.dying = True
        self.disk.set()
        self.writer.close(_SOON_S)
        self._right.release()

    # The save under way.

    @property
    def under_way(self) -> "Future[Manifest] | None":
        return None if self.saving._under_way is None else self.saving._under_way.future

    def let_it_be_written(self) -> None:
        """Let the disk continue with the save under way, up to its end, good or bad."""
        if (future := self.under_way) is not None:
            with self.getting_on():
                assert wait([future], _SOON_S).done

    @contextmanager
    def getting_on(self) -> Iterator[None]:
        """Let the disk continue for a while."""
        was = self.disk.is_set()
        self.disk.set()
        yield
        if not was:
            self.disk.clear()

    def put_letter(self, partition: Partition, offset: int, reason: Reason) -> None:
        letter = DeadLetter(
            partition=partition,
            offset=offset,
            timestamp_ms=0,
            key=None,
            value=None,
            headers=(),
            reason=reason,
            field=None,
            model="clicks",
        )
        self.backlog.put([letter], lambda: self.dying)

    def acknowledge(self) -> None:
        """Acknowledge all dead letters that wait."""
        window = self.backlog.oldest(1 << 20, 1 << 30)
        for letter in window:
            self.world.letters[letter.partition, letter.offset] = letter.reason
        self.backlog.acknowledge(len(window))

    def _before_manifest(self, _order: SaveRequest) -> None:
        """The writer's thread waits for the disk; an order is carried out on the trainer's, which is the test's."""
        while threading.current_thread() is self.writer._thread and not self.disk.wait(0.0005):
            save = self.writer._current
            if save is not None and save.gate.cancelled:
                return
        if self.dying:
            raise FailpointError("the process has died")
        if self.acknowledges:
            self.acknowledge()
        if not self.backlog.wait_acknowledged(self.backlog.sequence(), 0.0):
            raise CheckpointError("the dead letters are not acknowledged")

    def newcomers(self, known: Any) -> dict[Partition, int]:
        if self.world.rotation is not None:
            return {}
        return {partition: first for partition, first in self.world.log.firsts.items() if partition not in known}

    def open(self, order: StreamStart) -> Line:
        self.line = Line(self.world, order, self.put_letter)
        self.began = self.ledger.statistics().partitions
        return self.line
