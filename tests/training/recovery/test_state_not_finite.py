"""NaN in the state: no save takes it, the last good checkpoint stays the newest, and the culprits are found.

The models here assign their weights themselves, so that the finite guard of the optimizers sees nothing of it.
"""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from millrace.consumers.reasons import Reason
from millrace.training.commands import Rewind, Save
from millrace.training.errors import ModelError, StateNotFiniteError, StepError
from millrace.training.ledger.offset_checksum import Evidence
from millrace.training.recovery.step_errors import OnStepError, StepErrorOptions
from tests.training.conftest import FEATURES, MakeLearner, mlp
from tests.training.trainer_rig import P0, SHARE, Run, Topic, running

pytestmark = [pytest.mark.tensorflow, pytest.mark.row(30)]
HUGE = 3e38


class ByHand(keras.Model):
    """Assigns its weights itself."""

    def train_step(self, data: Any) -> Any:
        x, y, weight = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True), weight)
        for variable, gradient in zip(
            self.trainable_variables, tape.gradient(loss, self.trainable_variables), strict=True
        ):
            variable.assign(variable - 0.01 * gradient)
        return {"loss": loss}


def by_hand() -> Any:
    inputs = keras.Input((FEATURES,), name="x")
    model = ByHand(inputs, keras.layers.Dense(1)(inputs))
    model.compile(optimizer="sgd", loss="mse")
    return model


@pytest.fixture
def topic() -> Topic:
    return Topic(P0)


def _all_finite(run: Run) -> bool:
    """Return whether every number in every checkpoint on disk is finite."""
    parts = [run.store.load(number) for number in run.store.folder.numbers()]
    arrays = [array for part in parts for name in ("model", "optimizer") for array in part[name].arrays.values()]
    return all(np.isfinite(array).all() for array in arrays if array.dtype.kind == "f")


def test_two_records_of_two_thousand_are_set_aside_and_all_others_learnt(tmp_path: Path, topic: Topic) -> None:
    culprits = {700, 1301}
    topic.poison = dict.fromkeys(((P0, offset) for offset in culprits), HUGE)
    with running(tmp_path, topic, build=by_hand) as run:
        topic.produce(600)
        run.reaches(600)
        good = run.ask(Save())
        topic.produce(1400)
        run.reaches(2000)
        run.ask(Save())
        run.reaches(2000)
        newest = run.ask(Save())
        assert newest.positions == {"clicks:0": 2000}
        assert set(run.refused) == {(P0, offset, Reason.UPDATE_NOT_FINITE) for offset in culprits}
        assert run.learner.witness.testimonies() == {P0: Evidence.of(set(range(2000)) - culprits)}
        assert run.streams[1].start.positions == {P0: 600}, "it went back to the last good checkpoint"
        assert len(run.streams) == 2
        assert good.number in newest.ancestors or newest.parent == good.number
        assert _all_finite(run)


def test_at_the_end_of_the_stream_the_culprits_are_found_before_the_last_save(tmp_path: Path, topic: Topic) -> None:
    topic.poison = {(P0, 5): HUGE}
    topic.produce(3 * SHARE)
    topic.end()
    with running(tmp_path, topic, build=by_hand) as run:
        run.join()
        assert run.trainer.error is None
        assert run.refused == [(P0, 5, Reason.UPDATE_NOT_FINITE)]
        assert run.durable[-1].positions == {"clicks:0": 3 * SHARE}
        assert _all_finite(run)


def test_a_stop_does_not_save_it_and_the_next_start_finds_the_culprit(tmp_path: Path, topic: Topic) -> None:
    topic.poison = {(P0, 5): HUGE}
    topic.produce(SHARE)
    with running(tmp_path, topic, build=by_hand) as run:
        run.reaches(SHARE)
        run.stop()
        assert isinstance(run.trainer.error, StateNotFiniteError)
        assert [manifest.number for manifest in run.durable] == [0]
    topic.end()
    with running(tmp_path, topic, build=by_hand) as run:
        run.join()
        assert run.refused == [(P0, 5, Reason.UPDATE_NOT_FINITE)]
        assert run.durable[-1].positions == {"clicks:0": SHARE}


def test_a_model_that_makes_nan_of_any_record_ends_with_one_error(tmp_path: Path, topic: Topic) -> None:
    topic.poison = {(P0, offset): HUGE for offset in range(10 * SHARE)}
    with running(tmp_path, topic, build=by_hand) as run:
        topic.produce(10 * SHARE)
        run.reaches(10 * SHARE)
        run.commands.send(Save())
        run.join()
        assert isinstance(run.trainer.error, StepError)
        assert "48 records in a row leave weights that are not finite" in str(run.trainer.error)
        assert len(run.streams) == 2
        assert _all_finite(run)


def test_a_rewind_leaves_it_behind(tmp_path: Path, topic: Topic) -> None:
    with running(tmp_path, topic, build=by_hand) as run:
        topic.produce(SHARE)
        run.reaches(SHARE)
        good = run.ask(Save())
        topic.poison = {(P0, SHARE + 5): HUGE}
        topic.produce(SHARE)
        run.reaches(2 * SHARE)
        assert run.learner.not_finite()
        topic.poison = {}
        rewound = run.ask(Rewind(to=good.number))
        run.reaches(2 * SHARE)
        assert run.ask(Save()).parent == rewound.number
        assert run.refused == []
        assert _all_finite(run)


def test_with_halt_the_training_ends_and_nothing_is_set_aside(tmp_path: Path, topic: Topic) -> None:
    topic.poison = {(P0, 5): HUGE}
    with running(tmp_path, topic, build=by_hand, step_errors=StepErrorOptions(policy=OnStepError.HALT)) as run:
        topic.produce(SHARE)
        run.reaches(SHARE)
        run.commands.send(Save())
        run.join()
        assert "training.on_step_error is halt" in str(run.trainer.error)
        assert (run.refused, [manifest.number for manifest in run.durable]) == ([], [0])


# The look itself


def _set(variable: Any, value: float) -> None:
    array = variable.numpy().copy()
    array.reshape(-1)[-1] = value
    variable.assign(array)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_value_in_weights_or_slots_is_found_and_named(learner_of: MakeLearner, value: float) -> None:
    learner = learner_of()
    assert learner.not_finite() == []
    _set(learner.model.trainable_variables[2], value)
    _set(learner.model.optimizer.variables[3], value)
    found = learner.not_finite()
    assert found[0] == "dense_1/kernel"
    assert [name.startswith("optimizer/") for name in found] == [False, True]


def test_one_replica_alone_is_found(learner_of: MakeLearner) -> None:
    learner = learner_of(replicas=2)
    variable = learner.model.trainable_variables[0]
    variable.value.values[1].assign(tf.fill(variable.shape, float("nan")))
    assert learner.not_finite() == ["dense/kernel"]


def test_numbers_whose_sum_overflows_are_finite(learner_of: MakeLearner) -> None:
    learner = learner_of()
    learner.model.trainable_variables[0].assign(np.full(learner.model.trainable_variables[0].shape, HUGE))
    assert learner.not_finite() == []


class Masked(keras.layers.Layer):
    """Holds minus infinity by design."""

    def build(self, shape: Any) -> None:
        self.mask = self.add_weight(
            shape=(shape[-1],), initializer=keras.initializers.Constant(-np.inf), trainable=self.trainable, name="mask"
        )

    def call(self, x: Any) -> Any:
        return x + keras.ops.exp(self.mask)


def test_a_mask_of_infinities_is_let_be_and_a_weight_is_refused(learner_of: MakeLearner) -> None:
    assert learner_of(lambda: mlp(Masked(trainable=False))).not_finite() == []
    with pytest.raises(ModelError, match=r"masked/mask begins with NaN or infinity"):
        learner_of(lambda: mlp(Masked()))
