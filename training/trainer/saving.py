"""Saving and going back: the trainer's side of the store.

Owns the state, the lineage (which checkpoint the state in memory comes from) and the saves asked for. Runs on the
trainer's thread; the writing happens on the store's own, and what is durable is told there to `on_durable`.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from consumers.errors import MillraceError
from consumers.failpoints import failpoint
from consumers.records import Partition
from pipelines.blocks import BlockFacts, Turn
from training.checkpoints.manifest import Manifest, SaveReason, SaveRequest
from training.checkpoints.part_files import VerifiedCheckpoint
from training.checkpoints.parts import PartState
from training.checkpoints.policies import SaveContext, SavePolicy
from training.checkpoints.store import CheckpointStore
from training.checkpoints.writer import CheckpointWriter
from training.commands import Rewind, Save
from training.errors import CheckpointError
from training.history.rewind import PreparedRewind, prepare_rewind, publish_rewind
from training.history.rewind_target import verified_target
from training.ledger.ledger import Ledger
from training.model.hyperparameters import Change, HyperparameterOptions
from training.model.learner import Learner
from training.telemetry.events import Tell, ignore_event
from training.telemetry.live_metrics import LiveMetrics
from training.trainer import announcements
from training.trainer.state import TrainerState, release

log = logging.getLogger(__name__)
OnDurable = Callable[[Manifest], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingOptions:
    """When to save, and what to write down with it."""

    policy: SavePolicy
    provenance: Mapping[str, Any]
    stop_timeout_s: float = 20.0
    """How long the last checkpoint may take."""
    hyperparameters: HyperparameterOptions = field(default_factory=HyperparameterOptions)
    clock: Callable[[], float]
    tell: Tell = ignore_event


@dataclass(frozen=True, slots=True, kw_only=True)
class LastSave:
    """The newest durable checkpoint of this process, or the one that it began from."""

    manifest: Manifest
    at: float
    took_s: float = 0.0
    stall_s: float = 0.0


@dataclass(slots=True)
class _UnderWay:
    """The save that is being written."""

    future: "Future[Manifest]"
    began: float
    stall_s: float
    commands: list[Save] = field(default_factory=list)


class Saving:
    """Checkpoints of one trainer."""

    def __init__(
        self,
        store: CheckpointStore,
        writer: CheckpointWriter,
        learner: Learner,
        ledger: Ledger,
        live: LiveMetrics,
        options: SavingOptions,
    ) -> None:
        self._store, self._writer, self._options = store, writer, options
        self._ledger = ledger
        self._state = TrainerState(learner, ledger, live, options.hyperparameters)
        self._under_way: _UnderWay | None = None
        self._waiting: list[Save] = []
        self._parent: int | None = None
        self._saved_step = 0
        self._tried_at = options.clock()
        self._settled_since = False
        self.last: LastSave | None = None
        self.saved = 0
        self.failed = 0
        self.last_error: str | None = None

    @property
    def step(self) -> int:
        """Batches run since number 0."""
        return self._state.progress.step

    @property
    def provenance(self) -> Mapping[str, Any]:
        """What this process writes down with each checkpoint."""
        return self._options.provenance

    @property
    def changes(self) -> tuple[Change, ...]:
        """The hyperparameters that differed at the last restore."""
        return self._state.hyperparameters.changes

    @property
    def turn(self) -> Turn | None:
        """Where the strict rotation stands."""
        return self._state.progress.turn

    def settled(self, facts: BlockFacts) -> None:
        """A call has returned."""
        self._state.progress.step += facts.batches
        self._state.progress.turn = facts.turn
        self._settled_since = True

    def joined(self) -> None:
        """A partition has joined: where it begins is worth a checkpoint, though nothing of it is settled yet."""
        self._settled_since = True

    def begin_or_restore(self, start: Callable[[], Mapping[Partition, int]], *, start_over: bool) -> Manifest:
        """Load the newest checkpoint; where there is none, resolve the start and publish number 0."""
        newest = None if start_over else self._store.newest()
        if newest is not None:
            failpoint("restore.before")
            self._restore(newest, self._store.load(newest.number))
            failpoint("restore.after")
            announcements.changed(self._options.tell, self.changes, newest.number)
            return newest
        for partition, offset in start().items():
            self._ledger.join(partition, offset)
        failpoint("start.before_zero")
        state = self._state.snapshot()
        manifest = self._store.publish(self._order(SaveReason.START), state, start_over=start_over)
        release(state)
        failpoint("start.after_zero")
        self._remember(manifest, self._options.clock())
        return manifest

    def due(self) -> SaveReason | None:
        """Why to save now, if at all; one save at a time."""
        self._collect()
        if self._under_way is not None:
            return None
        if self._waiting:
            return SaveReason.DEMAND
        if not self._settled_since or self.last is None:
            return None
        return self._options.policy.due(
            SaveContext(
                now=self._options.clock(),
                last_saved_at=max(self.last.at, self._tried_at),
                step=self.step,
                last_saved_step=self._saved_step,
            )
        )

    def begin(self, reason: SaveReason, command: Save | None = None) -> None:
        """Copy the state and hand it to the writer; behind a save that is under way, wait for a turn."""
        self._collect()
        if command is not None:
            self._waiting.append(command)
        if self._under_way is not None:
            return
        first = self._waiting[0] if self._waiting else Save()
        self._tried_at = began = self._options.clock()
        order, state = self._order(reason, by=first.by, note=first.note), self._state.snapshot()
        stall_s = self._options.clock() - began
        future = self._writer.submit(order, state)
        future.add_done_callback(lambda _done: release(state))
        self._settled_since, self._saved_step = False, self.step
        self._under_way, self._waiting = _UnderWay(future, began, stall_s, self._waiting), []

    def prepare_rewind(self, command: Rewind) -> PreparedRewind:
        """Read and hash the target, once, and refuse a rewind that cannot be carried out before anything is stopped.

        What is verified here is what is linked and restored afterwards.
        """
        target = verified_target(self._store, command.to)
        prepared = prepare_rewind(target, command, self._ledger.orders)
        self._state.fitting(command.to, target.parts)
        return prepared

    def publish_rewind(self, prepared: PreparedRewind) -> Manifest:
        """Publish the rewind as a checkpoint of its own: from here on a restart finds it."""
        self.settle()
        self._see_to_who_waits()
        failpoint("rewind.before_order")
        manifest = publish_rewind(
            self._store,
            prepared,
            incarnation=self._ledger.incarnation,
            provenance=self._options.provenance,
        )
        failpoint("rewind.after_order")
        return manifest

    def go_to(self, rewound: Manifest, target: VerifiedCheckpoint) -> None:
        """Restore the state of a published rewind: the target's parts, already verified, under the published ledger.

        Where this raises, nothing in memory may be used any more.
        """
        ledger = self._store.load(rewound.number, only={self._ledger.name})
        self._restore(rewound, {**target.parts, **ledger})
        self._settled_since = False
        announcements.changed(self._options.tell, self.changes, rewound.number)
        failpoint("rewind.after_restore")

    @property
    def newest_number(self) -> int:
        """Of the newest checkpoint that is known to be durable."""
        return 0 if self.last is None else self.last.manifest.number

    def newest(self) -> Manifest:
        """The newest durable checkpoint, once nothing is under way: where a restart would go on from."""
        self.settle()
        failpoint("fallback.before_restore")
        newest = self._store.newest()
        assert newest is not None, "number 0 is durable before anything is learnt"
        return newest

    def fall_back(self, newest: Manifest) -> None:
        """Be in that state. Where this raises, nothing in memory may be used any more."""
        self._restore(newest, self._store.load(newest.number))
        self._settled_since = False
        failpoint("fallback.after_restore")

    def settle(self) -> None:
        """Wait for the save that is under way; its outcome stands in the log."""
        if self._under_way is not None:
            self._writer.cancel_or_settle(self._options.stop_timeout_s)
            self._collect()

    def _see_to_who_waits(self) -> None:
        """Who waits for a save has asked for one of the present history, not of the one that an order begins."""
        if self._waiting and self._under_way is None:
            self.begin(SaveReason.DEMAND)
            self.settle()
        waiting, self._waiting = self._waiting, []
        for command in waiting:
            command.answer.set_exception(CheckpointError("the save was overtaken by a later order; nothing was saved"))

    def finish(self) -> None:
        """The last checkpoint, durable before this returns; raises where it cannot be."""
        self.settle()
        if self._settled_since or self._waiting:
            self.begin(SaveReason.STOP)
            under_way = self._under_way
            assert under_way is not None
            wait([under_way.future], self._options.stop_timeout_s)
            if not under_way.future.done():
                raise CheckpointError(
                    f"the last checkpoint was not durable within {self._options.stop_timeout_s:g} s, and is left "
                    "behind; a restart goes on from the one before it: give stop.grace more time, or look at the disk"
                )
            self._collect()
            under_way.future.result()
        self._writer.close(self._options.stop_timeout_s)

    def abandon(self, error: BaseException) -> None:
        """End without a checkpoint; whoever waits for one is told."""
        self._writer.close(self._options.stop_timeout_s)
        with suppress(Exception):  # the one that ended the training is told, and no other
            self._collect()
        left_behind = [] if self._under_way is None else self._under_way.commands
        for command in (*left_behind, *self._waiting):
            if not command.answer.done():
                command.answer.set_exception(CheckpointError(f"nothing was saved, as training has ended: {error}"))

    def _restore(self, manifest: Manifest, parts: Mapping[str, PartState]) -> None:
        self._state.restore(self._state.fitting(manifest.number, parts))
        self._remember(manifest, self._options.clock())

    def _order(self, reason: SaveReason, by: str | None = None, note: str | None = None) -> SaveRequest:
        return SaveRequest(
            reason=reason,
            parent=self._parent,
            step=self.step,
            incarnation=self._ledger.incarnation,
            positions=self._ledger.positions(),
            ordered_by=by,
            note=note,
            provenance=self._options.provenance,
        )

    def _collect(self) -> None:
        """See to the outcome of the save that was under way."""
        if self._under_way is None or not self._under_way.future.done():
            return
        done, self._under_way = self._under_way, None
        try:
            manifest = done.future.result()
        except Exception as error:  # noqa: BLE001 - raised again there, unless the next save may do better
            self._save_failed(done.commands, error)
            return
        self.saved += 1
        self._remember(manifest, done.began, took_s=self._options.clock() - done.began, stall_s=done.stall_s)
        announcements.published(self._options.tell, manifest)
        for command in done.commands:
            command.answer.set_result(manifest)

    def _save_failed(self, commands: Sequence[Save], error: Exception) -> None:
        self.failed += 1
        self.last_error = str(error)
        self._settled_since = True
        log.error("a checkpoint failed, and the next tries again: %s", error)
        announcements.save_failed(self._options.tell, error)
        for command in commands:
            command.answer.set_exception(error)
        if not isinstance(error, MillraceError) or not error.retriable:
            raise error

    def _remember(self, manifest: Manifest, copied_at: float, *, took_s: float = 0.0, stall_s: float = 0.0) -> None:
        self._parent = manifest.number
        self._saved_step = manifest.step
        self.last_error = None
        self.last = LastSave(manifest=manifest, at=copied_at, took_s=took_s, stall_s=stall_s)
