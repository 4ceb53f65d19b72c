"""Features scaled by statistics that follow the stream: those before each batch, the same bits after a restart."""

from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from millrace.consumers.errors import ConfigError
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.shaping import ReservoirSettings
from millrace.pipelines.stream.blocks import Rows
from millrace.training.checkpoints.parts import PartState
from millrace.training.model.call.compiled_call import batch_of
from millrace.training.model.call.evaluation import Evaluation
from millrace.training.model.call.running_scale import HALF_LIFE, constants_of, with_constants
from millrace.training.model.export.export_reference import expected_answers
from millrace.training.model.export.served_module import ServedModel, ServedModule
from millrace.training.model.learner import Learner, LearnerOptions
from millrace.training.model.probes import Probe
from millrace.training.model.proof.function_proofs import states_add_up
from millrace.training.model.proof.proof import ModelProof
from millrace.training.model.setup.strategy import DeviceOptions
from tests.training.conftest import BATCH, FEATURES, SCHEMA, block, largest_difference, mlp, options_of, state_of
from tests.training.learner_pool import POOL

pytestmark = pytest.mark.tensorflow
X = replace(SCHEMA.features[0], scaled=(FEATURES,), missing=-1.0)
SCALED = replace(SCHEMA, features=(X,))


def scaling(**given: Any) -> Learner:
    """Return a learner that scales its feature as it is when it has just been built."""
    extra = {"reservoir": given.pop("reservoir", None)}
    return POOL.lend(mlp, replace(options_of(schema=given.pop("schema", SCALED), **given), **extra))


def growing(seed: int, batches: int = 3, rows: int | None = None) -> Rows:
    """Return a block whose values grow from one to the next, with some that are missing and one column that is one."""
    made = block(batches, rows=rows, seed=seed, first=1000 * seed)
    x = 1e3 + 3.0**seed * made.features["x"].numpy()
    x[..., ::3, 1] = -1.0
    x[..., 2] = 7.0
    return made._replace(features={"x": tf.constant(x.astype(np.float32))})


def by_hand(blocks: list[Rows]) -> tuple[Any, Any]:
    """Return mean and deviation after some blocks: each value weighs half as much after so many of its column."""
    found = []
    for column in range(FEATURES):
        values, weights = np.empty(0), np.empty(0)
        for rows in blocks:
            for x, offsets in zip(rows.features["x"].numpy(), rows.offsets.numpy(), strict=True):
                more = x[(offsets >= 0) & (x[:, column] != -1.0), column].astype(np.float64)
                weights = np.append(weights * 0.5 ** (len(more) / HALF_LIFE), np.ones(len(more)))
                values = np.append(values, more)
        mean = np.average(values, weights=weights)
        found.append((mean, np.sqrt(np.average((values - mean) ** 2, weights=weights))))
    mean, deviation = np.array(found).T
    return mean, np.where(deviation > 1e-6, deviation, 0.0)


def test_a_batch_is_scaled_by_those_before_it_without_absent_and_missing_values() -> None:
    learner = scaling()
    first, second = growing(0), growing(1, rows=2 * BATCH + 5)
    learner.learn(first)
    rows = [*(batch_of(second, at) for at in range(3))]
    live = tf.constant(True)  # noqa: FBT003 - a tensor's value
    given = learner.scale.scaled(second.features, learner.scale.plan(second, learner.strategy, live=live))["x"].numpy()
    for at in range(3):
        mean, deviation = by_hand([first, *rows[:at]])
        wanted = (second.features["x"].numpy()[at].astype(np.float64) - mean) / np.where(deviation > 0, deviation, 1)
        np.testing.assert_allclose(given[at], np.clip(wanted, -10, 10), rtol=1e-4, atol=1e-4)
    assert (given[..., 2] == 0).all(), "what does not vary tells nothing"
    learner.learn(second)
    mean, deviation = by_hand([first, second])
    mine, factor = constants_of(SCALED, learner.scale.snapshot())["x"]
    np.testing.assert_allclose(mine, mean, rtol=1e-12)
    np.testing.assert_allclose(np.where(factor > 0, 1 / np.where(factor > 0, factor, 1), 0), deviation, rtol=1e-9)


def test_before_there_are_statistics_the_model_is_given_zeros() -> None:
    learner, rows = scaling(), growing(3, batches=1)
    zeros = rows._replace(features={"x": tf.zeros_like(rows.features["x"])})
    losses, state = learner.learn(rows).result.losses, state_of(learner)
    POOL.anew(learner)
    assert learner.learn(zeros).result.losses == losses
    assert largest_difference(state, state_of(learner)) == 0


@pytest.mark.slow
def test_one_absurd_value_does_not_end_the_scale_and_one_that_is_not_finite_is_a_culprit() -> None:
    learner = scaling(batch=256)
    for seed in range(4):
        learner.learn(block(8, batch=256, seed=seed, first=10_000 * seed))
    _, before = constants_of(SCALED, learner.scale.snapshot())["x"]
    rows = block(2, batch=256, seed=5, first=50_000)
    x = rows.features["x"].numpy()
    x[0, 3, 0], x[1, 4, 0] = 1e30, np.nan
    lesson = learner.learn(rows._replace(features={"x": tf.constant(x)}))
    assert lesson.culprits.offsets == ((0, 50_000 + 256 + 4),)
    _, after = constants_of(SCALED, learner.scale.snapshot())["x"]
    assert 0.6 < after[0] / before[0] < 1


@pytest.mark.slow
def test_weights_that_were_learnt_without_a_scale_are_taken_out_without_one() -> None:
    """As those of the last checkpoint before the setting was made: zeros for a feature would tell them nothing."""
    assert constants_of(SCALED, None) == constants_of(SCALED, PartState()) == {}
    assert with_constants(None, SCALED, None) is None


@pytest.mark.parametrize("farthest", [None, 1e9])
def test_it_does_not_matter_how_batches_are_cut_into_calls(farthest: float | None) -> None:
    """Neither where a value is too far before the first call is over: it is bounded by the batches before its own."""
    learner, rows = scaling(), growing(1)
    if farthest is not None:
        x = rows.features["x"].numpy()
        x[2, 0, 0] = farthest
        rows = rows._replace(features={"x": tf.constant(x)})
    learner.learn(rows)
    whole, statistics = state_of(learner), learner.scale.variables[0].numpy().copy()
    POOL.anew(learner)
    for index in range(3):
        learner.learn(batch_of(rows, index))
    assert largest_difference(whole, state_of(learner)) < 1e-6
    np.testing.assert_allclose(statistics, learner.scale.variables[0], rtol=1e-12)


@pytest.mark.slow
@pytest.mark.row(42)
@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_a_restored_checkpoint_continues_with_the_same_bits(replicas: int) -> None:
    few = ReservoirSettings(size=50, share=0.25)
    whole, second = (scaling(replicas=replicas, passes=2, reservoir=few) for _ in range(2))
    for seed in range(2):
        whole.learn(growing(seed))
    for part, saved in zip(second.parts, whole.parts, strict=True):
        part.restore(saved.snapshot())
    for seed in range(2, 4):
        for learner in (whole, second):
            learner.learn(growing(seed))
    assert largest_difference(state_of(whole), state_of(second)) == 0
    assert whole.scale.snapshot() == second.scale.snapshot()
    reservoir = whole.call.shaping.reservoir
    assert reservoir is not None
    assert np.abs(reservoir.snapshot().arrays["feature.x"]).max() <= 10, "it keeps rows as they were learnt"
    before = whole.scale.snapshot()
    assert {finding.holds for finding in [*ModelProof(whole).findings(), *states_add_up(whole)]} == {True}
    assert whole.scale.snapshot() == before, "the proof of a start counts no row"


def test_statistics_of_another_shape_begin_anew_and_that_is_told(caplog: pytest.LogCaptureFixture) -> None:
    learner = scaling()
    learner.learn(growing(1))
    (name, held), *_ = learner.scale.snapshot().facts.items()
    longer = {key: [*values, 1.0] for key, values in held.items()}
    learner.scale.restore(PartState(facts={name: longer}))
    size = len(held["mean"])
    assert f"are of {size + 1} values and the feature has {size}, so they begin with the next records" in caplog.text
    assert {number for values in learner.scale.snapshot().facts[name].values() for number in values} == {0.0}


@pytest.mark.slow
def test_an_export_and_a_validation_scale_as_the_checkpoint_does() -> None:
    learner = scaling()
    for seed in range(3):
        learner.learn(growing(seed))
    rows = growing(2, batches=1)
    x, y = rows.features["x"].numpy(), rows.labels.numpy()
    p = np.asarray(learner.model(learner.scale.as_it_stands(rows.features)["x"][0]))[:, 0]
    served = ServedModel(
        model=learner.model, schema=SCALED, preprocess=with_constants(None, SCALED, learner.scale.snapshot())
    )
    answers = ServedModule(served).answer({"x": tf.constant(x[0])})["y"].numpy()
    np.testing.assert_allclose(answers[:, 0], p, rtol=1e-5)
    expected = expected_answers(served, Probe({"x": x[0]}, {"y": y[0]}))["y"]
    np.testing.assert_allclose(expected.astype(np.float32), answers, rtol=1e-5)
    loss = Evaluation(learner.call, BATCH)([rows]).mean_loss
    np.testing.assert_allclose(loss, -np.mean(np.log(np.where(y[0] == 1, p, 1 - p))), rtol=1e-4)


def test_of_a_sequence_the_newest_record_counts_and_all_are_scaled_alike() -> None:
    length = 3
    field = replace(X, shape=(length, FEATURES), missing=None)
    schema = replace(SCHEMA, features=(field,))

    def build() -> Any:
        inputs = keras.Input((length, FEATURES), name="x")
        model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(keras.layers.Flatten()(inputs)))
        model.compile(optimizer="sgd", loss="binary_crossentropy")
        return model

    learner = Learner(build, None, options_of(schema=schema))
    rows = block(1)
    x = np.stack([np.full((1, BATCH, FEATURES), 1e9), np.zeros((1, BATCH, FEATURES)), rows.features["x"]], 2)
    rows = rows._replace(features={"x": tf.constant(x.astype(np.float32))})
    learner.learn(rows)
    mean, factor = constants_of(schema, learner.scale.snapshot())["x"]
    np.testing.assert_allclose(mean, x[0, :, -1].mean(0), rtol=1e-6)
    given = learner.scale.as_it_stands(rows.features)["x"].numpy()
    np.testing.assert_allclose(given[0, :, 1], np.tile(-mean * factor, (BATCH, 1)), rtol=1e-5)
    assert (given[0, :, 0] == 10).all()


@pytest.mark.parametrize(
    ("name", "columns", "said"),
    [("z", FEATURES, "returns no feature 'x'"), ("x", 2, r"returns it as float32\[2\].*float32\[6\]")],
)
def test_a_preprocess_that_keeps_no_such_feature_is_refused(name: str, columns: int, said: str) -> None:
    def preprocess(features: Any, label: Any, weight: Any) -> Any:
        return {name: features["x"][:, :columns]}, label, weight

    def build() -> Any:
        inputs = keras.Input((columns,), name=name)
        model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
        model.compile(optimizer="sgd", loss="mse")
        return model

    with pytest.raises(ConfigError, match=rf"records.features.x.scale: preprocess {said}"):
        Learner(build, preprocess, options_of(schema=SCALED))


RECORDS, SIZE, CALL = 100_000, 250, 40


def prices() -> tuple[Any, Any, Any, Any]:
    """Return prices that grow 100-fold, two other numbers, the labels, and the prices by their true constants."""
    random = np.random.default_rng(3)
    level = 100.0 ** (1 + np.arange(RECORDS) / RECORDS)
    noise, x = random.normal(size=RECORDS), random.normal(size=(RECORDS, 2))
    y = 3 * noise + x @ [1, -1] + 0.5 * random.logistic(size=RECORDS) > 0
    price = level * np.exp(0.2 * noise)
    mean = level * np.exp(0.02)
    true = (price - mean) / (mean * np.sqrt(np.exp(0.04) - 1))
    return price, x, y.astype(np.float32), true


def accuracy(price: Any, x: Any, y: Any, *, scaled: bool) -> float:
    """Learn all records; return how many were guessed right before they were learnt, in points."""

    def build() -> Any:
        inputs = [keras.Input((1,), name="price"), keras.Input((2,), name="x")]
        hidden = keras.layers.Dense(16, activation="relu")(keras.layers.Concatenate()(inputs))
        model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))
        model.compile(keras.optimizers.Adam(0.005), "binary_crossentropy", metrics=["accuracy"])
        return model

    features = (
        Field(name="price", source="price", dtype="float32", shape=(1,), scaled=(1,) if scaled else None),
        Field(name="x", source="x", dtype="float32", shape=(2,)),
    )
    schema = Schema(features=features, labels=SCHEMA.labels)
    options = LearnerOptions(schema=schema, batch_size=SIZE, devices=DeviceOptions(replicas=1), seed=7)
    learner, states = Learner(build, None, options), np.zeros(2)
    for first in range(0, RECORDS, CALL * SIZE):
        own = slice(first, first + CALL * SIZE)
        columns = {"price": price[own].reshape(CALL, SIZE, 1), "x": x[own].reshape(CALL, SIZE, 2)}
        rows = Rows(
            features={name: tf.constant(column.astype(np.float32)) for name, column in columns.items()},
            labels=tf.constant(y[own].reshape(CALL, SIZE)),
            weights=tf.ones((CALL, SIZE)),
            offsets=tf.constant(np.arange(first, first + CALL * SIZE).reshape(CALL, SIZE)),
            partitions=tf.zeros((CALL, SIZE), tf.int32),
        )
        states += np.array(learner.learn(rows).result.states[:2], np.float64)
    return float(100 * states[0] / states[1])


@pytest.mark.slow
def test_a_price_that_grows_a_hundredfold_costs_a_point_at_most() -> None:
    price, x, y, true = prices()
    by_true, running, raw = (
        accuracy(true, x, y, scaled=False),
        accuracy(price, x, y, scaled=True),
        accuracy(price, x, y, scaled=False),
    )
    assert running > by_true - 1, (by_true, running, raw)
    assert raw < by_true - 5, (by_true, running, raw)
