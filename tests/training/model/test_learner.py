"""One compiled call a block: replicas, absent rows, what is not finite, and what a resumed model knows."""

from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from millrace.consumers.records import Partition
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.stream.blocks import Rows
from millrace.training.ledger.offset_checksum import Evidence
from millrace.training.model.learner import Learner
from tests.training.conftest import (
    BATCH,
    FEATURES,
    MakeLearner,
    block,
    largest_difference,
    mlp,
    state_of,
    with_feature,
)
from tests.training.learner_pool import POOL

pytestmark = pytest.mark.tensorflow
PARTITION = Partition("t", 0)


class Own(keras.Model):
    """A custom train_step that honours the weights."""

    def train_step(self, data: Any) -> Any:
        x, y, weight = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True), weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


class Late(keras.Model):
    """Two optimizers; the gradients of the second are not finite where a feature is above 100."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.second = keras.optimizers.SGD(0.1)
        self.second.build(self.layers[-1].trainable_variables)

    def train_step(self, data: Any) -> Any:
        x, y, weight = data
        with tf.GradientTape(persistent=True) as tape:
            loss = self.compute_loss(x, y, self(x, training=True), weight)
        first, last = self.layers[1].trainable_variables, self.layers[-1].trainable_variables
        self.optimizer.apply(tape.gradient(loss, first), first)
        late = tf.where(tf.reduce_max(x) > 100.0, float("nan"), 1.0)
        self.second.apply([gradient * late for gradient in tape.gradient(loss, last)], last)
        return {"loss": loss}


@pytest.mark.parametrize("model", [keras.Model, Own], ids=["keras", "own"])
@pytest.mark.parametrize(
    "rows",
    [
        2 * BATCH + 1,
        # Whole batches, and such as leave each replica a row, are easier than this one.
        pytest.param(2 * BATCH + 5, marks=pytest.mark.nightly),
        pytest.param(3 * BATCH, marks=pytest.mark.nightly),
    ],
)
def test_one_two_and_three_replicas_learn_the_same_weights(learner_of: MakeLearner, model: Any, rows: int) -> None:
    states = []
    for replicas in (1, 2, 3):
        learner = learner_of(partial(mlp, model=model), replicas=replicas)
        for seed in range(3):
            learner.learn(block(3, rows=rows, seed=seed))
        states.append(state_of(learner))
    assert largest_difference(states[0], states[1]) < 1e-5
    assert largest_difference(states[0], states[2]) < 1e-5


def test_what_absent_rows_hold_changes_no_weight_and_no_metric(learner_of: MakeLearner) -> None:
    learner = learner_of()
    lesson = learner.learn(block(1, rows=5))
    state = state_of(learner)
    POOL.anew(learner)
    same = learner.learn(with_feature(block(1, rows=5), BATCH - 1, 77.0))
    assert largest_difference(state, state_of(learner)) == 0
    for mine, theirs in zip(lesson.result.states, same.result.states, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_metrics_count_each_present_row_once_over_all_replicas(learner_of: MakeLearner) -> None:
    learner = learner_of(replicas=3)
    result = learner.learn(block(3, rows=2 * BATCH + 2)).result
    total, count = result.states
    assert count == 2 * BATCH + 2
    assert 0 <= total <= count


def test_each_replica_sees_its_own_rows_of_every_step(learner_of: MakeLearner) -> None:
    seen: list[tuple[int, list[float]]] = []

    class Watched(keras.Model):
        def train_step(self, data: Any) -> Any:
            x, _, _ = data
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            tf.py_function(lambda r, o: seen.append((int(r), o.numpy().tolist())), [replica, x["offset"]], [])
            return super().train_step(data)

    def build() -> Any:
        inputs = keras.Input((), name="offset")
        model = Watched({"offset": inputs}, keras.layers.Dense(1)(keras.layers.Reshape((1,))(inputs)))
        model.compile(optimizer="sgd", loss="mse")
        return model

    schema = Schema(
        features=(Field(name="offset", source="offset", dtype="float32"),),
        labels=(Field(name="y", source="y", dtype="float32"),),
    )
    learner = learner_of(build, replicas=2, batch=4, schema=schema)
    offsets = np.arange(8).reshape(2, 4)
    zeros = tf.zeros((2, 4))
    features = {"offset": tf.constant(offsets, tf.float32)}
    learner.learn(
        Rows(
            features=features,
            labels=zeros,
            weights=tf.ones((2, 4)),
            offsets=tf.constant(offsets),
            partitions=tf.zeros((2, 4), tf.int32),
        )
    )
    assert sorted(seen) == [(0, [0.0, 1.0]), (0, [4.0, 5.0]), (1, [2.0, 3.0]), (1, [6.0, 7.0])]


def normalised() -> Any:
    return mlp(keras.layers.BatchNormalization())


def dropping() -> Any:
    return mlp(keras.layers.Dropout(0.5))


# What tells them apart on one replica is the same on two.
@pytest.mark.parametrize(
    ("replicas", "value"), [(1, np.nan), (1, np.inf), (2, np.nan), pytest.param(2, np.inf, marks=pytest.mark.nightly)]
)
def test_an_update_that_is_not_finite_leaves_every_variable_as_it_was(
    learner_of: MakeLearner, replicas: int, value: float
) -> None:
    learner = learner_of(normalised, replicas=replicas)
    learner.learn(block(2))
    before = state_of(learner)
    result = learner.call(with_feature(block(1, seed=4), 3, value))
    assert not result.finite.any()
    assert largest_difference(before, state_of(learner)) == 0
    assert all(not state.any() for state in result.states), "metrics count the batch that was left out"


def test_culprits_are_named_and_the_others_of_their_batch_are_learnt(learner_of: MakeLearner) -> None:
    learner = learner_of()
    learner.witness.know(PARTITION, 0)
    rows = block(3)
    for culprit in (BATCH + 2, BATCH + 9, 2 * BATCH):
        rows = with_feature(rows, culprit, np.nan)
    lesson = learner.learn(rows)
    assert lesson.culprits.offsets == ((0, BATCH + 2), (0, BATCH + 9), (0, 2 * BATCH))
    rest = set(range(3 * BATCH)) - {BATCH + 2, BATCH + 9, 2 * BATCH}
    assert learner.witness.testimonies() == {PARTITION: Evidence.of(rest)}
    assert all(np.isfinite(value).all() for value in state_of(learner).values())


def test_a_batch_of_nothing_but_culprits_is_set_aside_whole(learner_of: MakeLearner) -> None:
    learner = learner_of()
    before = state_of(learner)
    rows = block(1)
    for row in range(BATCH):
        rows = with_feature(rows, row, np.nan)
    assert len(learner.learn(rows).culprits.offsets) == BATCH
    assert largest_difference(before, state_of(learner)) == 0


def _resumed(source: Learner, target: Learner) -> None:
    for part, fresh in zip(source.parts, target.parts, strict=True):
        fresh.restore(part.snapshot())


def test_a_resumed_model_with_dropout_goes_on_bit_for_bit(learner_of: MakeLearner) -> None:
    undisturbed, second = learner_of(dropping), learner_of(dropping)
    for seed in range(3):
        undisturbed.learn(block(2, seed=seed))
    _resumed(undisturbed, second)
    for seed in range(3, 6):
        for learner in (undisturbed, second):
            learner.learn(block(2, seed=seed))
    assert largest_difference(state_of(undisturbed), state_of(second)) == 0


def test_a_model_that_behaves_otherwise_in_training_is_scored_by_an_inference_pass(learner_of: MakeLearner) -> None:
    plain, dropout = learner_of(), learner_of(dropping)
    assert not plain.call.options.inference_pass
    assert dropout.call.options.inference_pass
    rows = block(1)
    expected = dropout.model(rows.features["x"][0], training=False).numpy().reshape(-1) > 0.5
    right = float((expected == (rows.labels.numpy()[0] > 0.5)).sum())
    total, count = dropout.learn(rows).result.states
    assert (float(total), float(count)) == (right, BATCH)


def test_scores_are_of_the_weights_from_before_the_update(learner_of: MakeLearner) -> None:
    learner = learner_of()
    rows = block(1)
    loss = keras.losses.BinaryCrossentropy()(
        rows.labels.numpy()[0][:, None], learner.model(rows.features["x"][0]).numpy()
    )
    assert learner.learn(rows).result.losses[0] == pytest.approx(float(loss), rel=1e-5)


# Three replicas do what two do.
@pytest.mark.parametrize("replicas", [1, 2, pytest.param(3, marks=pytest.mark.nightly)])
def test_the_witness_brings_odd_values_back_on_any_number_of_replicas(learner_of: MakeLearner, replicas: int) -> None:
    learner = learner_of(replicas=replicas)
    offsets = [2**60 + 1, 7, 3]
    learner.witness.lay([PARTITION])
    rows = block(1, rows=3)
    features, labels, weights, _, partitions = rows
    strange = tf.constant([[*offsets, *[-1] * (BATCH - 3)]], tf.int64)
    learner.learn(Rows(features, labels, weights, strange, partitions))
    fresh = learner_of(replicas=replicas)
    fresh.witness.restore(learner.witness.snapshot())
    assert fresh.witness.testimonies() == {PARTITION: Evidence.of(offsets)}


def test_the_witness_follows_partitions_to_other_rows(learner_of: MakeLearner) -> None:
    learner = learner_of()
    learner.witness.lay([Partition("t", 1)])
    learner.learn(block(1))
    learner.witness.lay([Partition("t", 0), Partition("t", 1)])
    assert learner.witness.testimonies() == {
        Partition("t", 0): Evidence.of([]),
        Partition("t", 1): Evidence.of(range(BATCH)),
    }


def test_the_call_is_traced_once_however_many_batches_come(fresh_learner_of: MakeLearner) -> None:
    learner = fresh_learner_of(mlp)
    for batches in (1, 3, 2):
        learner.learn(block(batches))
    assert learner.call._function.experimental_get_tracing_count() == 1


def test_features_are_what_the_schema_says() -> None:
    assert block(1).features["x"].shape == (1, BATCH, FEATURES)


def test_a_second_optimizers_bad_update_takes_the_first_ones_back(learner_of: MakeLearner) -> None:
    learner = learner_of(lambda: mlp(model=Late))
    before = state_of(learner)
    result = learner.call(with_feature(block(1), 3, 1000.0))
    assert not result.finite[0]
    assert largest_difference(before, state_of(learner)) == 0
