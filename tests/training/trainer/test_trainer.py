"""The trainer: obeys between calls, keeps model and positions one state, and ends with a checkpoint or by an error."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from millrace.consumers.errors import MillraceError
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import Span
from millrace.training.checkpoints.manifest import Manifest, SaveReason
from millrace.training.checkpoints.policies import EverySeconds
from millrace.training.commands import Command, Pause, Resume, Rewind, Save, Stop
from millrace.training.errors import CheckpointError, CorruptError, MissingCheckpointError, OtherModelError, StepError
from millrace.training.ledger.interventions import Skip
from millrace.training.ledger.offset_checksum import Evidence
from millrace.training.recovery.crash_guard import CrashGuard, CrashLoop
from millrace.training.recovery.step_errors import OnStepError, StepErrorOptions
from millrace.training.telemetry.phases import Phase
from tests.training.conftest import BATCH, Fragile, largest_difference, mlp, state_of
from tests.training.trainer_rig import P0, P1, SHARE, Clock, Run, Topic, TopicStream, delivery, running

pytestmark = pytest.mark.tensorflow
HALT = StepErrorOptions(policy=OnStepError.HALT)


@pytest.fixture
def topic() -> Topic:
    return Topic(P0)


@pytest.fixture
def run(tmp_path: Path, topic: Topic) -> Iterator[Run]:
    """Start a trainer on one empty partition that saves only by command."""
    with running(tmp_path, topic) as started:
        yield started


def _witnessed(run: Run, number: int) -> dict[str, Any]:
    return dict(run.store.load(number, only={"witness"})["witness"].facts)


def _evidence(offsets: Any) -> list[int]:
    evidence = Evidence.of(offsets)
    return [evidence.count, evidence.total, evidence.mixed]


def _answer(sent: "Future[Any]") -> Any:
    return sent.result(20)


def _fragile() -> Any:
    return mlp(model=Fragile)


# Saving


def test_a_save_command_is_answered_when_model_and_position_are_durable_as_one(run: Run) -> None:
    run.topic.produce(3 * SHARE)
    run.reaches(3 * SHARE)
    manifest = run.ask(Save(by="tester", note="before lunch"))
    assert (manifest.reason, manifest.ordered_by, manifest.note) == (SaveReason.DEMAND, "tester", "before lunch")
    assert manifest.positions == {"clicks:0": 3 * SHARE}
    assert manifest.step == 6
    assert run.store.verify(manifest.number).verified
    assert _witnessed(run, manifest.number) == {"clicks:0": _evidence(range(3 * SHARE))}


def test_a_save_in_the_middle_of_a_backlog_lies_between_two_calls(run: Run) -> None:
    run.topic.produce(100 * SHARE)
    manifest = run.ask(Save())
    assert manifest.positions["clicks:0"] % SHARE == 0
    assert _witnessed(run, manifest.number) == {"clicks:0": _evidence(range(manifest.positions["clicks:0"]))}


def test_a_second_save_command_waits_for_the_first_and_gets_its_own_child(run: Run) -> None:
    first, second = run.commands.send(Save()), run.commands.send(Save())
    assert _answer(second).parent == _answer(first).number


def test_number_0_holds_the_untrained_model_and_the_resolved_start(run: Run) -> None:
    assert (run.begun_at.number, run.begun_at.parent, run.begun_at.reason) == (0, None, SaveReason.START)
    assert run.begun_at.positions == {"clicks:0": 0}


def test_bad_records_alone_move_the_ledger_without_a_call_and_are_saved_in_time(tmp_path: Path, topic: Topic) -> None:
    clock = Clock()
    topic.bad = {(P0, offset) for offset in range(5)}
    with running(tmp_path, topic, policy=EverySeconds(60), clock=clock) as run:
        topic.produce(5)
        run.reaches(5)
        assert run.saving.step == 0
        clock.now += 61
        run.sees(lambda: run.durable[-1].positions == {"clicks:0": 5})
        assert run.durable[-1].reason == SaveReason.INTERVAL
        statistics = run.ledger.statistics().partitions[P0]
        assert (statistics.learnt, statistics.set_aside) == (0, {Reason.MALFORMED: 5})


def test_an_idle_trainer_is_not_saved_again(tmp_path: Path, topic: Topic) -> None:
    clock = Clock()
    with running(tmp_path, topic, policy=EverySeconds(60), clock=clock) as run:
        topic.produce(SHARE)
        run.reaches(SHARE)
        clock.now += 61
        run.sees(lambda: len(run.durable) == 2)
        clock.now += 1000
        for _ in range(5):  # iterations in which a save might be due
            run.ask(Pause())
            run.ask(Resume())
        assert run.ask(Save()).number == 2, "nothing was saved between the two"


def test_a_save_that_fails_answers_its_command_and_training_continues(tmp_path: Path, topic: Topic) -> None:
    failing = [CheckpointError("no room")]

    def before_manifest(order: Any) -> None:
        if order.parent is not None and failing:
            raise failing.pop()

    with running(tmp_path, topic, before_manifest=before_manifest) as run:
        topic.produce(SHARE)
        run.reaches(SHARE)
        with pytest.raises(CheckpointError, match="no room"):
            run.ask(Save())
        run.sees(lambda: run.board.latest is not None and run.board.latest.save_error == "no room")
        topic.produce(SHARE)
        run.reaches(2 * SHARE)
        manifest = run.ask(Save())
        assert (manifest.parent, manifest.positions) == (0, {"clicks:0": 2 * SHARE})
        assert (run.saving.failed, run.saving.last_error) == (1, None)


def test_a_failed_save_is_tried_again_when_the_next_is_due_not_after_every_call(tmp_path: Path, topic: Topic) -> None:
    clock = Clock()
    tries: list[float] = []

    def before_manifest(order: Any) -> None:
        if order.parent is not None:
            tries.append(clock.now)
            if len(tries) == 1:
                raise CheckpointError("no room")

    with running(tmp_path, topic, policy=EverySeconds(60), clock=clock, before_manifest=before_manifest) as run:
        topic.produce(SHARE)
        run.reaches(SHARE)
        clock.now += 61
        run.sees(lambda: run.saving.failed == 1)
        for blocks in range(2, 6):
            topic.produce(SHARE)
            run.reaches(blocks * SHARE)
        assert len(tries) == 1
        clock.now += 61
        run.sees(lambda: len(run.durable) == 2)
        assert tries == [1061, 1122]


def test_a_save_that_is_put_off_answers_who_asked_for_it_and_the_next_one_is_made(tmp_path: Path, topic: Topic) -> None:
    clock = Clock()
    with running(tmp_path, topic, policy=EverySeconds(60), clock=clock) as run:
        topic.produce(SHARE)
        run.reaches(SHARE)
        run.ask(Pause())  # its thread then begins no save meanwhile
        command = Save()
        run.saving.put_off(command, CheckpointError("no letters"))
        with pytest.raises(CheckpointError, match="no letters"):
            command.answer.result(0)
        assert (run.saving.failed, str(run.saving.last_error)) == (1, "no letters")
        clock.now += 61
        run.sees(lambda: len(run.durable) == 2)
        run.sees(lambda: run.saving.last_error is None)


def test_a_failed_last_save_ends_the_training_by_an_error_and_answers_the_stop(tmp_path: Path, topic: Topic) -> None:
    def before_manifest(order: Any) -> None:
        if order.parent is not None:
            raise CheckpointError("no room")

    with running(tmp_path, topic, before_manifest=before_manifest) as run:
        topic.produce(SHARE)
        run.reaches(SHARE)
        run.stop()
        assert run.phases.phase is Phase.FAILED
        assert isinstance(run.trainer.error, CheckpointError)


# Rewinding


def test_a_rewind_restores_weights_positions_window_and_witness(run: Run) -> None:
    run.topic.produce(2 * SHARE)
    run.reaches(2 * SHARE)
    saved = run.ask(Save())
    then = state_of(run.learner)
    cumulative = run.live.look().cumulative
    run.topic.produce(2 * SHARE)
    run.reaches(4 * SHARE)
    run.ask(Pause())
    assert largest_difference(then, state_of(run.learner)) > 0
    rewound = run.ask(Rewind(to=saved.number, by="tester"))
    assert (rewound.parent, rewound.reason, rewound.ordered_by) == (saved.number, SaveReason.REWIND, "tester")
    assert largest_difference(then, state_of(run.learner)) == 0
    assert run.ledger.positions() == {P0: 2 * SHARE}
    assert run.learner.witness.testimonies() == {P0: Evidence.of(range(2 * SHARE))}
    assert run.saving.step == saved.step
    live = run.live.look()
    assert (live.records, live.cumulative_records, live.cumulative) == (0, 2 * SHARE, cumulative)


@pytest.mark.parametrize("command", [Pause, Resume])
def test_a_person_who_pauses_or_resumes_releases_the_crash_guard(
    tmp_path: Path, topic: Topic, command: type[Pause | Resume]
) -> None:
    guard = CrashGuard(loop=CrashLoop(starts=3, number=0, suspects={}))
    assert guard.holds
    with running(tmp_path, topic, paused=True, release_guard=guard.release) as run:
        run.ask(Rewind(to=0))
        assert guard.holds
        run.ask(command())
        assert not guard.holds


def test_what_follows_a_rewind_is_learnt_again_to_the_same_bits(run: Run) -> None:
    run.topic.produce(2 * SHARE)
    run.reaches(2 * SHARE)
    run.topic.produce(2 * SHARE)
    run.reaches(4 * SHARE)
    undisturbed = state_of(run.learner)
    run.ask(Rewind(to=0))
    run.reaches(4 * SHARE)
    run.ask(Pause())
    assert largest_difference(undisturbed, state_of(run.learner)) == 0
    assert [stream.closed for stream in run.streams] == [True, False]
    assert run.streams[1].start.incarnation > run.streams[0].start.incarnation


def test_a_restart_after_a_rewind_resumes_from_the_rewind(tmp_path: Path, run: Run) -> None:
    run.topic.produce(SHARE)
    run.reaches(SHARE)
    run.ask(Save())
    run.ask(Pause())
    rewound = run.ask(Rewind(to=0))
    run.stop()
    assert run.store.newest() == rewound, "nothing was settled since, so the stop had nothing to save"
    run.leave()
    with running(tmp_path, run.topic, paused=True) as again:
        assert again.begun_at.number == rewound.number
        assert again.ledger.positions() == {P0: 0}


def test_a_skipped_range_is_not_learnt_and_is_counted_under_the_name_of_its_skip(run: Run) -> None:
    run.topic.produce(2 * SHARE)
    run.reaches(2 * SHARE)
    skip = Skip(order="rewind-1", partition=P0, start=3, end=SHARE + 5, reason="a bad batch")
    rewound = run.ask(Rewind(to=0, skips=[skip]))
    assert rewound.reason == SaveReason.SKIP
    run.reaches(2 * SHARE)
    run.ask(Pause())
    statistics = run.ledger.statistics()
    assert statistics.partitions[P0].skipped == {"rewind-1": SHARE + 2}
    assert statistics.balanced
    assert run.learner.witness.testimonies() == {P0: Evidence.of([0, 1, 2, *range(SHARE + 5, 2 * SHARE)])}


def test_while_dead_letters_block_nothing_is_learnt_and_commands_are_obeyed(tmp_path: Path, topic: Topic) -> None:
    full = threading.Event()
    full.set()
    with running(tmp_path, topic, blocked=full.is_set) as run:
        topic.produce(SHARE)
        assert run.ask(Save()).number == 1
        assert run.settled(0)
        run.sees(lambda: run.phases.snapshot().phase is Phase.IDLE)
        full.clear()
        run.reaches(SHARE)


class Held:
    """A hold that a person may let pass."""

    def __init__(self) -> None:
        self.reason: str | None = "too many bad records"

    def let_pass(self, *, assume_absent: bool = False) -> None:
        assert not assume_absent
        self.reason = None


def test_while_it_is_held_nothing_is_learnt_until_the_hold_ends_or_is_let_pass(tmp_path: Path, topic: Topic) -> None:
    hold = Held()
    with running(tmp_path, topic, hold=hold) as run:
        topic.produce(SHARE)
        run.sees(lambda: run.phases.snapshot().phase is Phase.PAUSED)
        assert run.phases.snapshot().reason == "too many bad records"
        assert run.ask(Save()).number == 1
        assert run.settled(0)
        hold.reason = None
        run.reaches(SHARE)
        hold.reason = "no topic for dead letters"
        run.sees(lambda: run.phases.snapshot().reason == hold.reason)
        topic.produce(SHARE)
        run.ask(Pause(reason="asked to"))
        run.sees(lambda: run.phases.snapshot().reason == "asked to")
        assert hold.reason == "no topic for dead letters", "a pause lets nothing pass"
        run.ask(Resume())
        run.reaches(2 * SHARE)


def test_a_rewind_to_a_missing_checkpoint_is_refused_and_changes_nothing(run: Run) -> None:
    run.topic.produce(SHARE)
    run.reaches(SHARE)
    with pytest.raises(MissingCheckpointError, match="17"):
        run.ask(Rewind(to=17))
    run.topic.produce(SHARE)
    run.reaches(2 * SHARE)
    assert len(run.streams) == 1
    assert not run.streams[0].closed


def test_a_rewind_to_another_model_is_refused_before_anything_is_touched(tmp_path: Path, topic: Topic) -> None:
    with running(tmp_path, topic):
        pass

    def build() -> Any:
        model = mlp()
        model.compile(optimizer=keras.optimizers.SGD(), loss="binary_crossentropy")
        return model

    with running(tmp_path, topic, build=build, start_over=True) as run:
        topic.produce(SHARE)
        run.reaches(SHARE)
        run.ask(Pause())
        before = state_of(run.learner)
        with pytest.raises(OtherModelError, match="optimizer"):
            run.ask(Rewind(to=0))
        assert largest_difference(before, state_of(run.learner)) == 0
        assert [manifest.number for manifest in run.durable] == [1]
        assert not run.streams[0].closed


# Pausing, stopping


def test_a_paused_trainer_learns_nothing_and_still_obeys(run: Run) -> None:
    run.ask(Pause(reason="lunch"))
    run.sees(lambda: run.phases.snapshot().reason == "lunch")
    run.topic.produce(SHARE)
    assert run.ask(Save()).positions == {"clicks:0": 0}
    run.ask(Resume())
    run.reaches(SHARE)
    assert run.phases.snapshot().reason is None


def test_a_trainer_that_begins_paused_says_so(tmp_path: Path, topic: Topic) -> None:
    topic.produce(SHARE)
    with running(tmp_path, topic, paused=True) as run:
        run.sees(lambda: run.phases.phase is Phase.PAUSED)
        assert run.phases.snapshot().reason == "started with --paused"
        assert run.ask(Save()).positions == {"clicks:0": 0}


def test_a_stop_makes_the_last_checkpoint(run: Run) -> None:
    run.topic.produce(SHARE)
    run.reaches(SHARE)
    run.stop()
    last = run.store.newest()
    assert last is not None
    assert (last.reason, last.positions) == (SaveReason.STOP, {"clicks:0": SHARE})
    assert run.phases.phase is Phase.ENDED
    assert run.streams[0].closed


def test_a_stop_with_nothing_new_makes_none(run: Run) -> None:
    run.stop()
    assert [manifest.number for manifest in run.durable] == [0]


def test_a_stream_that_ends_is_saved_to_its_last_record(run: Run) -> None:
    run.topic.produce(SHARE + 5)
    run.topic.end()
    run.join()
    assert run.durable[-1].positions == {"clicks:0": SHARE + 5}
    assert run.phases.phase is Phase.ENDED


@pytest.mark.parametrize("command", [Save(), Rewind(to=0), Pause(), Resume(), Stop()], ids=lambda c: type(c).__name__)
def test_commands_to_a_trainer_that_has_ended_are_answered_with_an_error(run: Run, command: Command) -> None:
    run.stop()
    with pytest.raises(MillraceError, match="has ended"):
        run.ask(command)


def test_a_killed_process_resumes_from_its_newest_checkpoint_to_the_same_weights(tmp_path: Path, topic: Topic) -> None:
    with running(tmp_path / "undisturbed", topic) as undisturbed:
        topic.produce(2 * SHARE)
        undisturbed.reaches(2 * SHARE)
        topic.produce(2 * SHARE)
        undisturbed.reaches(4 * SHARE)
    first = tmp_path / "killed"
    with running(first, topic) as killed:
        killed.sees(lambda: killed.ledger.positions()[P0] >= 2 * SHARE)
        saved = killed.ask(Save())
        killed.saving.finish = lambda whole=None: None  # type: ignore[method-assign]  # noqa: ARG005 -  # killed: there is no orderly end
    with running(first, topic) as resumed:
        assert resumed.begun_at == saved
        resumed.reaches(4 * SHARE)
        resumed.ask(Pause())
        assert resumed.learner.witness.testimonies() == {P0: Evidence.of(range(4 * SHARE))}
        assert largest_difference(state_of(undisturbed.learner), state_of(resumed.learner)) == 0


# Blocks


def test_a_block_of_an_older_incarnation_is_dropped_and_counted(tmp_path: Path, topic: Topic) -> None:
    with running(tmp_path, topic, paused=True) as run:
        span = Span(partition=P0, index=0, start=0, end=BATCH, learnt=BATCH)
        rows = [(P0, offset) for offset in range(BATCH)]
        late = delivery(topic, [P0], (span,), rows, (run.streams[0].start.incarnation, 0))
        before = state_of(run.learner)
        run.delivered_first.append(late)
        run.ask(Rewind(to=0))
        run.ask(Resume())
        run.sees(lambda: run.ledger.statistics().dropped_blocks == 1)
        run.ask(Pause())
        assert run.ledger.positions() == {P0: 0}
        assert largest_difference(before, state_of(run.learner)) == 0


def test_a_partition_that_joins_late_is_counted_from_its_beginning_and_saved(tmp_path: Path, topic: Topic) -> None:
    joining = Partition("a-topic-that-sorts-first", 0)
    with running(tmp_path, topic) as run:
        topic.produce(SHARE)
        run.reaches(SHARE)
        topic.produce(SHARE + 3, joining)
        run.reaches(SHARE + 3, joining)
        run.stop()
    with running(tmp_path, topic) as again:
        assert again.ledger.positions() == {joining: SHARE + 3, P0: SHARE}
        topic.produce(SHARE)
        again.reaches(2 * SHARE)
        again.ask(Pause())
        assert again.learner.witness.testimonies() == {
            joining: Evidence.of(range(SHARE + 3)),
            P0: Evidence.of(range(2 * SHARE)),
        }


def test_a_partition_created_while_no_trainer_ran_joins_at_its_beginning(tmp_path: Path, topic: Topic) -> None:
    with running(tmp_path, topic):
        pass
    with running(tmp_path, topic, newcomers={P0: 99, P1: 7}) as run:
        assert run.ledger.positions() == {P0: 0, P1: 7}
        assert run.streams[0].start.positions == {P0: 0, P1: 7}


def test_a_record_without_a_finite_update_is_set_aside_reported_and_not_scored(tmp_path: Path) -> None:
    topic = Topic(P0, P1)
    topic.poison = {(P0, 3): np.nan}
    with running(tmp_path, topic, paused=True) as run:
        topic.produce(5, P0)
        topic.produce(5, P1)
        run.ask(Resume())
        run.reaches(5, P1)
        run.ask(Pause())
        assert run.refused == [(P0, 3, Reason.UPDATE_NOT_FINITE)]
        statistics = run.ledger.statistics()
        assert statistics.partitions[P0].set_aside == {Reason.UPDATE_NOT_FINITE: 1}
        assert statistics.partitions[P1].learnt == 5, "the same offset of another partition is learnt"
        assert run.learner.witness.testimonies() == {P0: Evidence.of([0, 1, 2, 4]), P1: Evidence.of(range(5))}
        assert run.live.look().records == 9
        run.ask(Save())


# Failing


def test_policy_halt_ends_the_training_without_a_checkpoint_if_a_call_raises(tmp_path: Path, topic: Topic) -> None:
    topic.poison = {(P0, SHARE): 1000.0}
    with running(tmp_path, topic, build=_fragile, step_errors=HALT) as run:
        topic.produce(SHARE)
        run.reaches(SHARE)
        topic.produce(SHARE)
        run.join()
        assert run.phases.phase is Phase.FAILED
        assert run.raised is None, "the error is one line, without a traceback"
        assert isinstance(run.trainer.error, StepError)
        assert "on clicks:0 24 to 47; training.on_step_error is halt" in str(run.trainer.error)
        assert str(run.trainer.error).endswith("millrace rewind -c CONFIG --to 0 --skip clicks:0:24-47")
        assert [manifest.number for manifest in run.durable] == [0]
        assert run.ledger.positions() == {P0: SHARE}
        assert run.streams[0].closed


def _cannot_be_closed(_: TopicStream) -> None:
    raise RuntimeError("the stream cannot be closed")


@pytest.mark.parametrize("close", [TopicStream.close, _cannot_be_closed])
def test_save_commands_are_answered_though_the_training_and_its_stream_fail(
    tmp_path: Path, topic: Topic, monkeypatch: pytest.MonkeyPatch, close: Callable[[TopicStream], None]
) -> None:
    monkeypatch.setattr(TopicStream, "close", close)
    topic.poison = {(P0, 0): 1000.0}
    writing, released = threading.Event(), threading.Event()

    def before_manifest(order: Any) -> None:
        if order.parent is not None:
            writing.set()
            assert released.wait(20)

    with running(tmp_path, topic, build=_fragile, step_errors=HALT, before_manifest=before_manifest) as run:
        written, waiting = run.commands.send(Save()), run.commands.send(Save())
        assert writing.wait(20)
        topic.produce(SHARE)
        run.sees(lambda: run.phases.phase is Phase.FAILED)
        released.set()
        assert _answer(written).number == 1, "its state was copied before, and its writing succeeded"
        with pytest.raises(CheckpointError, match="training has ended"):
            _answer(waiting)


def test_weights_that_saw_other_offsets_than_the_ledger_counts_are_not_saved(run: Run) -> None:
    run.topic.produce(SHARE)
    run.reaches(SHARE)
    run.ask(Pause())
    run.learner.witness.variable.assign_add(tf.ones_like(run.learner.witness.variable))
    with pytest.raises(CorruptError, match=rf"clicks:0: {SHARE + 1} seen, {SHARE} counted"):
        run.ask(Save())
    run.join()
    assert run.phases.phase is Phase.FAILED
    assert [manifest.number for manifest in run.durable] == [0]


def test_a_checkpoint_of_another_model_is_refused_at_the_start(tmp_path: Path, topic: Topic) -> None:
    with running(tmp_path, topic):
        pass
    with (
        pytest.raises(OtherModelError, match="dense_2"),
        running(tmp_path, topic, build=lambda: mlp(keras.layers.Dense(3))),
    ):
        pytest.fail("the trainer started")


def test_a_posting_holds_the_figures_of_the_trainer(run: Run) -> None:
    run.topic.produce(SHARE)
    run.reaches(SHARE)
    saved: Manifest = run.ask(Save())
    run.sees(lambda: run.board.latest is not None and run.board.latest.last_save is run.saving.last)
    posting = run.board.latest
    assert posting is not None
    assert posting.last_save is not None
    assert (posting.last_save.manifest, posting.step) == (saved, 2)
    assert (posting.live.records, posting.failed_saves) == (SHARE, 0)
    assert posting.learning_rate == pytest.approx(1e-2)
    assert posting.model.parameters == run.learner.model.count_params()
    call = run.meter.last_call
    assert call is not None
    assert (call.step, call.facts.rows) == (2, SHARE)
    assert call.began < call.stepped < call.ended
