"""Balanced classes: learnt with weights that follow the stream, scored as the stream is, restored to the bit."""

from dataclasses import astuple, replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from millrace.consumers.errors import ConfigError
from millrace.pipelines.shaping import BalanceSettings
from millrace.pipelines.shaping.balance.class_weights import Output, corrected
from millrace.pipelines.stream.blocks import Rows
from millrace.training.model.call.class_balance import ClassBalance, correct_last_layer, output_of
from millrace.training.model.call.compiled_call import batch_of
from millrace.training.model.learner import Learner
from millrace.training.model.proof.function_proofs import states_add_up
from millrace.training.model.proof.proof import ModelProof
from tests.training.conftest import BATCH, block, largest_difference, mlp, options_of, state_of
from tests.training.learner_pool import POOL

pytestmark = pytest.mark.tensorflow
HALVES = BalanceSettings(target={"1": 0.5, "0": 0.5}, half_life=1000)


def balanced(options: BalanceSettings | None = HALVES, build: Any = mlp, **given: Any) -> Learner:
    """Return a learner that balances its classes as it is when it has just been built."""
    return POOL.lend(build, replace(options_of(**given), balance=options))


def balance_of(learner: Learner) -> ClassBalance:
    """Return what balances the learner's classes."""
    assert learner.call.shaping.balance is not None
    return learner.call.shaping.balance


def rare(seed: int, *, every: int = BATCH) -> Rows:
    """Return a block of three batches in which one row of so many is of class 1."""
    rows = block(3, seed=seed)
    labels = (np.arange(3 * BATCH) % every == 0).astype(np.float32)
    return rows._replace(labels=tf.constant(labels.reshape(3, BATCH)))


def test_the_weights_of_classes_follow_the_stream_and_average_to_one() -> None:
    learner = balanced()
    np.testing.assert_allclose(balance_of(learner).weights(), [1.0, 1.0])
    for seed in range(40):
        learner.learn(rare(seed))
    counts = balance_of(learner).counts.numpy()
    decay = 0.5 ** (BATCH / 1000)
    np.testing.assert_allclose(counts, np.array([BATCH - 1, 1]) * (1 - decay**120) / (1 - decay), rtol=1e-9)
    before, weights, after = np.array([astuple(one) for one in balance_of(learner).figures().values()]).T
    np.testing.assert_allclose(before, [11 / 12, 1 / 12], rtol=1e-6)
    np.testing.assert_allclose(before @ weights, 1.0, rtol=0.1)
    np.testing.assert_allclose(after, [0.5, 0.5], atol=0.02)


def test_a_row_is_learnt_with_its_class_weight_and_scored_and_baselined_without() -> None:
    plain, shaped = balanced(None), balanced()
    balance_of(shaped).counts.assign([110.0, 10.0])
    weights = balance_of(shaped).weights().numpy()
    rows = rare(1, every=5)  # other shares than were counted: the batch itself must not count yet
    loss = shaped.learn(rows).result.losses[0]
    x, labels = rows.features["x"][0].numpy(), rows.labels[0].numpy()
    # The first batch by hand: plain Keras with the weights, scored by corrected probabilities before.
    keras.utils.set_random_seed(7)
    model = mlp()
    model.jit_compile = False
    p = corrected(tf.constant(model.predict_on_batch(x)), weights, Output.PROBABILITY).numpy()[:, 0]
    np.testing.assert_allclose(loss, -np.mean(np.log(np.where(labels == 1, p, 1 - p))), rtol=1e-4)
    POOL.anew(shaped)
    balance_of(shaped).counts.assign([110.0, 10.0])
    shaped.learn(tf.nest.map_structure(lambda column: column[:1], rows))
    model.train_on_batch(x, labels, weights[labels.astype(int)])
    for mine, theirs in zip(state_of(shaped).values(), [*model.variables, *model.optimizer.variables], strict=True):
        np.testing.assert_allclose(mine, np.asarray(theirs), rtol=2e-4, atol=1e-6)
    assert plain.call.shaping.balance is None


@pytest.mark.slow
def test_it_does_not_matter_how_batches_are_cut_into_calls() -> None:
    learner = balanced()
    learner.learn(rare(1, every=5))
    whole, counts = state_of(learner), balance_of(learner).counts.numpy().copy()
    POOL.anew(learner)
    for index in range(3):
        learner.learn(batch_of(rare(1, every=5), index))
    assert largest_difference(whole, state_of(learner)) < 1e-6
    np.testing.assert_allclose(counts, balance_of(learner).counts, rtol=1e-12)


@pytest.mark.slow
def test_the_proofs_at_a_start_see_rows_as_they_came_and_count_no_class() -> None:
    learner = balanced()
    findings = [*ModelProof(learner).findings(), *states_add_up(learner)]
    assert {finding.holds for finding in findings} == {True}
    np.testing.assert_array_equal(balance_of(learner).counts, [0.0, 0.0])


@pytest.mark.slow
# Two replicas restore what one does, and its copies.
@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_a_restored_checkpoint_continues_with_the_same_bits(replicas: int) -> None:
    whole, second = balanced(replicas=replicas), balanced(replicas=replicas)
    for seed in range(2):
        whole.learn(rare(seed, every=5))
    for part, saved in zip(second.parts, whole.parts, strict=True):
        part.restore(saved.snapshot())
    for seed in range(2, 4):
        for learner in (whole, second):
            learner.learn(rare(seed, every=5))
    assert largest_difference(state_of(whole), state_of(second)) == 0
    assert balance_of(whole).snapshot() == balance_of(second).snapshot()
    bad = rare(9)
    poison = bad.features["x"].numpy()
    poison[:, 0] = np.nan
    before = balance_of(second).snapshot()
    second.call(bad._replace(features={"x": tf.constant(poison)}))
    assert balance_of(second).snapshot() == before, "rows that were not learnt are not counted"


def test_what_is_predicted_is_corrected_for_each_kind_of_output() -> None:
    weights, p = np.array([0.5, 0.25, 4.0]), np.array([[0.7, 0.2, 0.1], [0.05, 0.05, 0.9]])
    learnt = p * weights / (p * weights).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(corrected(tf.constant(learnt), weights, Output.PROBABILITIES), p)
    logits = tf.nn.softmax(corrected(tf.math.log(tf.constant(learnt)), weights, Output.LOGITS))
    np.testing.assert_allclose(logits, p)
    one = p[:, 1:] * weights[1] / (p[:, 1:] * weights[1] + (1 - p[:, 1:]) * weights[0])
    np.testing.assert_allclose(corrected(tf.constant(one), weights[:2], Output.PROBABILITY), p[:, 1:])
    logit = np.log(one / (1 - one))
    np.testing.assert_allclose(tf.math.sigmoid(corrected(tf.constant(logit), weights[:2], Output.LOGIT)), p[:, 1:])


def test_weights_that_are_taken_out_predict_the_stream_as_it_is() -> None:
    learner, x = balanced(), block(1).features["x"][0]
    learner.learn(rare(3))
    counts = balance_of(learner).snapshot()
    expected = balance_of(learner).corrected(learner.model(x), balance_of(learner).weights())
    assert correct_last_layer(learner.model, HALVES, counts)
    np.testing.assert_allclose(learner.model(x), expected, rtol=1e-5)
    assert not correct_last_layer(mlp(loss="mse"), HALVES, counts)


@pytest.mark.parametrize(
    ("loss", "output"),
    [
        ("binary_crossentropy", Output.PROBABILITY),
        (keras.losses.BinaryCrossentropy(), Output.PROBABILITY),
        (keras.losses.BinaryCrossentropy(from_logits=True), Output.LOGIT),
        ("mse", None),
    ],
)
def test_the_output_is_corrected_only_where_its_loss_is_a_cross_entropy(loss: Any, output: Output | None) -> None:
    assert output_of(mlp(loss=loss), HALVES) is output
    assert output_of(mlp(loss=loss), HALVES.model_copy(update={"by": "x"})) is None
    assert output_of(mlp(loss=loss), HALVES.model_copy(update={"target": {"1": 0.5, "2": 0.5}})) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (HALVES.model_copy(update={"by": "y"}), "there is no 'y'"),
        (HALVES.model_copy(update={"by": "x"}), r"x has the shape \(6,\)"),
        (HALVES.model_copy(update={"target": {"no": 0.5, "yes": 0.5}}), "label holds numbers, and 'no' is none"),
    ],
)
def test_a_balance_that_does_not_fit_the_rows_is_refused(options: BalanceSettings, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        balanced(options).learn(rare(1))


def test_rows_that_stand_for_others_weigh_one_and_tell_the_streams_shares() -> None:
    learner = balanced(HALVES.model_copy(update={"how": "resample"}))
    balance = balance_of(learner)
    # One of twelve is of class 1, and of class 0 one of eleven is kept: it stands for eleven.
    kept = block(3, seed=1)
    labels = (np.arange(3 * BATCH) % 2).astype(np.float32).reshape(3, BATCH)
    weights = np.where(labels == 1, 1 / 6, 11 / 6).astype(np.float32)
    rows = kept._replace(labels=tf.constant(labels), weights=tf.constant(weights))
    for _ in range(60):
        learner.learn(rows)
    before, after = np.array([(one.share, one.learnt_share) for one in balance.figures().values()]).T
    np.testing.assert_allclose(before, [11 / 12, 1 / 12], rtol=0.02)
    np.testing.assert_allclose(after, [0.5, 0.5], atol=0.02)
    everything = (rows.features, rows.labels, rows.weights, rows.offsets)
    factors = balance.plan(everything, learner.call.strategy, live=tf.constant(1) > 0).factors
    np.testing.assert_allclose(factors * weights, np.ones_like(weights), rtol=0.05)
