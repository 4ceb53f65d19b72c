"""The trainer: one thread that learns block after block and keeps model and position one state.

Owns the learner, the ledger and the parts of a checkpoint while it runs, on the thread "trainer". Between two calls it
obeys commands and saves; inside a call nobody sees anything. It never waits longer than a tick of the stream, so a
command is obeyed soon on an idle topic too. It ends when the stream ends or it is told to stop, with a last checkpoint;
or by an error, with none. What a call that raised has left behind is never used: the trainer goes back to the newest
durable checkpoint and on from there, with care.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import assert_never

from consumers.errors import MillraceError
from consumers.failpoints import failpoint
from consumers.reasons import Reason
from consumers.records import Partition
from pipelines.blocks import BlockFacts
from training.checkpoints.manifest import SaveReason
from training.commands import Command, Commands, Pause, Profile, Resume, Rewind, Save, Stop
from training.ledger.ledger import Ledger
from training.model.culprit_search import Culprits
from training.model.learner import Learner
from training.model.profiling import Profiling
from training.recovery.crash_guard import InFlight, untold
from training.recovery.scoring import sums_of
from training.recovery.step_errors import BlockRaised, Raising, RaisingOptions
from training.stream import BlockStream, Delivery, OpenStream, StreamEnded, StreamStart, TopicsRecreated
from training.telemetry.baseline import Baseline
from training.telemetry.events import Tell, unheard
from training.telemetry.live_metrics import LiveMetrics
from training.telemetry.meter import Meter
from training.telemetry.phases import Phase, Phases
from training.trainer import announcements
from training.trainer.board import Board, ModelFacts, Posting
from training.trainer.call_size import CallSize
from training.trainer.saving import Saving

log = logging.getLogger(__name__)

Newcomers = Callable[[Collection[Partition]], Mapping[Partition, int]]
OnRefused = Callable[[Partition, int, Reason], None]
_IDLE_WAIT_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Collaborators:
    """All that the trainer works with."""

    learner: Learner
    ledger: Ledger
    live: LiveMetrics
    saving: Saving
    open_stream: OpenStream
    newcomers: Newcomers
    """Partitions that are not among these, and where they begin."""
    phases: Phases
    meter: Meter
    commands: Commands
    on_refused: OnRefused
    clock: Callable[[], float]
    wall: Callable[[], float]
    board: Board = field(default_factory=Board)
    held_up: Callable[[], bool] = lambda: False
    """Whether so many letters of refused records wait that there should be no more."""
    in_flight: InFlight = untold
    batches_per_call: int = 16
    """Of a call, at most."""
    raising: RaisingOptions = field(default_factory=RaisingOptions)
    tell: Tell = unheard


class Trainer:
    """The state of the trainer's thread."""

    def __init__(self, with_: Collaborators, *, task: Baseline, paused: str | None = None) -> None:
        self._with = with_
        self._task = task
        self._paused = paused
        """Why nothing is learnt, where nothing is."""
        self._stream: BlockStream | None = None
        self._stopping: list[Stop] = []
        self._profiling = Profiling(with_.clock)
        self._sizes = CallSize(with_.batches_per_call)
        self._learnt = 0
        self._learnt_to_ms: int | None = None
        learner = with_.learner
        progress: Callable[[], None] = lambda: with_.phases.enter(Phase.TRAINING)  # noqa: E731 - said where it is used
        self._raising = Raising(learner, with_.raising, progress, lambda: with_.saving.newest_number, with_.tell)
        self._facts = ModelFacts(parameters=learner.parameters, replicas=learner.replicas, devices=learner.devices)
        self.error: BaseException | None = None

    def run(self) -> None:
        """Learn until the stream ends or a stop is asked for."""
        try:
            self._open()
            while not self._stopping and self._turn():
                pass
            self._finish()
        except BaseException as error:
            self.error = error
            self._fail(error)
            if not isinstance(error, MillraceError):
                raise
        finally:
            self._profiling.end()
            self._with.commands.refuse_all(MillraceError("the trainer has ended; start it again"))

    def _turn(self) -> bool:
        """Commands, a save that is due, one block. False when there is nothing more to learn."""
        w = self._with
        while (command := w.commands.next()) is not None:
            self._obey(command)
        if self._stopping:
            return False
        self._profiling.look()
        if (reason := w.saving.due()) is not None:
            self._save(reason)
        self._post()
        resting = Phase.PAUSED if self._paused is not None else Phase.IDLE if w.held_up() else None
        if resting is not None:
            return self._rest(resting)
        try:
            self._draw()
        except StreamEnded:
            return False
        except TopicsRecreated as recreated:
            self._begin_anew(recreated.beginnings)
            return True
        except BlockRaised as error:
            raised = error  # looked at outside, as what is raised from here on is not about the record's values
        else:
            return True
        self._fall_back(raised)
        return True

    def _draw(self) -> None:
        """What the stream has next, if anything."""
        w = self._with
        began = w.clock()
        delivery = self._raising.take(self._need_stream())
        w.meter.waited(w.clock() - began)
        if delivery is None:
            w.phases.enter(Phase.IDLE)
        elif delivery.facts.incarnation == w.ledger.incarnation:
            w.phases.enter(Phase.TRAINING)
            self._learn(delivery)
        else:
            w.ledger.settle(delivery.facts)  # drops and counts it

    def _learn(self, delivery: Delivery) -> None:
        """One call, all or nothing; its records are settled when it has returned."""
        w, facts = self._with, delivery.facts
        began = w.clock()
        refused: dict[Partition, dict[Reason, int]] = {}
        for span in facts.spans:
            if w.ledger.join_if_new(span.partition, span.start):
                announcements.joined(w.tell, span.partition, span.start)
            w.learner.witness.know(span.partition, span.index)
        failpoint("call.before")
        if facts.batches:
            with self._profiling.call(), w.in_flight(facts):
                self._need_stream().draw_ahead()
                learnt = self._raising.learn(delivery)
            self._size(facts, began)
            refused = self._set_aside(facts, learnt.culprits())
            for piece in learnt.pieces:
                w.live.add(sums_of(piece, self._task, w.learner.options.batch_size))
        failpoint("call.after")
        w.ledger.settle(facts, refused)
        w.saving.settled(facts)
        failpoint("call.settled")
        rows = facts.rows - sum(sum(counts.values()) for counts in refused.values())
        self._learnt += rows
        self._learnt_to_ms = facts.newest_ms if facts.rows else self._learnt_to_ms
        freshness = w.wall() - facts.oldest_ms / 1000 if facts.rows else None
        w.meter.called(w.clock() - began, rows, facts.batches, freshness)

    def _size(self, facts: BlockFacts, began: float) -> None:
        """Have the calls to come no longer than they should be."""
        if self._sizes.called(facts.batches, self._with.clock() - began):
            self._need_stream().aim(self._sizes.batches)

    def _post(self) -> None:
        """Tell how it stands, where that is due; working the live values out takes a moment."""
        w = self._with
        now, saving = w.clock(), w.saving
        if w.board.wants(now, saving.last):
            posting = Posting(
                live=w.live.look(),
                learning_rate=w.learner.learning_rate,
                step=saving.step,
                model=self._facts,
                last_save=saving.last,
                saves=saving.saved,
                failed_saves=saving.failed,
                save_error=saving.last_error,
                learnt_to_ms=self._learnt_to_ms,
                changes=saving.changes,
            )
            w.board.post(posting, now)

    def _set_aside(self, facts: BlockFacts, found: Mapping[Reason, Culprits]) -> dict[Partition, dict[Reason, int]]:
        partitions = {span.index: span.partition for span in facts.spans}
        refused: dict[Partition, dict[Reason, int]] = {}
        for reason, culprits in found.items():
            for index, offset in culprits.offsets:
                self._with.on_refused(partitions[index], offset, reason)
            for index, count in culprits.by_partition().items():
                refused.setdefault(partitions[index], {})[reason] = count
        return refused

    def _obey(self, command: Command) -> None:
        """Do as told. Whoever asked is answered even where this is the end of the training."""
        try:
            self._carry_out(command)
        except BaseException as error:
            if not command.answer.done():
                command.answer.set_exception(error)
            raise

    def _carry_out(self, command: Command) -> None:
        match command:
            case Save():
                self._save(SaveReason.DEMAND, command)
            case Rewind():
                self._rewind(command)
            case Pause():
                self._paused = command.reason
                self._with.phases.enter(Phase.PAUSED, command.reason)
                announcements.paused(self._with.tell, command)
                command.answer.set_result(None)
            case Resume():
                self._paused = None
                self._with.phases.enter(Phase.IDLE)
                announcements.resumed(self._with.tell, command)
                command.answer.set_result(None)
            case Profile():
                self._profiling.begin(command)
            case Stop():
                self._stopping.append(command)
            case _:
                assert_never(command)

    def _save(self, reason: SaveReason, command: Save | None = None) -> None:
        w = self._with
        w.phases.enter(Phase.SAVING)
        began = w.clock()
        w.saving.begin(reason, command)
        w.meter.saved(w.clock() - began)

    def _rewind(self, command: Rewind) -> None:
        """Another history from here on: stop what feeds, publish the order, go to its state, begin anew."""
        w = self._with
        w.phases.enter(Phase.RESTORING)
        try:
            w.saving.check(command)
        except MillraceError as error:
            command.answer.set_exception(error)
            return
        self._close_stream()
        try:
            manifest = w.saving.order_rewind(command)
        except MillraceError as error:
            command.answer.set_exception(error)
        else:
            w.saving.go_to(manifest)
            self._learnt_to_ms = None
            announcements.rewound(w.tell, command, manifest)
            command.answer.set_result(manifest)
        self._open()

    def _fall_back(self, raised: BlockRaised) -> None:
        """Do as a crash does, without one: go back to what is durable, and on from there knowing what is suspect."""
        w = self._with
        w.phases.enter(Phase.RESTORING)
        self._close_stream()
        newest = w.saving.newest()
        self._raising.remember(raised, newest)
        learnt = sum(w.ledger.learnt().values())
        w.saving.fall_back(newest)
        self._learnt -= learnt - sum(w.ledger.learnt().values())
        self._learnt_to_ms = None
        self._open()

    def _begin_anew(self, beginnings: Mapping[Partition, int]) -> None:
        """Go on with other topics under the names of those that were learnt, whose histories end here."""
        w = self._with
        w.phases.enter(Phase.RESTORING)
        self._close_stream()
        w.saving.settle()
        for partition, beginning in beginnings.items():
            w.ledger.begin_anew(partition, beginning)
            announcements.recreated(w.tell, partition, beginning)
        self._save(SaveReason.RECREATED)
        self._open()

    def _rest(self, phase: Phase) -> bool:
        self._with.phases.enter(phase, self._paused)
        if (command := self._with.commands.next(_IDLE_WAIT_S)) is not None:
            self._obey(command)
        return True

    def _open(self) -> None:
        """Begin an incarnation at the ledger's positions."""
        w = self._with
        for partition, beginning in w.newcomers(w.ledger.positions()).items():
            if w.ledger.join_if_new(partition, beginning):
                announcements.joined(w.tell, partition, beginning)
            w.saving.joined()
        incarnation = w.ledger.begin_incarnation()
        order = StreamStart(
            incarnation=incarnation,
            positions=w.ledger.positions(),
            skips=w.ledger.skips,
            fingerprints=w.ledger.fingerprints(),
            turn=w.saving.turn,
            learnt=self._learnt,
            settled=w.ledger.tally.records,
            suspects=self._raising.suspects,
        )
        w.learner.witness.lay(order.positions)
        log.info("incarnation %d begins", incarnation, extra={"partitions": len(order.positions)})
        self._stream = w.open_stream(order)
        self._stream.aim(self._sizes.batches)

    def _need_stream(self) -> BlockStream:
        assert self._stream is not None, "a stream is open while the trainer runs"
        return self._stream

    def _close_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _finish(self) -> None:
        """The ordered end: stop what feeds, the last checkpoint, wait until it is durable."""
        w = self._with
        w.phases.enter(Phase.STOPPING)
        self._close_stream()
        w.saving.finish()
        w.phases.enter(Phase.ENDED)
        for stop in self._stopping:
            stop.answer.set_result(None)

    def _fail(self, error: BaseException) -> None:
        """End without a checkpoint: the newest durable one is where a restart goes on."""
        self._with.phases.enter(Phase.FAILED, str(error))
        log.error("training ended: %s", error, exc_info=None if isinstance(error, MillraceError) else error)
        for clean in (self._close_stream, lambda: self._with.saving.abandon(error)):
            try:
                clean()
            except Exception:
                log.exception("cleaning up after that failed too")
        for stop in self._stopping:
            stop.answer.set_result(None)
