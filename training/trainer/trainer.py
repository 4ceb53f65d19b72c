"""The trainer: one thread that learns block after block and keeps the model and the positions one state.

Owns the learner, the ledger and the parts of a checkpoint while it runs, on the thread "trainer". One iteration:

1. Obey the commands that wait. A stop ends the iteration here, so that no further block is begun.
2. Begin a save if one is due: between two calls, weights and ledger agree on what was learnt.
3. Predict the records that have arrived, if these are scored; post the figures to the board, at most once a second.
4. Rest instead of learning while the trainer is paused, held (a flood of bad records, no topic for dead letters), or
   blocked by dead letters that wait to be sent.
5. Take the next block; wait for one no longer than a tick of the stream, so that commands are obeyed on an idle topic.
6. Learn the block in one call, all or nothing. No other thread sees a state inside of a call.
7. Settle the block in the ledger. Only now its records count as learnt or set aside.
8. Report to the meter. (6) to (8) stand in `learning.py`.

The trainer ends with a last checkpoint when the stream ends or it is asked to stop, and without one by an error. If
(5) or (6) raises because of a block, the state in memory is not used again: the trainer restores the newest durable
checkpoint and isolates the culprits (`training/recovery/step_errors.py`). It does the same where a save, or the end of
the stream, finds NaN in the state.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import assert_never

from millrace.consumers.errors import MillraceError
from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import Turn
from millrace.training.checkpoints.manifest import SaveReason
from millrace.training.commands import Command, Commands, Pause, Profile, Resume, Rewind, Save, Stop
from millrace.training.errors import StateNotFiniteError
from millrace.training.recovery.step_errors import BlockRaised
from millrace.training.stream import BlockStream, StreamEnded, StreamStart, TopicsRecreated
from millrace.training.telemetry.phases import Phase
from millrace.training.trainer import announcements
from millrace.training.trainer.dependencies import TrainerOptions, TrainerParts, TrainerReports
from millrace.training.trainer.learning import Learning, LearningParts

log = logging.getLogger(__name__)


_IDLE_WAIT_S = 0.1


class TrainerThread(ABC):
    """How a trainer begins and ends, alone or as a member of a group."""

    def __init__(
        self, learning: Learning, commands: Commands, reports: TrainerReports, options: TrainerOptions
    ) -> None:
        self._learning, self._commands, self._reports = learning, commands, reports
        self._learner, self._ledger = learning.learner, learning.ledger
        self._phases, self._clock = reports.phases, options.clock
        self._stopping: list[Stop] = []
        """The commands that have asked for the end; they are answered at the end."""
        self.error: BaseException | None = None

    def run(self) -> None:
        """Train until there is nothing more to learn or a stop is asked for; keep the error that ended it, if any."""
        try:
            self._train()
        except BaseException as error:
            self.error = error
            self._fail(error)
            if not isinstance(error, MillraceError):
                raise
        finally:
            self._learning.profiling.end()
            self._commands.refuse_all(MillraceError("the trainer has ended; start it again"))

    @abstractmethod
    def _train(self) -> None:
        """Open a stream, iterate, and `_finish`."""

    @abstractmethod
    def _close_stream(self) -> None:
        """Close the stream that is open; a second call does nothing."""

    @abstractmethod
    def _save_last(self) -> None:
        """Write the last checkpoint, and wait until it is durable."""

    @abstractmethod
    def _abandon(self, error: BaseException) -> None:
        """Give up a save that is under way, and answer who waits for one."""

    def _begin_incarnation(self, turn: Turn | None) -> StreamStart:
        """Begin an incarnation; return what its stream has to know."""
        start = StreamStart(
            incarnation=self._ledger.begin_incarnation(),
            positions=self._ledger.positions(),
            skips=self._ledger.skips,
            fingerprints=self._ledger.fingerprints(),
            turn=turn,
            learnt=self._learning.learnt,
            settled=self._ledger.tally.records,
            target=self._learning.sizes.target,
            suspects=self._learning.steps.suspects,
        )
        # The blocks of this incarnation number the partitions by these positions, sorted.
        self._learner.witness.lay(start.positions)
        log.info("incarnation %d begins", start.incarnation, extra={"partitions": len(start.positions)})
        return start

    def _finish(self) -> None:
        """End in order: close the stream, write the last checkpoint, and wait until it is durable."""
        self._phases.enter(Phase.STOPPING)
        self._close_stream()
        self._save_last()
        self._learning.post()
        self._phases.enter(Phase.ENDED)
        self._answer_stops()

    def _fail(self, error: BaseException) -> None:
        """End without a checkpoint: a restart resumes from the newest durable one."""
        self._phases.enter(Phase.FAILED, str(error))
        # An error of ours names its way out in one line; any other is a defect and needs its traceback.
        log.error("training ended: %s", error, exc_info=None if isinstance(error, MillraceError) else error)
        # Each by itself: where closing the stream fails, the commands that wait for a save are answered all the same.
        for clean_up in (self._close_stream, lambda: self._abandon(error)):
            try:
                clean_up()
            except Exception:
                log.exception("cleaning up after this error failed too")
        self._answer_stops()

    def _answer_stops(self) -> None:
        for stop in self._stopping:
            stop.answer.set_result(None)


class Trainer(TrainerThread):
    """The state of the trainer's thread."""

    def __init__(self, parts: TrainerParts, reports: TrainerReports, options: TrainerOptions) -> None:
        learning = Learning(
            LearningParts(learner=parts.learner, ledger=parts.ledger, figures=parts.saving, in_flight=parts.in_flight),
            reports,
            options,
            newest=lambda: parts.saving.newest_number,
        )
        super().__init__(learning, parts.commands, reports, options)
        self._parts, self._saving = parts, parts.saving
        self._paused = options.paused
        """Why the trainer is paused; None while it trains."""
        self._stream: BlockStream | None = None

    def _train(self) -> None:
        self._open()
        while not self._stopping and self._iterate():
            pass
        self._finish()

    def _iterate(self) -> bool:
        """Run one iteration, numbered as above; return False when there is nothing more to learn."""
        while (command := self._commands.next()) is not None:  # (1)
            self._obey(command)
        if self._stopping:
            return False
        self._learning.profiling.look()
        if (reason := self._saving.due()) is not None:  # (2)
            self._save(reason)
        self._learning.between_calls()
        self._learning.post()  # (3)
        why = self._parts.hold.reason if self._paused is None else self._paused
        if why is not None or self._parts.blocked():  # (4)
            self._rest(why)
            return True
        try:
            self._learn_next_block()  # (5) to (8)
        except StreamEnded:
            return self._goes_back_first()
        except TopicsRecreated as recreated:
            # Going back opens another stream, which comes to the same partitions again.
            if not self._goes_back_first():
                self._restart_recreated(recreated.beginnings)
            return True
        except BlockRaised as error:
            raised = error
        else:
            return True
        # Outside of the handler: an error in here would otherwise have the step's error, which may quote a record's
        # values, as its context, and a log of it would show them.
        self._recover(raised)
        return True

    def _learn_next_block(self) -> None:
        """Take the next block, if the stream has one, and learn it: steps (5) to (8)."""
        began = self._clock()
        delivery = self._learning.steps.take(self._need_stream())  # (5)
        self._reports.meter.waited(self._clock() - began)
        if delivery is None:
            self._phases.enter(Phase.IDLE)
        elif delivery.facts.incarnation == self._ledger.incarnation:
            self._phases.enter(Phase.TRAINING)
            self._learning.learn(delivery, self._need_stream())
        else:
            self._ledger.settle(delivery.facts)  # a late block of a closed stream: the ledger drops and counts it

    def _obey(self, command: Command) -> None:
        """Carry out a command, and answer it even if it ends the training by an error."""
        try:
            match command:
                case Save():
                    self._save(SaveReason.DEMAND, command)
                case Rewind():
                    self._rewind(command)
                case Pause():
                    self._paused = command.reason
                    self._parts.release_guard()
                    self._phases.enter(Phase.PAUSED, command.reason)
                    announcements.paused(self._reports.report_event, command)
                    command.answer.set_result(None)
                case Resume():
                    self._paused = None
                    self._parts.release_guard()
                    self._parts.hold.let_pass(assume_absent=command.assume_absent)
                    self._phases.enter(Phase.IDLE)
                    announcements.resumed(self._reports.report_event, command)
                    command.answer.set_result(None)
                case Profile():
                    self._learning.profiling.begin(command)
                case Stop():
                    self._stopping.append(command)
                case _:
                    assert_never(command)
        except BaseException as error:
            if not command.answer.done():
                command.answer.set_exception(error)
            raise

    def _save(self, reason: SaveReason, command: Save | None = None) -> None:
        """Begin a save; where the state is not finite, go back and find the cause instead. Commands wait until then."""
        self._phases.enter(Phase.SAVING)
        began = self._clock()
        try:
            self._saving.begin(reason, command)
        except StateNotFiniteError as error:
            self._go_back(error)
        else:
            self._reports.meter.saved(self._clock() - began)

    def _goes_back_first(self) -> bool:
        """Go back and find the cause if the state is not finite; return whether it is not."""
        try:
            self._saving.check_finite()
        except StateNotFiniteError as error:
            self._go_back(error)
            return True
        return False

    def _go_back(self, error: StateNotFiniteError) -> None:
        """Restore the newest checkpoint; whatever was learnt since is suspect of having made the state not finite."""
        self._phases.enter(Phase.RESTORING)
        self._close_stream()
        newest = self._saving.newest()
        self._recover(self._learning.steps.since(newest, self._ledger.positions(), error))

    def _rewind(self, command: Rewind) -> None:
        """Close the stream, publish the rewind as a checkpoint, restore its state, and open a new stream.

        A rewind that cannot be carried out is answered with its error, and the training continues as before.
        """
        self._phases.enter(Phase.RESTORING)
        try:
            # Everything that can refuse the rewind comes before the stream is closed.
            prepared = self._saving.prepare_rewind(command)
        except MillraceError as error:
            command.answer.set_exception(error)
            return
        self._close_stream()
        try:
            manifest = self._saving.publish_rewind(prepared)
        except MillraceError as error:
            command.answer.set_exception(error)
        else:
            self._saving.go_to(manifest, prepared.target)
            self._learning.learnt_to_ms = None
            announcements.rewound(self._reports.report_event, command, manifest)
            command.answer.set_result(manifest)
        self._open()

    def _recover(self, raised: BlockRaised) -> None:
        """Restore the newest durable checkpoint, as a restart after a crash would, but remember which block raised."""
        self._phases.enter(Phase.RESTORING)
        self._close_stream()
        newest = self._saving.newest()
        # Before the restore: the stream that is opened afterwards asks which offsets are suspect.
        self._learning.steps.remember(raised, newest)
        learnt = sum(self._ledger.learnt().values())
        self._saving.restore_newest(newest)
        # What is read again must count once against a limit on records.
        self._learning.learnt -= learnt - sum(self._ledger.learnt().values())
        self._learning.learnt_to_ms = None
        self._open()

    def _restart_recreated(self, beginnings: Mapping[Partition, int]) -> None:
        """Restart partitions whose topics were deleted and created again: their old histories end here."""
        self._phases.enter(Phase.RESTORING)
        self._close_stream()
        # A save begins only if none is under way: without this the save below would not be made.
        self._saving.end_running_save()
        for partition, beginning in beginnings.items():
            self._ledger.restart_partition(partition, beginning)
            self._saving.begun_anew(partition)
            announcements.recreated(self._reports.report_event, partition, beginning)
        self._save(SaveReason.RECREATED)
        self._open()

    def _rest(self, why: str | None) -> None:
        """Wait a moment for the next command, which may be to resume. `why` it is paused; None where it is blocked."""
        self._phases.enter(Phase.IDLE if why is None else Phase.PAUSED, why)
        if (command := self._commands.next(_IDLE_WAIT_S)) is not None:
            self._obey(command)

    def _open(self) -> None:
        """Begin an incarnation: open a stream at the ledger's positions."""
        for partition, beginning in self._parts.streams.newcomers(self._ledger.positions()).items():
            if self._ledger.join_if_new(partition, beginning):
                announcements.joined(self._reports.report_event, partition, beginning)
            self._saving.joined()
        self._stream = self._parts.streams.open(self._begin_incarnation(self._saving.turn))

    def _need_stream(self) -> BlockStream:
        assert self._stream is not None, "a stream is open while the trainer runs"
        return self._stream

    def _close_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _save_last(self) -> None:
        self._saving.finish()

    def _abandon(self, error: BaseException) -> None:
        self._saving.abandon(error)
