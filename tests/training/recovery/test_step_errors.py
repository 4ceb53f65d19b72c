"""A call that raises: the durable state is restored, culprits are set aside, the rest is learnt, and never a loop."""

import threading
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import BlockFacts, Delivery, Rows, Span, Suspect
from millrace.pipelines.stream.dataset import PreprocessError
from millrace.training.checkpoints.manifest import Manifest, SaveReason
from millrace.training.commands import Pause, Resume, Rewind, Save
from millrace.training.errors import StepError
from millrace.training.ledger.offset_checksum import Evidence
from millrace.training.recovery import isolation
from millrace.training.recovery.step_errors import BlockRaised, StepErrorOptions, StepRecovery
from millrace.training.telemetry.phases import Phase
from tests.training import trainer_rig
from tests.training.conftest import Fragile, MakeLearner, largest_difference, mlp, state_of
from tests.training.trainer_rig import P0, P1, SHARE, Run, Topic, TopicStream, running

pytestmark = [pytest.mark.tensorflow, pytest.mark.row(20)]
RAISES = 1000.0
NO_LEARNER: Any = None
"""For tests that learn nothing and look only at the suspects."""


def fragile() -> Any:
    return mlp(model=Fragile)


@pytest.fixture
def topic() -> Topic:
    return Topic(P0)


def _set_aside(run: Run, partition: Partition = P0) -> Any:
    return run.ledger.statistics().partitions[partition].set_aside


def test_culprits_are_set_aside_and_all_others_learnt_once(tmp_path: Path, topic: Topic) -> None:
    culprits = {2 * SHARE + 3, 2 * SHARE + 9, 4 * SHARE}
    topic.poison = dict.fromkeys(((P0, offset) for offset in culprits), RAISES)
    with running(tmp_path, topic, build=fragile) as run:
        topic.produce(SHARE)
        run.reaches(SHARE)
        saved = run.ask(Save())
        topic.produce(4 * SHARE)
        run.reaches(5 * SHARE)
        manifest = run.ask(Save())
        assert manifest.parent == saved.number
        assert sorted(run.refused) == [(P0, offset, Reason.STEP_RAISED) for offset in sorted(culprits)]
        assert _set_aside(run) == {Reason.STEP_RAISED: len(culprits)}
        assert run.learner.witness.testimonies() == {P0: Evidence.of(set(range(5 * SHARE)) - culprits)}
        assert run.live.look().cumulative_records == 5 * SHARE - len(culprits), "each is scored once"
        assert run.saving.step == 10
        assert run.streams[1].start.positions == {P0: SHARE}, "the second stream begins at the durable position"
        assert run.streams[1].start.learnt == SHARE, "what was not durable does not count as learnt"
        assert len(run.streams) == 2, "blocks near a culprit are isolated at once"


def test_a_restart_finds_what_was_set_aside_and_does_not_raise_again(tmp_path: Path, topic: Topic) -> None:
    topic.poison = {(P0, 3): RAISES, (P0, SHARE + 1): RAISES}
    topic.produce(2 * SHARE)
    with running(tmp_path, topic, build=fragile) as run:
        run.reaches(2 * SHARE)
    with running(tmp_path, topic, build=fragile) as run:
        assert _set_aside(run) == {Reason.STEP_RAISED: 2}
        topic.produce(SHARE)
        run.reaches(3 * SHARE)
        assert run.refused == []
        assert len(run.streams) == 1


def test_culprits_of_several_partitions_are_counted_in_each(tmp_path: Path) -> None:
    topic = Topic(P0, P1)
    topic.poison = {(P0, 2): RAISES, (P1, 4): RAISES}
    with running(tmp_path, topic, build=fragile, paused=True) as run:
        topic.produce(5, P0)
        topic.produce(5, P1)
        run.ask(Resume())
        run.reaches(5, P1)
        assert _set_aside(run, P0) == _set_aside(run, P1) == {Reason.STEP_RAISED: 1}
        everyone = {P0: Evidence.of([0, 1, 3, 4]), P1: Evidence.of(range(4))}
        assert run.learner.witness.testimonies() == everyone


def test_a_replay_with_culprits_gives_the_same_bits(tmp_path: Path, topic: Topic) -> None:
    topic.poison = {(P0, SHARE + 3): RAISES, (P0, 2 * SHARE): RAISES}
    topic.produce(4 * SHARE)
    with running(tmp_path / "undisturbed", topic, build=fragile) as run:
        run.reaches(4 * SHARE)
        run.ask(Pause())
        whole = state_of(run.learner)
    with running(tmp_path / "rewound", topic, build=fragile, paused=True) as run:
        run.ask(Resume())
        saved = run.ask(Save())
        run.reaches(4 * SHARE)
        run.ask(Rewind(to=saved.number))
        run.reaches(4 * SHARE)
        run.ask(Pause())
        assert largest_difference(state_of(run.learner), whole) == 0


@pytest.mark.slow
def test_a_model_that_always_raises_ends_the_training_without_a_checkpoint(tmp_path: Path, topic: Topic) -> None:
    topic.poison = {(P0, offset): RAISES for offset in range(10 * SHARE)}
    with running(tmp_path, topic, build=fragile) as run:
        topic.produce(10 * SHARE)
        run.join()
        assert isinstance(run.trainer.error, StepError)
        assert "48 records in a row raise" in str(run.trainer.error)
        assert "--to 0 --skip clicks:0:24-47" in str(run.trainer.error)
        assert [manifest.number for manifest in run.durable] == [0]


def test_if_too_many_records_of_a_block_raise_none_is_set_aside(
    tmp_path: Path, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.training.recovery.step_errors.most_culprits", lambda rows: rows // 4)
    topic.poison = {(P0, offset): RAISES for offset in range(7)}
    with running(tmp_path, topic, build=fragile) as run:
        topic.produce(SHARE)
        run.join()
        assert "at least 7 of 24 records raise" in str(run.trainer.error)
        assert (run.refused, run.ledger.positions()) == ([], {P0: 0})


def test_records_that_raise_one_by_one_with_none_learnt_between_end_the_training(
    learner_of: MakeLearner, topic: Topic
) -> None:
    topic.poison = {(P0, offset): RAISES for offset in range(isolation.FEW + 1)}
    learner = learner_of(fragile)
    recovery = StepRecovery(learner, StepErrorOptions(), progress=lambda: None, newest=lambda: 3)
    for offset in range(isolation.FEW):
        assert recovery.learn(_single(topic, offset)).culprits()[Reason.STEP_RAISED].offsets == ((0, offset),)
    with pytest.raises(StepError, match=r"33 records in a row raise.* --to 3 --skip clicks:0:32-32$"):
        recovery.learn(_single(topic, isolation.FEW))
    recovery.learn(_single(topic, isolation.FEW + 1))
    assert recovery.learn(_single(topic, 0)).isolated, "a record that is learnt restarts the count"


def test_a_block_that_raises_only_once_is_learnt_and_nothing_is_set_aside(
    tmp_path: Path, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, topic) as run:
        learn, errors = run.learner.learn, [tf.errors.InternalError(None, None, "a transient error")]

        def raises_once(rows: Rows, **how: Any) -> Any:
            if errors:
                raise errors.pop()
            return learn(rows, **how)

        monkeypatch.setattr(run.learner, "learn", raises_once)
        topic.produce(2 * SHARE)
        run.reaches(2 * SHARE)
        assert run.refused == []
        assert run.learner.witness.testimonies() == {P0: Evidence.of(range(2 * SHARE))}
        assert len(run.streams) == 2


def test_a_call_without_memory_ends_the_training(tmp_path: Path, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path, topic) as run:

        def too_large(_rows: Rows, **_how: Any) -> Any:
            raise tf.errors.ResourceExhaustedError(None, None, "out of memory")

        monkeypatch.setattr(run.learner, "learn", too_large)
        topic.produce(SHARE)
        run.join()
        assert isinstance(run.raised, tf.errors.ResourceExhaustedError)
        assert len(run.streams) == 1


def test_a_trainer_goes_back_to_the_save_that_was_under_way(tmp_path: Path, topic: Topic) -> None:
    topic.poison = {(P0, SHARE): RAISES}
    writing, released = threading.Event(), threading.Event()

    def before_manifest(order: Any) -> None:
        if order.parent is not None:
            writing.set()
            assert released.wait(20)

    with running(tmp_path, topic, build=fragile, before_manifest=before_manifest) as run:
        topic.produce(SHARE)
        run.reaches(SHARE)
        asked = run.commands.send(Save())
        assert writing.wait(20)
        topic.produce(SHARE)
        run.sees(lambda: run.phases.phase is Phase.RESTORING)
        released.set()
        run.reaches(2 * SHARE)
        assert asked.result(20).positions == {"clicks:0": SHARE}
        assert run.streams[1].start.positions == {P0: SHARE}


# `preprocess`


class Unprepared(TopicStream):
    """Runs a `preprocess` that raises above 100 on every block but the suspect ones, which are delivered without it."""

    def take(self) -> Delivery | None:
        delivery = super().take()
        if delivery is None:
            return None
        if any(suspect.touches(delivery.facts.spans) for suspect in self.start.suspects):
            return Delivery(delivery.rows, delivery.facts, _prepared)
        try:
            return Delivery(_prepared(delivery.rows), delivery.facts)
        except tf.errors.InvalidArgumentError as error:
            raise PreprocessError("preprocess: it failed", delivery.facts) from error


def _prepared(rows: Rows) -> Rows:
    tf.debugging.assert_less(tf.reduce_max(rows.features["x"]), 100.0)
    features, *others = rows
    return Rows({"x": features["x"] / 2}, *others)


@pytest.fixture
def unprepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_rig, "TopicStream", Unprepared)


@pytest.mark.slow
@pytest.mark.usefixtures("unprepared")
@pytest.mark.parametrize("exact", [True, False])
def test_records_that_make_preprocess_raise_are_set_aside_and_all_others_learnt(
    tmp_path: Path, topic: Topic, exact: bool
) -> None:
    topic.poison = {(P0, SHARE + 5): RAISES, (P0, 2 * SHARE): RAISES}
    with running(tmp_path, topic, step_errors=StepErrorOptions(exact=exact)) as run:
        topic.produce(4 * SHARE)
        run.reaches(4 * SHARE)
        assert set(run.refused) == {(P0, offset, Reason.STEP_RAISED) for offset in (SHARE + 5, 2 * SHARE)}
        learnt = set(range(4 * SHARE)) - {SHARE + 5, 2 * SHARE}
        assert run.learner.witness.testimonies() == {P0: Evidence.of(learnt)}
        assert run.live.look().records == len(learnt)
        failures = len(run.streams) - 1
        assert failures == (2 if exact else 1), "with exact, only blocks that raised bypass the dataset"


def test_a_preprocess_without_memory_ends_the_training(tmp_path: Path, topic: Topic) -> None:
    recovery = _recovery()
    error = PreprocessError("preprocess", _facts(0))
    error.__cause__ = tf.errors.ResourceExhaustedError(None, None, "out of memory")
    with pytest.raises(PreprocessError):
        recovery.take(_Raises(error))
    error.__cause__ = tf.errors.InvalidArgumentError(None, None, "a value")
    with pytest.raises(BlockRaised, match="InvalidArgumentError in preprocess"):
        recovery.take(_Raises(error))


# What is suspect


def test_blocks_that_keep_raising_without_a_culprit_end_the_training() -> None:
    recovery = _recovery()
    for time in range(4):
        recovery.remember(_raised(time), _manifest(7))
    recovery.remember(_raised(0), _manifest(8))
    for time in range(3):
        recovery.remember(_raised(time), _manifest(8))
    with pytest.raises(StepError, match=r"5 times since checkpoint 8 .* -c CONFIG --to 8 --skip clicks:0:40-49$"):
        recovery.remember(_raised(4), _manifest(8))


def test_blocks_before_the_durable_checkpoint_are_not_suspect_any_more() -> None:
    recovery = _recovery(exact=True)
    recovery.remember(_raised(0), _manifest(1))
    assert recovery.suspects == (Suspect(partition=P0, start=0, end=10),)
    recovery.remember(_raised(50), _manifest(2, {"clicks:0": 500}))
    assert recovery.suspects == (Suspect(partition=P0, start=500, end=510),)


def _single(topic: Topic, offset: int) -> Delivery:
    """Make a block of one record, delivered without `preprocess`."""
    span = Span(partition=P0, index=0, start=offset, end=offset + 1, learnt=1)
    block = trainer_rig.delivery(topic, [P0], (span,), [(P0, offset)], (1, 0))
    return Delivery(block.rows, block.facts, lambda rows: rows)


class _Raises:
    def __init__(self, error: Exception) -> None:
        self._error = error

    def take(self) -> Delivery | None:
        raise self._error

    def draw_ahead(self) -> None:
        pass

    def close(self) -> None:
        pass


def _facts(tens: int) -> BlockFacts:
    return BlockFacts(
        number=0,
        incarnation=1,
        spans=(Span(partition=P0, index=0, start=10 * tens, end=10 * tens + 10, learnt=10),),
        batches=1,
        rows=10,
        seed=0,
        fetched_at=0.0,
        oldest_ms=0,
        newest_ms=0,
    )


def _recovery(*, exact: bool = False) -> StepRecovery:
    return StepRecovery(NO_LEARNER, StepErrorOptions(exact=exact), progress=lambda: None, newest=lambda: 8)


def _raised(tens: int) -> BlockRaised:
    return BlockRaised(_facts(tens).spans, "InternalError in preprocess", in_preprocess=True)


def _manifest(number: int, positions: dict[str, int] | None = None) -> Manifest:
    return Manifest(
        number=number,
        parent=None,
        ancestors=(),
        term=1,
        incarnation=1,
        step=0,
        reason=SaveReason.INTERVAL,
        ordered_by=None,
        note=None,
        created_at="2026-01-01T00:00:00+00:00",
        files={},
        positions=positions or {},
        provenance={},
        metrics={},
        variables=None,
    )
