"""The trainer of one member of a group: the loop of `training/trainer/trainer.py`, in step with those of all others.

One iteration:

1. Obey the commands that wait. What concerns the group becomes the chief's order; members that do not lead only stop.
2. Look for a block, without waiting for one.
3. Exchange words with all members, and decide by these alone (`training/group/agreement.py`).
4. Carry out what was decided: one call of all, each with its own block; a save, a report, new streams; or a pause.
5. Settle the block in this member's ledger.

The chief holds the folder. It restores and publishes the one state, which the members give in shares and take over by
broadcasts. Whatever ends one member, or a collective, ends the loop of all: each begins again in a new process, from
the newest durable checkpoint.
"""

import logging
import time
from dataclasses import replace
from typing import assert_never

import numpy as np

from consumers.errors import MillraceError
from consumers.failpoints import failpoint
from consumers.records import Partition
from pipelines.blocks import BlockFacts, Delivery
from training.checkpoints.manifest import Manifest, SaveReason
from training.errors import GroupError, PeerLostError, StateNotFiniteError
from training.group.agreement import Agreement, Flag, Order, Step, Word, agree
from training.group.deal import deal
from training.group.exchange import LOST, Row
from training.group.filling import Filling
from training.group.one_state import Opening
from training.group.requests import Asked, Requests
from training.group.roles import GroupParts, PolledStream
from training.group.scores import Scores
from training.recovery.step_errors import BlockRaised
from training.stream import StreamEnded, StreamStart, TopicsRecreated
from training.telemetry.phases import Phase
from training.trainer import announcements
from training.trainer.dependencies import TrainerOptions, TrainerReports
from training.trainer.learning import Learning, LearningParts

log = logging.getLogger(__name__)

_SHORTEST_WAIT_S, _LONGEST_WAIT_S = 0.001, 0.02
"""Between two exchanges while nothing is ready: the first one, which doubles up to the second."""
_LOOK_EVERY_S = 5.0
"""How often the chief looks for new partitions."""
_ROW_MS = 1000


_NOTHING = BlockFacts(
    number=0, incarnation=0, spans=(), batches=0, rows=0, seed=0, fetched_at=0.0, oldest_ms=0, newest_ms=0
)
"""The facts of a block without any row of this member's."""


class GroupTrainer:
    """The state of the trainer's thread of one member."""

    def __init__(
        self, parts: GroupParts, reports: TrainerReports, options: TrainerOptions, *, patience_s: float | None
    ) -> None:
        """`patience_s` is how long a block that is ready waits for those of other members; None for ever."""
        self._parts, self._reports, self._options = parts, reports, options
        self._state, self._figures, self._saving = parts.state, parts.figures, parts.saving
        self._ledger, self._membership = parts.state.ledger, parts.state.group.membership
        self._exchange = parts.state.group.exchange
        self._phases, self._clock = reports.phases, options.clock
        self._patience_ms = float("inf") if patience_s is None else patience_s * _ROW_MS
        self._scores = Scores(parts.state.group, parts.state.live)
        self._learning = Learning(
            LearningParts(
                learner=parts.state.learner,
                ledger=self._ledger,
                figures=parts.figures,
                in_flight=parts.in_flight,
            ),
            reports,
            options,
            newest=lambda: self._newest,
            score=self._scores.add,
        )
        parts.state.learner.places = self._places
        self._filling = Filling(parts.state.learner.rows_of(parts.state.learner.probe()))
        self._stream: PolledStream | None = None
        self._held: Delivery | None = None
        self._held_since = 0.0
        self._ended = False
        self._reopen = False
        self._recreated: dict[Partition, int] = {}
        self._requests = Requests(parts, reports, options, self._learning.profiling)
        self._calls = 0
        self._newest = 0
        self._known: frozenset[Partition] = frozenset()
        self._quiet = 0
        self._idled_s = 0.0
        self.words: tuple[Word, ...] = ()
        """What the members said last, for other threads to read."""
        self.left_by: tuple[int, ...] = ()
        """The members that were asked to stop; the others begin again and wait for them."""
        self.error: BaseException | None = None

    def run(self) -> None:
        """Iterate until the group ends, then save together; keep the error that ended it, if any."""
        try:
            try:
                self._open(weights=True)
                while self._iterate():
                    pass
                self._finish()
            except LOST as error:
                raise _lost_in_call(error) from error
            except BlockRaised as raised:
                if isinstance(raised.__cause__, LOST):
                    raise _lost_in_call(raised.__cause__) from raised
                raise GroupError(f"{raised.gist}; the group begins again") from raised
        except BaseException as error:
            self.error = error
            self._fail(error)
            if not isinstance(error, MillraceError):
                raise
        finally:
            self._learning.profiling.end()
            self._parts.commands.refuse_all(MillraceError("the trainer has ended; start it again"))

    def _iterate(self) -> bool:
        """Run one iteration, numbered as above; return False when the group ends."""
        self._requests.take()  # (1)
        self._learning.profiling.look()
        self._poll()  # (2)
        agreement = self._agree()  # (3)
        match agreement.step:  # (4)
            case Step.CALL:
                self._quiet = 0
                self._learn(agreement.batches)
            case Step.ORDER:
                self._carry_out(agreement.order)
            case Step.WAIT:
                self._phases.enter(Phase.IDLE)
                self._wait()
            case Step.REST:
                paused = any(Flag.PAUSED in word.flags for word in self.words)
                why = (self._requests.paused or "the chief is paused") if paused else None
                self._phases.enter(Phase.PAUSED if paused else Phase.IDLE, why)
                self._wait()
            case Step.END:
                self.left_by = agreement.stopping
                return False
            case _:
                assert_never(agreement.step)
        self._learning.post()
        return True

    def _wait(self) -> None:
        time.sleep(min(_SHORTEST_WAIT_S * 2**self._quiet, _LONGEST_WAIT_S))
        self._quiet = min(self._quiet + 1, 10)

    def _agree(self) -> Agreement:
        """Say what this member is in, hear the others, and decide."""
        order = self._requests.order(self._known)
        began = self._clock()
        rows = self._exchange.rows(self._word(order).row())
        waited = self._clock() - began
        self._idled_s += waited
        self._reports.meter.waited(waited)
        self.words = tuple(map(Word.of, rows))
        return agree(self.words, self._patience_ms)

    def _word(self, order: Order) -> Word:
        flags = Flag.NONE
        for flag, holds in {
            Flag.EXPECTS: self._held is None and not self._ended and self._need_stream().expects,
            Flag.ENDED: self._ended,
            Flag.STOP: bool(self._requests.stopping),
            Flag.HELD: self._parts.letters.full,
            Flag.PAUSED: self._membership.is_chief and self._requests.paused is not None,
            Flag.REOPEN: self._reopen,
        }.items():
            flags |= flag if holds else Flag.NONE
        positions = self._ledger.positions()
        held = self._held
        return Word(
            call=self._calls,
            incarnation=self._ledger.incarnation,
            ready=0 if held is None else max(1, held.facts.batches),
            waited_ms=0 if held is None else round((self._clock() - self._held_since) * _ROW_MS),
            flags=flags,
            order=order,
            learnt=self._learning.learnt,
            lag=sum(self._parts.streams.lags().values()),
            partitions=len(positions),
            idled_ms=round(self._idled_s * _ROW_MS),
        )

    def _poll(self) -> None:
        """Take the next block if it is there."""
        stream = self._need_stream()
        if self._held is not None or self._ended or self._reopen:
            return
        stream.draw_ahead()
        if not stream.ready:
            return
        try:
            delivery = self._learning.steps.take(stream)
        except StreamEnded:
            self._ended = True
            return
        except TopicsRecreated as recreated:
            self._recreated = dict(recreated.beginnings)
            self._reopen = True
            return
        if delivery is not None and delivery.facts.incarnation != self._ledger.incarnation:
            self._ledger.settle(delivery.facts)  # a late block: the ledger drops and counts it
        elif delivery is not None:
            self._held, self._held_since = delivery, self._clock()

    def _learn(self, batches: int) -> None:
        """Make the call of all members: this one's block filled up, or absent rows alone."""
        self._phases.enter(Phase.TRAINING)
        held, self._held = self._held, None
        empty = replace(_NOTHING, incarnation=self._ledger.incarnation)
        self._learning.learn(self._filling.filled(held, batches, empty), self._need_stream())
        self._calls += 1

    def _places(self, present: int) -> tuple[int, int]:
        """Return which of the rows of all members are this one's: those after the rows of the members before it."""
        counts = self._exchange.rows(_row_of(present))[:, 0]
        return int(counts[: self._membership.index].sum()), int(counts.sum())

    def _carry_out(self, order: Order) -> None:
        asked = self._requests.agreed(order)
        match order:
            case Order.SAVE:
                self._save(asked)
            case Order.REPORT:
                self._scores.report()
            case Order.REOPEN:
                self._reopen_streams()
            case Order.GO_BACK:
                self._go_back(asked)
            case Order.NONE:
                raise AssertionError("no order")
            case _:
                assert_never(order)

    def _save(self, asked: Asked | None) -> None:
        """Give the share; the chief begins the save of the whole."""
        self._phases.enter(Phase.SAVING)
        began = self._clock()
        self._scores.report()
        # The weights are the same on all members, so all of them find that they are not finite, or none.
        self._check_finite()
        failpoint("group.before_share")
        whole = self._state.whole(self._calls, self._known, {})
        failpoint("group.after_share")
        self._await_letters()
        if self._saving is not None:
            assert asked is not None
            self._saving.begin(asked.reason, asked.save, whole.parts())
        self._reports.meter.saved(self._clock() - began)

    def _await_letters(self) -> None:
        """Wait until the dead letters of all members are acknowledged, so that no manifest is ahead of them."""
        letters = self._parts.letters
        acknowledged = letters.wait_acknowledged(letters.sequence(), self._membership.timeout_s / 2)
        said = self._exchange.rows(_row_of(int(acknowledged)))[:, 0]
        if not said.all():
            raise GroupError("dead letters were not acknowledged in time; is their topic there?")

    def _check_finite(self) -> None:
        if names := self._state.learner.not_finite():
            raise StateNotFiniteError(names)

    def _reopen_streams(self) -> None:
        """Gather the state at the chief, which takes new partitions and topics in, and deal the partitions anew."""
        self._phases.enter(Phase.RESTORING)
        self._close_stream()
        self._scores.report()
        whole = self._state.whole(self._calls, self._known, self._recreated)
        if self._saving is not None:
            self._saving.end_running_save()
            self._state.take_whole(whole)
            for partition, beginning in whole.recreated.items():
                self._ledger.restart_partition(partition, beginning)
                announcements.recreated(self._reports.report_event, partition, beginning)
            if whole.recreated:
                self._saving.begin(SaveReason.RECREATED)
        self._open(weights=False)

    def _go_back(self, asked: Asked | None) -> None:
        """Take over the state of an older checkpoint, which the chief publishes and restores."""
        self._phases.enter(Phase.RESTORING)
        self._close_stream()
        self._scores.forget()
        manifest: Manifest | None = None
        if self._saving is not None:
            assert asked is not None
            assert asked.rewind is not None
            assert asked.prepared is not None
            try:
                manifest = self._saving.publish_rewind(asked.prepared)
            except MillraceError as error:
                asked.rewind.answer.set_exception(error)
                raise
            self._saving.go_to(manifest, asked.prepared.target)
            announcements.rewound(self._reports.report_event, asked.rewind, manifest)
        self._learning.learnt_to_ms = None
        self._open(weights=True)
        if asked is not None and asked.rewind is not None and manifest is not None:
            asked.rewind.answer.set_result(manifest)

    def _open(self, *, weights: bool) -> None:
        """Begin an incarnation: take over the chief's state, deal the partitions, open a stream of one's own."""
        opening = self._state.spread(self._opening(), weights=weights)
        self._newest = opening.newest
        self._known = frozenset(partition for mine in opening.deal for partition in mine)
        self._held, self._ended, self._reopen, self._recreated = None, False, False, {}
        incarnation = self._ledger.begin_incarnation()
        positions = self._ledger.positions()
        self._state.learner.witness.lay(positions)
        start = StreamStart(
            incarnation=incarnation,
            positions=positions,
            skips=self._ledger.skips,
            fingerprints=self._ledger.fingerprints(),
            turn=None,
            learnt=self._learning.learnt,
            settled=self._ledger.tally.records,
            target=self._learning.sizes.target,
            suspects=self._learning.steps.suspects,
        )
        log.info("incarnation %d begins", incarnation, extra={"partitions": len(positions)})
        failpoint("group.before_stream")
        self._stream = self._parts.streams.open(start)

    def _opening(self) -> Opening | None:
        """Return the chief's opening: with new partitions taken in, and all of them dealt by how far each is behind."""
        saving = self._saving
        if saving is None:
            return None
        for partition, beginning in self._parts.streams.newcomers(self._ledger.positions()).items():
            if self._ledger.join_if_new(partition, beginning):
                announcements.joined(self._reports.report_event, partition, beginning)
            saving.joined()
        manifest = saving.last.manifest if saving.last is not None else None
        return Opening(
            deal=deal(self._parts.streams.backlog(self._ledger.positions()), self._membership.workers),
            newest=saving.newest_number,
            positions={} if manifest is None else {Partition.parse(p): at for p, at in manifest.positions.items()},
        )

    def _need_stream(self) -> PolledStream:
        assert self._stream is not None, "a stream is open while the trainer runs"
        return self._stream

    def _close_stream(self) -> None:
        self._held = None
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _finish(self) -> None:
        """End in order: the last save of all, durable before any member leaves."""
        self._phases.enter(Phase.STOPPING)
        self._close_stream()
        self._scores.report()
        self._check_finite()
        whole = self._state.whole(self._calls, self._known, {})
        self._await_letters()
        if self._saving is not None:
            self._requests.end()
            self._saving.finish(whole.parts())
        self._exchange.rows(_row_of(self._calls))
        self._learning.post()
        self._phases.enter(Phase.ENDED)
        self._requests.stopped()

    def _fail(self, error: BaseException) -> None:
        """End without a checkpoint: the group resumes from the newest durable one."""
        self._phases.enter(Phase.FAILED, str(error))
        log.error("training ended: %s", error, exc_info=None if isinstance(error, MillraceError) else error)
        for clean_up in (self._close_stream, lambda: None if self._saving is None else self._saving.abandon(error)):
            try:
                clean_up()
            except Exception:
                log.exception("cleaning up after this error failed too")
        self._requests.stopped()


def _lost_in_call(error: BaseException) -> PeerLostError:
    return PeerLostError(f"another member of the group was lost in a call: {type(error).__name__}")


def _row_of(number: int) -> Row:
    return np.array([number], np.int64)
