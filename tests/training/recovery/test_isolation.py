"""Isolation: every record that raises is found and leaves no trace; all others are learnt once."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from millrace.consumers.errors import MillraceError
from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import Rows
from millrace.training.checkpoints.parts import PartState
from millrace.training.ledger.offset_checksum import Evidence
from millrace.training.model.learner import Learner, LearnerOptions
from millrace.training.model.setup.strategy import DeviceOptions
from millrace.training.model.variables import assign
from millrace.training.recovery import isolation
from millrace.training.recovery.isolation import (
    IsolatingLearner,
    TooManyCulpritsError,
    VariableCopies,
    at_fault,
    blamed,
    most_culprits,
)
from tests.training.conftest import (
    BATCH,
    SCHEMA,
    Fragile,
    MakeLearner,
    block,
    largest_difference,
    mlp,
    state_of,
    with_feature,
)

pytestmark = [pytest.mark.tensorflow, pytest.mark.row(20)]
PARTITION = Partition("clicks", 0)
RAISES = 1000.0


def fragile() -> Any:
    """Build a model with statistics, random numbers and moments: all that a try could leave a trace in."""
    seeded = keras.layers.Dropout(0.3, seed=3)
    return mlp(keras.layers.BatchNormalization(), seeded, model=Fragile)


def _raising(rows: Rows, culprits: set[int]) -> Rows:
    for culprit in culprits:
        rows = with_feature(rows, culprit, RAISES)
    return rows


def _isolated(learner: Learner, rows: Rows, prepare: Callable[[Rows], Rows] | None = None) -> IsolatingLearner:
    learner.witness.know(PARTITION, 0)
    isolating = IsolatingLearner(learner=learner, prepare=prepare, progress=lambda: None, most=BATCH)
    isolating.learn(rows)
    return isolating


def _offsets(isolating: IsolatingLearner) -> list[int]:
    return [culprit.offset for culprit in isolating.culprits]


@pytest.fixture(scope="module")
def learner() -> Learner:
    """Share one learner among the tests that look only at what they have learnt themselves."""
    devices = DeviceOptions(replicas=1)
    return Learner(fragile, None, LearnerOptions(schema=SCHEMA, batch_size=BATCH, devices=devices, seed=7))


def _reset_witness(learner: Learner) -> None:
    learner.witness.lay([PARTITION])
    assign(learner.witness.variable, np.zeros(learner.witness.variable.shape, np.int64))


def _copied(learner: Learner) -> list[PartState]:
    return [
        PartState(arrays={key: np.array(value) for key, value in state.arrays.items()}, facts=state.facts)
        for state in (part.snapshot() for part in learner.parts)
    ]


def _restore(learner: Learner, states: list[PartState]) -> None:
    for part, state in zip(learner.parts, states, strict=True):
        part.restore(state)


# On one replica every record is found in the tests below.
@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_a_culprit_leaves_no_trace_in_any_variable(learner_of: MakeLearner, replicas: int) -> None:
    learner = learner_of(fragile, replicas=replicas)
    learner.witness.know(PARTITION, 0)
    learner.learn(block(2, seed=9, first=1000))
    before, culprits = _copied(learner), {1, 7, BATCH + 4}
    isolating = _isolated(learner, _raising(block(3), culprits))
    assert _offsets(isolating) == sorted(culprits)
    after = state_of(learner)
    learnt = set(range(3 * BATCH)) - culprits | set(range(1000, 1000 + 2 * BATCH))
    assert learner.witness.testimonies() == {PARTITION: Evidence.of(learnt)}
    _restore(learner, before)
    for piece in isolating.pieces:
        learner.learn(piece.rows)
    assert largest_difference(state_of(learner), after) == 0, "as if the culprits had never existed"


def test_every_variable_that_a_checkpoint_holds_is_copied_and_restored(learner: Learner) -> None:
    _reset_witness(learner)
    learner.learn(block(1))
    before, testimonies = state_of(learner), learner.witness.testimonies()
    variables = VariableCopies(learner)
    variables.copy()
    for _ in range(2):  # the copies stay valid after a restore
        learner.learn(block(2, seed=4, first=500))
        assert largest_difference(state_of(learner), before) > 0
        assert learner.witness.testimonies() != testimonies
        variables.restore()
        assert largest_difference(state_of(learner), before) == 0
        assert learner.witness.testimonies() == testimonies


def test_every_record_that_raises_is_found_and_all_others_learnt_and_scored_once(learner: Learner) -> None:
    _reset_witness(learner)
    learnt: list[int] = []
    random = np.random.default_rng(5)
    for turn in range(5):
        present = int(random.integers(1, 2 * BATCH + 1))
        culprits = set(random.choice(present, int(random.integers(0, min(present, 8) + 1)), replace=False).tolist())
        first = 100 * turn
        rows = block(-(-present // BATCH), rows=present, seed=turn, first=first)
        isolating = _isolated(learner, _raising(rows, culprits))
        assert sorted(_offsets(isolating)) == [first + culprit for culprit in sorted(culprits)]
        learnt += [first + row for row in range(present) if row not in culprits]
        scored = [piece.rows.offsets.numpy() for piece in isolating.pieces]
        assert sum(int((offsets >= 0).sum()) for offsets in scored) == present - len(culprits)
    assert learner.witness.testimonies() == {PARTITION: Evidence.of(learnt)}


def test_a_block_that_does_not_raise_is_learnt_in_one_call_as_usual(learner: Learner) -> None:
    before, rows = _copied(learner), block(3, rows=2 * BATCH + 5)
    isolating = _isolated(learner, rows)
    after = state_of(learner)
    _restore(learner, before)
    learner.learn(rows)
    assert len(isolating.pieces) == 1
    assert largest_difference(state_of(learner), after) == 0


def test_a_record_that_raises_and_one_without_a_finite_update_are_distinguished(learner: Learner) -> None:
    _reset_witness(learner)
    isolating = _isolated(learner, with_feature(_raising(block(2), {3}), BATCH + 6, np.nan))
    assert _offsets(isolating) == [3]
    assert [offset for piece in isolating.pieces for offset in piece.lesson.culprits.offsets] == [(0, BATCH + 6)]
    assert learner.witness.testimonies()[PARTITION].count == 2 * BATCH - 2


def test_rows_without_preprocess_are_preprocessed_in_each_try(learner: Learner) -> None:
    _reset_witness(learner)

    def prepare(rows: Rows) -> Rows:
        features, *others = rows
        tf.debugging.assert_less(tf.reduce_max(features["x"]), 100.0)
        return Rows({"x": features["x"] / 2}, *others)

    isolating = _isolated(learner, _raising(block(2), {5, BATCH}), prepare)
    assert _offsets(isolating) == [5, BATCH]
    assert {culprit.fault.gist for culprit in isolating.culprits} == {"InvalidArgumentError in preprocess"}
    assert learner.witness.testimonies()[PARTITION].count == 2 * BATCH - 2


def test_a_search_with_too_many_culprits_ends_soon(learner: Learner) -> None:
    tries: list[None] = []
    isolating = IsolatingLearner(learner=learner, prepare=None, progress=lambda: tries.append(None), most=3)
    with pytest.raises(TooManyCulpritsError):
        isolating.learn(_raising(block(2), set(range(2 * BATCH))))
    assert len(isolating.culprits) == 4
    assert len(tries) < BATCH


@pytest.mark.parametrize(("rows", "most"), [(1, 32), (400, 100), (16_384, 256)])
def test_the_most_culprits_depend_on_the_size_of_the_block(rows: int, most: int) -> None:
    assert most_culprits(rows) == most


def test_errors_that_no_record_causes_are_raised_again(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (MemoryError(), tf.errors.ResourceExhaustedError(None, None, "out of memory"), MillraceError("no")):
        assert not at_fault(error)
        monkeypatch.setattr(learner, "learn", _raises(error))
        with pytest.raises(type(error)):
            _isolated(learner, block(1))
    assert at_fault(tf.errors.InvalidArgumentError(None, None, "indices[0] = 7 is not in [0, 5)"))


def test_the_description_of_an_error_holds_no_value_of_a_record(learner: Learner) -> None:
    isolating = _isolated(learner, _raising(block(1), {2}))
    (culprit,) = isolating.culprits
    assert culprit.fault.gist.startswith("InvalidArgumentError in the training step (")
    assert culprit.fault.gist.endswith("): a feature is too large"), "what an assertion states is no value"
    assert "conftest.py, line " in culprit.fault.gist
    assert "1000" not in culprit.fault.gist
    assert blamed(ValueError("4711"), isolation.STEP) == "ValueError in the training step"


def _raises(error: Exception) -> Callable[..., Any]:
    def raising(*_rows: Any, **_how: Any) -> Any:
        raise error

    return raising
