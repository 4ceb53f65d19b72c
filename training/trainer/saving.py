"""Saving and restoring: the trainer's side of the checkpoint store.

Owns the state, the lineage (which checkpoint the state in memory comes from) and the save commands that wait. Runs on
the trainer's thread. The checkpoint writer's thread does the writing, and calls the store's `on_durable` when a
checkpoint is durable. One save is written at a time; a save that is due meanwhile waits for it.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from millrace.consumers.errors import MillraceError
from millrace.consumers.failpoints import failpoint
from millrace.consumers.records import Partition
from millrace.pipelines.shaping.shaper import Shaper
from millrace.training.checkpoints.manifest import (
    GoldenScores,
    JournalEntry,
    Manifest,
    Measured,
    SaveReason,
    SaveRequest,
)
from millrace.training.checkpoints.part_files import VerifiedCheckpoint
from millrace.training.checkpoints.parts import PartState
from millrace.training.checkpoints.policies import SaveContext, SavePolicy
from millrace.training.checkpoints.store import CheckpointStore
from millrace.training.checkpoints.writer import CheckpointWriter
from millrace.training.commands import Rewind, Save
from millrace.training.errors import CheckpointError, NotOneStateError, StateNotFiniteError
from millrace.training.history.journal_blocks import BlockRecorder
from millrace.training.history.rewind import PreparedRewind, prepare_rewind, publish_rewind
from millrace.training.history.rewind_target import verified_target
from millrace.training.ledger.ledger import Ledger, positions_of
from millrace.training.model.hyperparameters import HyperparameterOptions
from millrace.training.model.learner import Learner
from millrace.training.telemetry.events import ReportEvent, ignore_event
from millrace.training.telemetry.live_metrics import LiveMetrics
from millrace.training.telemetry.watcher import Watcher
from millrace.training.trainer import announcements
from millrace.training.trainer.save_figures import LastSave, SaveFigures
from millrace.training.trainer.state import TrainerState, release

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingOptions:
    """When to save, and what to write into each checkpoint."""

    policy: SavePolicy
    provenance: Mapping[str, Any]
    stop_timeout_s: float = 20.0
    """How long the last checkpoint may take to be durable."""
    hyperparameters: HyperparameterOptions = field(default_factory=HyperparameterOptions)
    clock: Callable[[], float]
    report_event: ReportEvent = ignore_event
    recorder: BlockRecorder | None = None
    """Collects the blocks for the journal; None keeps none."""
    shapers: Sequence[Shaper] = ()
    """What is remembered of the records by what makes rows of them."""
    watchers: Sequence[Watcher] = ()
    golden: Callable[[], GoldenScores | None] = lambda: None
    """Scores the golden set with the state of which a copy was just taken, and leaves that as it is."""
    prepare: Callable[[], Mapping[str, Any]] = dict
    """Changes the state that a beginning is published with; returns what its provenance says of that."""


@dataclass(slots=True)
class _UnderWay:
    """The save that is being written, and the commands that it answers."""

    future: "Future[Manifest]"
    began: float
    stall_s: float
    recorded: int = 0
    """The bytes of the blocks that its segment of the journal holds."""
    commands: list[Save] = field(default_factory=list)


class Saving(SaveFigures):
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
        self._ledger, self._live = ledger, live
        super().__init__(
            TrainerState(learner, ledger, live, options.hyperparameters, options.shapers, options.watchers),
            options.recorder,
        )
        self._under_way: _UnderWay | None = None
        self._waiting: list[Save] = []
        self._parent: int | None = None
        self._saved_step = 0
        self._tried_at = options.clock()
        self.holds_portion = False
        """Whether this process accounts for a portion of the partitions only, as a member of a group that learns."""

    @property
    def provenance(self) -> Mapping[str, Any]:
        """The provenance that this process writes into each checkpoint."""
        return self._options.provenance

    def begin_or_restore(self, start: Callable[[], Mapping[Partition, int]], *, start_over: bool) -> Manifest:
        """Restore the newest checkpoint, or if there is none, resolve the start positions and publish number 0.

        Returns the manifest of the one that was restored or published. `start_over` ignores what is there.
        """
        newest = None if start_over else self._store.newest()
        if newest is not None:
            failpoint("restore.before")
            self._restore(newest, self._store.load(newest.number))
            failpoint("restore.after")
            announcements.changed(self._options.report_event, self.changes, newest.number)
            return newest
        # Number 0 is durable before the first fetch: a restart must not resolve `latest` again, past newer records.
        for partition, offset in start().items():
            self._ledger.join(partition, offset)
        added = self._options.prepare()
        failpoint("start.before_zero")
        state = self._state.snapshot()
        request = self._request(SaveReason.START, state)
        request = replace(request, provenance={**request.provenance, **added})
        manifest = self._store.publish(request, state, start_over=start_over)
        release(state)
        failpoint("start.after_zero")
        self._remember(manifest, self._options.clock())
        return manifest

    def due(self) -> SaveReason | None:
        """Return why a save is due now, or None; also None while another save is being written."""
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
                # A save that failed waits for its next time too, instead of being tried again after every call.
                last_saved_at=max(self.last.at, self._tried_at),
                step=self.step,
                last_saved_step=self._saved_step,
            )
        )

    def begin(
        self, reason: SaveReason, command: Save | None = None, whole: Mapping[str, PartState] | None = None
    ) -> None:
        """Copy the state and hand it to the writer; while another save is being written, only queue the command.

        `whole` has the parts of which this process holds a portion only, where several processes learn one model.
        Raise StateNotFiniteError if the state holds NaN or infinity; the commands wait for the next save. Raise
        NotOneStateError where a portion would be saved as if it were the whole.
        """
        if whole is None and self.holds_portion:
            raise NotOneStateError("this worker accounts for a portion of the partitions only, so nothing is saved")
        self._collect()
        if command is not None:
            self._waiting.append(command)
        if self._under_way is not None:
            return
        # One save answers all commands that wait; the manifest names the first.
        first = self._waiting[0] if self._waiting else Save()
        self._tried_at = began = self._options.clock()
        state = self._state.snapshot(whole)
        blocks = b"" if self._recorder is None else self._recorder.since()
        request = self._request(reason, state, blocks, by=first.by, note=first.note)
        stall_s = self._options.clock() - began
        future = self._writer.submit(request, state)
        # Called when the files are written, or the save has failed: the next snapshot reuses the memory.
        future.add_done_callback(lambda _done: release(state))
        self._settled_since, self._saved_step = False, self.step
        self._under_way, self._waiting = _UnderWay(future, began, stall_s, len(blocks), self._waiting), []

    def wait_for_next(self, command: Save) -> None:
        """Have a command answered by the next save."""
        self._waiting.append(command)

    def put_off(self, command: Save | None, error: CheckpointError) -> None:
        """Count a save that could not begin as one that failed; the next one that is due tries again."""
        self._tried_at = self._options.clock()
        waiting, self._waiting = self._waiting, []
        self._save_failed([*waiting, *([] if command is None else [command])], error)

    def check_finite(self) -> None:
        """Raise StateNotFiniteError if something was learnt since the last save, and the state is not finite."""
        if self._settled_since:
            self._state.check_finite()

    def prepare_rewind(self, command: Rewind) -> PreparedRewind:
        """Read and hash the target, once; raise if the rewind cannot be carried out, before anything is stopped.

        What is verified here is linked and restored afterwards.
        """
        target = verified_target(self._store, command.to)
        prepared = prepare_rewind(target, command, self._ledger.orders)
        # Whether the model fits is known before the rewind is published: afterwards a restart would resume from it.
        self._state.fitting(command.to, target.parts)
        return prepared

    def publish_rewind(self, prepared: PreparedRewind) -> Manifest:
        """Publish the rewind as a checkpoint of its own; from then on a restart resumes from it."""
        # A restart resumes from the greatest number: no save of the present history may come after the rewind.
        self.end_running_save()
        # Save once more for the commands that wait: they asked for the present history, not for the rewound one. Of a
        # group's the chief holds a portion, and the others have closed their streams.
        if self._waiting and self._under_way is None and not self.holds_portion:
            try:
                self.begin(SaveReason.DEMAND)
            except StateNotFiniteError as error:
                for command in self._waiting:
                    command.answer.set_exception(error)
                self._waiting = []
            self.end_running_save()
        waiting, self._waiting = self._waiting, []
        for command in waiting:
            command.answer.set_exception(CheckpointError("a later rewind has cancelled the save; nothing was saved"))
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

        If this raises, do not use the state in memory any more.
        """
        ledger = self._store.load(rewound.number, only={self._ledger.name})
        self._restore(rewound, {**target.parts, **ledger})
        self._settled_since = False
        announcements.changed(self._options.report_event, self.changes, rewound.number)
        failpoint("rewind.after_restore")

    @property
    def newest_number(self) -> int:
        """The number of the newest checkpoint that is known to be durable."""
        return 0 if self.last is None else self.last.manifest.number

    def newest(self) -> Manifest:
        """Wait for the save under way, then return the newest durable checkpoint, as a restart would find it."""
        self.end_running_save()
        failpoint("fallback.before_restore")
        newest = self._store.newest()
        assert newest is not None, "number 0 is durable before anything is learnt"
        return newest

    def restore_newest(self, newest: Manifest) -> None:
        """Restore this checkpoint. If this raises, do not use the state in memory any more."""
        self._restore(newest, self._store.load(newest.number))
        self._settled_since = False
        failpoint("fallback.after_restore")

    def end_running_save(self) -> bool:
        """Wait for the save that is under way, if any, or cancel it; a failure is logged and reported.

        Return whether another one can begin: it cannot while the disk hangs.
        """
        if self._under_way is not None:
            self._writer.cancel_or_settle(self._options.stop_timeout_s)
            # One that was cancelled publishes nothing, and writes on up to its gate: until then none can begin.
            wait([self._under_way.future], self._options.stop_timeout_s)
            self._collect()
        return self._under_way is None

    def finish(self, whole: Mapping[str, PartState] | None = None) -> None:
        """Write the last checkpoint and wait until it is durable; CheckpointError if it is not durable in time."""
        if not self.end_running_save():
            raise CheckpointError(
                f"the last checkpoint was not begun, as the one before was still being written "
                f"{self._options.stop_timeout_s:g} s after it was cancelled; a restart resumes from an earlier one: "
                "give stop.grace more time, or check the disk"
            )
        if self._settled_since or self._waiting:
            self.begin(SaveReason.STOP, whole=whole)
            under_way = self._under_way
            assert under_way is not None
            wait([under_way.future], self._options.stop_timeout_s)
            if not under_way.future.done():
                raise CheckpointError(
                    f"the last checkpoint was not durable within {self._options.stop_timeout_s:g} s and is abandoned; "
                    "a restart resumes from the one before it: give stop.grace more time, or check the disk"
                )
            self._collect()
            # `_collect` only logs a failure that the next save can repair; after the last one there is none.
            under_way.future.result()
        self._writer.close(self._options.stop_timeout_s)

    def abandon(self, error: BaseException) -> None:
        """End without a checkpoint, and answer the save commands that still wait with an error."""
        self._writer.close(self._options.stop_timeout_s)
        with suppress(Exception):  # only the error that ended the training is reported
            self._collect()
        unanswered = [] if self._under_way is None else self._under_way.commands
        for command in (*unanswered, *self._waiting):
            if not command.answer.done():
                command.answer.set_exception(CheckpointError(f"nothing was saved, as the training has ended: {error}"))

    def _restore(self, manifest: Manifest, parts: Mapping[str, PartState]) -> None:
        if self._recorder is not None:
            self._recorder.clear()
        self._state.restore(self._state.fitting(manifest.number, parts))
        self.holds_portion = False
        self._remember(manifest, self._options.clock())

    def _request(
        self,
        reason: SaveReason,
        state: Mapping[str, PartState],
        blocks: bytes = b"",
        by: str | None = None,
        note: str | None = None,
    ) -> SaveRequest:
        live, ledger = self._live.look(), state[self._ledger.name].facts
        return SaveRequest(
            journal=None if self._recorder is None else lambda: JournalEntry(ledger=ledger, blocks=blocks),
            reason=reason,
            parent=self._parent,
            step=self.step,
            incarnation=self._ledger.incarnation,
            positions=positions_of(state[self._ledger.name]),
            ordered_by=by,
            note=note,
            provenance=self._options.provenance,
            metrics=live.values,
            measured=Measured(
                watched=live.watch.name,
                higher_is_better=live.watch.higher_is_better,
                records=live.records,
                window_s=live.window_s,
                baseline=live.baseline,
            ),
            golden=self._options.golden(),
        )

    def _collect(self) -> None:
        """Take in the outcome of the save under way, if it has ended, and answer its commands."""
        if self._under_way is None or not self._under_way.future.done():
            return
        done, self._under_way = self._under_way, None
        try:
            manifest = done.future.result()
        except Exception as error:  # noqa: BLE001 - raised again there, unless the next save may succeed
            self._save_failed(done.commands, error)
            return
        self.saved += 1
        if self._recorder is not None:
            self._recorder.drop(done.recorded)
        self._remember(manifest, done.began, took_s=self._options.clock() - done.began, stall_s=done.stall_s)
        announcements.published(self._options.report_event, manifest)
        for command in done.commands:
            command.answer.set_result(manifest)

    def _save_failed(self, commands: Sequence[Save], error: Exception) -> None:
        self.failed += 1
        self.last_error = error
        # What this save held is not saved yet, even if nothing more is settled.
        self._settled_since = True
        log.error("a checkpoint failed, and the next save tries again: %s", error)
        announcements.save_failed(self._options.report_event, error)
        for command in commands:
            command.answer.set_exception(error)
        if not isinstance(error, MillraceError) or not error.retriable:
            raise error

    def _remember(self, manifest: Manifest, copied_at: float, *, took_s: float = 0.0, stall_s: float = 0.0) -> None:
        self._parent = manifest.number
        self._saved_step = manifest.step
        self.last_error = None
        self.last = LastSave(manifest=manifest, at=copied_at, took_s=took_s, stall_s=stall_s)
