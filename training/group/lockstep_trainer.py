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

import io
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, assert_never

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from millrace.consumers.errors import MillraceError
from millrace.consumers.failpoints import failpoint
from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import BlockFacts, Delivery, Rows
from millrace.training.checkpoints.manifest import Manifest, SaveReason
from millrace.training.errors import GroupError, LettersMissingError, PassedError, PeerLostError, StateNotFiniteError
from millrace.training.group.agreement import Agreement, Flag, Order, Step, Word, agree
from millrace.training.group.exchange import LOST, Row
from millrace.training.group.meeting import Group
from millrace.training.group.membership import report_of
from millrace.training.group.one_state import Opening, deal
from millrace.training.group.own_stream import OwnStream, Sieve, Waits
from millrace.training.group.requests import Asked, Requests
from millrace.training.group.roles import GroupParts
from millrace.training.group.watched_together import WatchedTogether
from millrace.training.model.call.culprit_search import absent
from millrace.training.recovery.step_errors import BlockRaised
from millrace.training.telemetry.label_sums import LabelSums
from millrace.training.telemetry.live_metrics import LiveMetrics, Sums
from millrace.training.telemetry.phases import Phase
from millrace.training.trainer import announcements
from millrace.training.trainer.dependencies import TrainerOptions, TrainerReports
from millrace.training.trainer.learning import Learning, LearningParts
from millrace.training.trainer.trainer import TrainerThread

_FACTS = "facts"
_LABELS, _WEIGHTED = "labels", "weighted_labels"


class Scores:
    """The sums that one member has scored, until they are in the live metrics of all; what it has watched beside them.

    Losses and states of metrics are the group's at every member; records and labels each member counts for itself. So
    that a mean never mixes the two, all of it waits for the next report of all.
    """

    def __init__(self, group: Group, live: LiveMetrics, watched: WatchedTogether) -> None:
        self._group, self._live, self._watched = group, live, watched
        self._pending, self._waiting = Sums(), False

    @property
    def waiting(self) -> bool:
        """Whether there is something that no report has told; the same at all members, as calls are everybody's."""
        return self._waiting

    def add(self, sums: Sums) -> None:
        """Take in what a call of this member has scored."""
        self._pending.add(sums)
        self._waiting = True

    def report(self) -> None:
        """Add what all members have scored since the last report to the live metrics of each; called by all."""
        # As bytes: of the chief's the losses and states are used, and of all the records and labels.
        mine, buffer = self._pending, io.BytesIO()
        arrays: dict[str, npt.NDArray[Any]] = {
            **mine.labels.arrays(_LABELS),
            **mine.weighted_labels.arrays(_WEIGHTED),
            _FACTS: np.array([mine.records, mine.scored], np.int64),
        }
        np.savez(buffer, allow_pickle=False, **arrays)
        raw = self._group.exchange.gather(buffer.getvalue())
        others = [each for number, each in enumerate(raw) if number != self._group.membership.index]
        scored = _summed_up(mine, others)
        if scored.records or scored.states:
            self._live.add(scored)
        self._watched.report()
        self._begin()

    def forget(self) -> None:
        """Drop what is not reported yet, as the state goes back."""
        self._watched.forget()
        self._begin()

    def _begin(self) -> None:
        self._pending, self._waiting = Sums(), False


def _summed_up(mine: Sums, others: Iterable[bytes]) -> Sums:
    """Return what the group has scored: losses and states are the group's already, records and labels each member's."""
    for raw in others:
        with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:
            records, scored = map(int, arrays[_FACTS])
            labels = {name: arrays[name] for name in arrays.files}
        mine.add(
            Sums(
                records=records,
                scored=scored,
                states=[np.zeros_like(state) for state in mine.states],
                labels=LabelSums.of(labels, _LABELS),
                weighted_labels=LabelSums.of(labels, _WEIGHTED),
            )
        )
    return mine


class Filling:
    """Fills the blocks of one member up to the size of the group's call, with absent rows; keeps one batch to copy.

    Absent rows are copies of present ones with weight 0 and offset -1, since BatchNormalization sees them too. A member
    without a block takes those of its last block that was not full, which is the last one before its records ran out,
    or of a probe. A full block goes as it is, at no cost; the rest is compiled, as one by one the operations take 3 to
    10 ms.
    """

    def __init__(self, probe: Rows) -> None:
        """`probe` is a block of one batch."""
        self._spare = absent(probe)
        self._batch_size = int(probe.weights.shape[1])
        self._last = tf.function(_last_absent, autograph=False, reduce_retracing=True)
        self._fill = tf.function(_filled, autograph=False, reduce_retracing=True)
        self._repeat = tf.function(_repeated, autograph=False, reduce_retracing=True)

    def filled(self, delivery: Delivery | None, batches: int, empty: BlockFacts) -> Delivery:
        """Return the block with so many batches; without one, a block of absent rows alone with the facts `empty`."""
        if delivery is None or not delivery.facts.batches:
            facts = empty if delivery is None else delivery.facts
            return Delivery(self._repeat(self._spare, tf.constant(batches)), replace(facts, batches=batches))
        rows, have = delivery.rows, delivery.facts.batches
        if delivery.facts.rows < batches * self._batch_size:
            self._spare = self._last(rows)
        if have < batches:
            rows = self._fill(rows, self._spare, tf.constant(batches - have))
        return replace(delivery, rows=rows, facts=replace(delivery.facts, batches=batches))


def _last_absent(rows: Rows) -> Rows:
    """Return the last batch with all its rows absent."""
    last: Rows = tf.nest.map_structure(lambda column: column[-1:], rows)
    return absent(last)


def _filled(rows: Rows, spare: Rows, more: Any) -> Rows:
    """Return the rows with so many spare batches behind them."""
    filled: Rows = tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), rows, _repeated(spare, more))
    return filled


def _repeated(spare: Rows, batches: Any) -> Rows:
    repeated: Rows = tf.nest.map_structure(lambda column: tf.repeat(column, batches, axis=0), spare)
    return repeated


_ROW_MS = 1000
_SOON_S, _AT_THE_END_S = 2.0, 20.0
"""How long a save waits for dead letters, while all members stand still; and how long the last one does."""

_NOTHING = BlockFacts(
    number=0, incarnation=0, spans=(), batches=0, rows=0, seed=0, fetched_at=0.0, oldest_ms=0, newest_ms=0
)
"""The facts of a block without any row of this member's."""


class GroupTrainer(TrainerThread):
    """The state of the trainer's thread of one member."""

    def __init__(
        self, parts: GroupParts, reports: TrainerReports, options: TrainerOptions, *, patience_s: float | None
    ) -> None:
        """`patience_s` is how long a block that is ready waits for those of other members; None for ever."""
        state = parts.state
        self._scores = Scores(state.group, state.live, WatchedTogether(state.group, reports.watchers))
        learning = Learning(
            LearningParts(learner=state.learner, ledger=state.ledger, figures=parts.figures, in_flight=parts.in_flight),
            reports,
            options,
            newest=lambda: self._opening.number,
            score=self._scores.add,
        )
        super().__init__(learning, parts.commands, reports, options)
        self._parts, self._state, self._saving = parts, state, parts.saving
        self._membership, self._exchange = state.group.membership, state.group.exchange
        self._patience_ms = float("inf") if patience_s is None else patience_s * _ROW_MS
        self._learner.places = self._places
        self._filling = Filling(self._learner.rows_of(self._learner.probe()))
        self._own = OwnStream(self._ledger, learning.steps, Sieve(self._learner, learning.steps))
        self.requests = Requests(parts, reports, options, learning.profiling, self._stopping)
        self._calls = 0
        self._opening = Opening(deal=(), number=0, positions={})
        self._known: frozenset[Partition] = frozenset()
        self._waits = Waits(reports.meter, options.clock)
        self.words: tuple[Word, ...] = ()
        """What the members said last; the board has it for other threads."""
        self.left_by: tuple[int, ...] = ()
        """The members that were asked to stop; the others begin again and wait for them."""
        self.suspects: list[BlockRaised] = []
        """The blocks on which a step of this member raised, and whose culprits are not found yet."""

    def _train(self) -> None:
        try:
            self._open(weights=True, suspects=lambda _opening: self._parts.suspects)
            while True:
                while self._iterate():
                    pass
                self._own.close()
                self._scores.report()
                if not self._goes_back_first():
                    break
            self._finish()
        except LOST as error:
            raise _lost_in_call(error) from error
        except BlockRaised as raised:
            if isinstance(raised.__cause__, LOST):
                raise _lost_in_call(raised.__cause__) from raised
            self.suspects = [*self._learning.steps.unexplained(), raised]
            raise GroupError(f"{raised.gist}; the group begins again, and finds the culprits") from None

    def _iterate(self) -> bool:
        """Run one iteration, numbered as above; return False when the group ends."""
        self.requests.take()  # (1)
        self._learning.profiling.look()
        if self._own.poll(self._opening):  # (2)
            self._phases.enter(Phase.TRAINING)
        agreement = self._agree()  # (3)
        match agreement.step:  # (4)
            case Step.CALL:
                self._learn(agreement.batches)
            case Step.ORDER:
                self._carry_out(agreement.order)
            case Step.WAIT:
                self._phases.enter(Phase.IDLE)
                left_ms = self._patience_ms - max(word.waited_ms for word in self.words)
                self._waits.pause(self._own, self._opening, left_ms / _ROW_MS)
            case Step.REST:
                why = self.requests.why_resting(self.words)
                self._phases.enter(Phase.IDLE if why is None else Phase.PAUSED, why)
                self._waits.rest()
            case Step.END:
                self.left_by = agreement.stopping
                return False
            case _:
                assert_never(agreement.step)
        self._learning.post()
        return True

    def _agree(self) -> Agreement:
        """Say what this member is in, hear the others, and decide."""
        order = self.requests.order(self._known, scored=self._scores.waiting)
        began = self._clock()
        own = self._own
        flags = Flag.NONE
        for flag, holds in {
            Flag.EXPECTS: own.expects,
            Flag.ENDED: own.ended,
            Flag.STOP: bool(self._stopping),
            Flag.HELD: self._parts.letters.full or self._parts.hold.reason is not None,
            Flag.PAUSED: self._membership.is_chief and self.requests.paused is not None,
            Flag.REOPEN: own.has_to_reopen,
            Flag.LET_PASS: self.requests.lets_pass,
            Flag.ASSUME_ABSENT: self.requests.assumes_absent,
        }.items():
            flags |= flag if holds else Flag.NONE
        rows = self._exchange.rows(
            (
                Word(
                    call=self._calls,
                    incarnation=self._ledger.incarnation,
                    ready=own.ready_batches,
                    waited_ms=own.waited_ms,
                    flags=flags,
                    order=order,
                    learnt=self._learning.learnt,
                    lag=self._parts.streams.unlearnt(self._ledger.positions()),
                    partitions=len(self._ledger.positions()),
                    idled_ms=round(self._waits.for_others_s * _ROW_MS),
                )
            ).row()
        )
        self._waits.exchanged(self._clock() - began)
        self.words = tuple(map(Word.of, rows))
        self._reports.board.group = report_of(self._membership, self.words)
        self.requests.heard(self.words)
        return agree(self.words, self._patience_ms)

    def _learn(self, batches: int) -> None:
        """Make the call of all members: this one's block filled up, or absent rows alone."""
        self._phases.enter(Phase.TRAINING)
        held = self._own.take()
        empty = replace(_NOTHING, incarnation=self._ledger.incarnation)
        delivery, culprits = (None, None) if held is None else (held.delivery, held.culprits)
        steps = max(1, batches) * self._learner.options.passes
        with self._state.group.watch.within(self._membership.timeout_s * steps):
            self._learning.learn(self._filling.filled(delivery, batches, empty), self._own.stream, culprits)
        self._calls += 1

    def _places(self, present: int) -> tuple[int, int]:
        """Return which of the rows of all members are this one's: those after the rows of the members before it."""
        counts = self._exchange.rows(_row_of(present))[:, 0]
        return int(counts[: self._membership.index].sum()), int(counts.sum())

    def _carry_out(self, order: Order) -> None:
        asked = self.requests.agreed(order)
        match order:
            case Order.SAVE:
                self._save(asked)
            case Order.REPORT:
                self._scores.report()
            case Order.REOPEN:
                self._reopen_streams()
            case Order.GO_BACK:
                self._go_back(asked)
            case Order.MEET:
                assert self._state.join is not None
                self._state.join.meet(self._exchange)
            case Order.NONE:
                raise AssertionError("no order")
            case _:
                assert_never(order)

    def _save(self, asked: Asked | None) -> None:
        """Give the share; the chief begins the save of the whole."""
        self._phases.enter(Phase.SAVING)
        began = self._clock()
        self._scores.report()
        if self._goes_back_first():
            if self._saving is not None and asked is not None and asked.save is not None:
                self._saving.wait_for_next(asked.save)
            return
        failpoint("group.before_share")
        whole = self._state.whole(self._calls, self._known, {})
        failpoint("group.after_share")
        acknowledged = self._letters_acknowledged(_SOON_S)
        if self._saving is not None:
            assert asked is not None
            if acknowledged:
                self._saving.begin(asked.reason, asked.save, whole.parts())
            else:
                self._saving.put_off(asked.save, _not_acknowledged(_SOON_S))
        self._reports.meter.saved(self._clock() - began)

    def _letters_acknowledged(self, within_s: float) -> bool:
        """Wait for the dead letters of all members, as no manifest may be ahead of them; return whether they went."""
        letters = self._parts.letters
        mine = letters.wait_acknowledged(letters.sequence(), within_s)
        return bool(self._exchange.rows(_row_of(int(mine)))[:, 0].all())

    def _goes_back_first(self) -> bool:
        """Go back and find the cause if the state is not finite; return whether it is not.

        The weights are the same on all members, so all of them find this, or none.
        """
        if not (names := self._learner.not_finite()):
            return False
        self._phases.enter(Phase.RESTORING)
        self._own.close()
        self._scores.forget()
        mine = {str(partition): offset for partition, offset in self._ledger.positions().items()}
        told = [json.loads(raw) for raw in self._exchange.gather(json.dumps(mine).encode())]
        reached = {Partition.parse(text): offset for each in told for text, offset in each.items()}
        if self._saving is not None:
            self._saving.restore_newest(self._saving.newest())
        self._open(
            weights=True, suspects=lambda at: [self._learning.steps.since(at, reached, StateNotFiniteError(names))]
        )
        return True

    def _reopen_streams(self) -> None:
        """Gather the state at the chief, which takes new partitions and topics in, and deal the partitions anew."""
        self._phases.enter(Phase.RESTORING)
        self._own.close()
        self._scores.report()
        if self._goes_back_first():
            return  # the streams are open anew; what was created again is found again
        whole = self._state.whole(self._calls, self._known, self._own.recreated)
        if self._saving is not None:
            self._saving.end_running_save()
            self._state.take_whole(whole)
            self._saving.holds_portion = False
            accounts = self._ledger.statistics().partitions
            for partition, beginning in whole.recreated.items():
                if (account := accounts[partition]).start == account.position == beginning:
                    continue  # restarted before, when another member had found it
                self._state.restart_partition(partition, beginning)
                announcements.recreated(self._reports.report_event, partition, beginning)
            if whole.recreated:
                self._saving.begin(SaveReason.RECREATED)
        self._open(weights=False)

    def _go_back(self, asked: Asked | None) -> None:
        """Take over the state of an older checkpoint, which the chief publishes and restores.

        A rewind that cannot be published is answered with its error, and all go on from the newest checkpoint; only a
        chief whose folder another trainer has taken over ends.
        """
        self._phases.enter(Phase.RESTORING)
        self._own.close()
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
                if isinstance(error, PassedError):
                    raise
                # The other members have closed their streams, and wait for a state.
                self._saving.restore_newest(self._saving.newest())
            else:
                self._saving.go_to(manifest, asked.prepared.target)
                announcements.rewound(self._reports.report_event, asked.rewind, manifest)
        self._learning.learnt_to_ms = None
        self._open(weights=True)
        if asked is not None and asked.rewind is not None and manifest is not None:
            asked.rewind.answer.set_result(manifest)

    def _open(
        self, *, weights: bool, suspects: Callable[[Opening], Iterable[BlockRaised]] = lambda _opening: ()
    ) -> None:
        """Begin an incarnation: take over the chief's state, deal the partitions, open a stream of one's own.

        `suspects` gives what raised since the checkpoint of the opening.
        """
        self._opening = opening = self._state.spread(self._chiefs_opening(), weights=weights)
        if self._saving is not None:
            self._saving.holds_portion = True
        for raised in suspects(opening):
            self._learning.steps.remember(raised, opening)
        self._known = frozenset(partition for mine in opening.deal for partition in mine)
        start = self._begin_incarnation(None)
        failpoint("group.before_stream")
        self._own.open(self._parts.streams.open(start))

    def _chiefs_opening(self) -> Opening | None:
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
            number=saving.newest_number,
            positions={} if manifest is None else manifest.positions,
        )

    def _close_stream(self) -> None:
        self._own.close()

    def _save_last(self) -> None:
        """Make the last save of all, which is durable before any member leaves."""
        whole = self._state.whole(self._calls, self._known, {})
        if not self._letters_acknowledged(_AT_THE_END_S):
            raise _not_acknowledged(_AT_THE_END_S)
        if self._saving is not None:
            self.requests.end()
            self._saving.finish(whole.parts())
        self._exchange.rows(_row_of(self._calls))

    def _abandon(self, error: BaseException) -> None:
        if self._saving is not None:
            self._saving.abandon(error)


def _not_acknowledged(within_s: float) -> LettersMissingError:
    return LettersMissingError(
        f"the dead letters of all workers were not acknowledged within {within_s:g} s, so the checkpoint waits for the "
        "next save; is their topic there?"
    )


def _lost_in_call(error: BaseException) -> PeerLostError:
    return PeerLostError(f"another member of the group was lost in a call: {type(error).__name__}")


def _row_of(number: int) -> Row:
    return np.array([number], np.int64)
