"""Labels that a row may lack: what is learnt and scored is that of plain Keras with a weight for each output."""

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from millrace.consumers.errors import ConfigError
from millrace.pipelines.schema import PRESENT, Field, Schema
from millrace.pipelines.shaping import BalanceSettings, ReservoirSettings
from millrace.pipelines.stream.blocks import Rows
from millrace.training.model.call.evaluation import Evaluation
from millrace.training.model.learner import Learner, LearnerOptions
from millrace.training.model.proof.proof import Finding, ModelProof
from millrace.training.model.setup.strategy import DeviceOptions
from tests.training.learner_pool import POOL

pytestmark = pytest.mark.tensorflow
BATCH, STEPS = 16, 6
SCHEMA = Schema(
    features=(Field(name="x", source="x", dtype="float32", shape=(3,)),),
    labels=(
        Field(name="watched", source="watched", dtype="float32", masked=True),
        Field(name="kind", source="kind", dtype="int32", masked=True, one_of=(0, 1, 2)),
    ),
)
ABSURD = (np.nan, np.inf, 3e38, -1e30)
"""What stands where a number is missing."""


def two_outputs(*, listed: bool = False, model: Any = keras.Model, **compiled: Any) -> Any:
    """Build a model of two outputs, in a list or by name."""
    inputs = keras.Input((3,), name="x")
    hidden = keras.layers.Dense(8, activation="relu")(inputs)
    outputs = {
        "watched": keras.layers.Dense(1, name="watched")(hidden),
        "kind": keras.layers.Dense(3, activation="softmax", name="kind")(hidden),
    }
    built = model(inputs, [*outputs.values()] if listed else outputs)
    built.compile(
        optimizer=keras.optimizers.Adam(0.01),
        loss={"watched": "mse", "kind": "sparse_categorical_crossentropy"},
        loss_weights={"watched": 0.5, "kind": 1.0},
        metrics={"watched": ["mae"], "kind": ["accuracy"]},
        weighted_metrics={"watched": [keras.metrics.MeanSquaredError(name="squares")]},
        **compiled,
    )
    return built


def options(**given: Any) -> LearnerOptions:
    devices = DeviceOptions(replicas=given.pop("replicas", 1))
    return LearnerOptions(schema=SCHEMA, batch_size=BATCH, devices=devices, seed=7, **given)


class Batch:
    """Rows of which some lack a label; with `absurd` something that no record holds stands there."""

    def __init__(self, seed: int, *, absurd: bool = True) -> None:
        random = np.random.default_rng(seed)
        self.x = random.normal(size=(BATCH, 3)).astype(np.float32)
        self.labels = {
            "watched": random.normal(size=BATCH).astype(np.float32),
            "kind": random.integers(0, 3, BATCH).astype(np.int32),
        }
        self.there = {name: random.random(BATCH) < 0.6 for name in self.labels}
        if seed == 3:
            self.there["watched"][:] = False
        self.here = np.arange(BATCH) < BATCH - 3
        self.weights = np.where(self.here, random.uniform(0.5, 2, BATCH), 0).astype(np.float32)
        self.held = {name: column.copy() for name, column in self.labels.items()}
        if absurd:
            self.held["watched"][~self.there["watched"]] = np.resize(ABSURD, int((~self.there["watched"]).sum()))
            self.held["kind"][~self.there["kind"]] = 2**31 - 1
        self.first = seed * BATCH

    @property
    def by_output(self) -> dict[str, Any]:
        return {name: self.weights * mask for name, mask in self.there.items()}

    def rows(self) -> Rows:
        def one(column: Any) -> Any:
            return tf.constant(column)[tf.newaxis]

        masks = {name + PRESENT: one(mask) for name, mask in self.there.items()}
        return Rows(
            features={"x": one(self.x)},
            labels={name: one(column) for name, column in self.held.items()} | masks,
            weights=one(self.weights),
            offsets=one(np.where(self.here, self.first + np.arange(BATCH), -1)),
            partitions=one(np.where(self.here, 0, -1).astype(np.int32)),
        )


def values(model: Any) -> list[Any]:
    return [np.asarray(variable) for variable in [*model.variables, *model.optimizer.variables]]


@pytest.mark.parametrize("listed", [False, True])
def test_masked_labels_learn_the_bits_of_plain_keras_with_a_weight_for_each_output(listed: bool) -> None:
    learner = POOL.lend(partial(two_outputs, listed=listed), options())
    keras.utils.set_random_seed(7)
    plain = two_outputs(listed=listed)
    plain.jit_compile = False  # XLA computes the same sums in another order
    for batch in map(Batch, range(STEPS)):
        assert learner.call(batch.rows()).finite.all()
        y, w = batch.labels, batch.by_output
        plain.train_on_batch(batch.x, [*y.values()] if listed else y, [*w.values()] if listed else w)
    for mine, theirs in zip(values(learner.model), values(plain), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def learnt(learner: Learner, *, absurd: bool) -> list[Any]:
    """Learn some batches from the beginning on; return all that came of it, of numbers that are finite."""
    POOL.anew(learner)
    results = [learner.call(Batch(seed, absurd=absurd).rows()) for seed in range(STEPS)]
    assert all(result.finite.all() for result in results)
    shown = [one for result in results for one in (result.losses, *result.states)]
    return [*values(learner.model), *shown]


def test_what_stands_in_a_masked_place_changes_no_bit() -> None:
    learner = POOL.lend(two_outputs, options())
    for mine, theirs in zip(learnt(learner, absurd=True), learnt(learner, absurd=False), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_metrics_of_an_output_count_the_rows_that_have_its_label() -> None:
    learner, batch = POOL.lend(two_outputs, options()), Batch(1)
    predicted = {name: np.asarray(one) for name, one in learner.model(batch.x).items()}
    found = learner.call.metrics.results(learner.call(batch.rows()).states)
    watched, kind = (batch.here & batch.there[name] for name in ("watched", "kind"))
    gaps = (batch.labels["watched"] - predicted["watched"][:, 0])[watched]
    right = (predicted["kind"].argmax(axis=1) == batch.labels["kind"])[kind]
    weights = batch.weights[watched]
    expected = {"mae": np.abs(gaps).mean(), "accuracy": right.mean(), "squares": weights @ gaps**2 / weights.sum()}
    assert found == pytest.approx(expected, rel=1e-5)


def test_two_replicas_learn_the_weights_of_one() -> None:
    one, two = POOL.lend(two_outputs, options()), POOL.lend(two_outputs, options(replicas=2))
    for seed in range(STEPS):
        one.call(Batch(seed).rows())
        two.call(Batch(seed).rows())
    for mine, theirs in zip(values(one.model), values(two.model), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "shaped",
    [
        {"balance": BalanceSettings(by="kind", target={"0": 0.5, "1": 0.5})},
        # A reservoir by class, and passes that draw, do these two and more.
        pytest.param({"reservoir": ReservoirSettings(size=40, share=0.5)}, marks=pytest.mark.nightly),
        {"reservoir": ReservoirSettings(size=42, share=0.5, by="kind")},
        pytest.param({"passes": 2}, marks=pytest.mark.nightly),
        {"passes": 3, "memory": 40},
    ],
)
def test_masked_places_change_no_bit_where_rows_are_shaped(shaped: dict[str, Any]) -> None:
    learner = POOL.lend(two_outputs, options(**shaped))
    for mine, theirs in zip(learnt(learner, absurd=True), learnt(learner, absurd=False), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_balance_counts_no_row_whose_class_is_missing() -> None:
    learner = POOL.lend(two_outputs, options(balance=BalanceSettings(by="kind", target={"0": 0.5, "1": 0.5})))
    batch = Batch(0, absurd=False)
    learner.call(batch.rows())
    counted = batch.here & batch.there["kind"]
    assert learner.call.shaping.balance is not None
    expected = [int((batch.labels["kind"][counted] == one).sum()) for one in (0, 1)]
    assert learner.call.shaping.balance.counts.numpy().tolist() == expected


def test_a_reservoir_by_a_label_keeps_no_row_without_it() -> None:
    learner = Learner(two_outputs, None, options(reservoir=ReservoirSettings(size=300, share=0.5, by="kind")))
    batches = [Batch(seed) for seed in range(STEPS)]
    for batch in batches:
        learner.call(batch.rows())
    reservoir = learner.call.shaping.reservoir
    assert reservoir is not None
    assert reservoir.figures().rows == sum(int((one.here & one.there["kind"]).sum()) for one in batches)


def test_an_evaluation_scores_each_output_on_the_rows_that_have_its_label() -> None:
    learner, batch = POOL.lend(two_outputs, options()), Batch(2)
    totals = Evaluation(learner.call, BATCH)([batch.rows()])
    plain = two_outputs()
    plain.set_weights([np.asarray(variable) for variable in learner.model.variables])
    losses = plain.test_on_batch(batch.x, batch.labels, batch.by_output, return_dict=True)
    assert totals.mean_loss == pytest.approx(losses["loss"] * BATCH / batch.here.sum(), rel=1e-5)
    found = learner.call.metrics.results(totals.states)
    assert found["squares"] == pytest.approx(losses["watched_squares"], rel=1e-5)


class Deaf(keras.Model):
    """A step that weighs the rows of all outputs alike."""

    def train_step(self, data: Any) -> Any:
        x, y, weights = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            gap = tf.square(y["watched"] - y_pred["watched"][:, 0])
            loss = tf.reduce_mean(gap * weights[self.weighs])
        gradients = tape.gradient(loss, self.trainable_variables)
        used = [pair for pair in zip(gradients, self.trainable_variables, strict=True) if pair[0] is not None]
        self.optimizer.apply_gradients(used)
        return {"loss": loss}

    weighs = "kind"


class Hearing(Deaf):
    """The same with the weights of the output."""

    weighs = "watched"


class Counting(keras.Model):
    """Counts a metric of its own without the output's weights."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.own = keras.metrics.MeanAbsoluteError(name="own")

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        self.own.update_state(y["watched"], y_pred["watched"])
        return super().compute_metrics(x, y, y_pred, sample_weight)


def masked_finding(build: Callable[[], Any]) -> Finding:
    found = ModelProof(Learner(build, None, options())).findings()
    return next(one for one in found if one.claim == "a row without a label does not learn that output")


@pytest.mark.slow
@pytest.mark.parametrize("build", [two_outputs, partial(two_outputs, listed=True), partial(two_outputs, model=Hearing)])
def test_a_model_that_honours_the_weights_passes_the_proof(build: Callable[[], Any]) -> None:
    assert masked_finding(build).holds


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "detail"),
    [
        (Deaf, "depends on what stands for 'watched' in a row without it"),
        (Counting, "metric own counts rows without 'watched'"),
    ],
)
def test_a_model_that_learns_or_counts_masked_rows_fails_the_proof(model: Any, detail: str) -> None:
    finding = masked_finding(partial(two_outputs, model=model))
    assert finding.holds is False
    assert detail in finding.detail


def test_the_proof_says_nothing_of_masks_where_each_row_has_all_labels() -> None:
    schema = Schema(
        features=SCHEMA.features,
        labels=tuple(Field(name=one.name, source=one.name, dtype=one.dtype) for one in SCHEMA.labels),
    )
    learner = Learner(
        two_outputs, None, LearnerOptions(schema=schema, batch_size=BATCH, devices=DeviceOptions(replicas=1))
    )
    assert not [one for one in ModelProof(learner).findings() if "without a label" in one.claim]


def test_preprocess_has_to_return_the_masked_labels_by_name() -> None:
    seen = list[Any]()

    def doubled(features: Any, labels: Any, weights: Any) -> Any:
        seen.append({*labels})
        return features, {**labels, "watched": labels["watched"] * 2}, weights

    learner = Learner(two_outputs, doubled, options())
    assert {frozenset(names) for names in seen} == {frozenset({"watched", "kind"})}
    assert "watched.present" in learner.rows_of(learner.probe()).labels
    with pytest.raises(ConfigError, match="preprocess: it returns no label 'watched', which a record may lack"):
        Learner(two_outputs, lambda x, y, w: (x, (y["watched"], y["kind"]), w), options())


def test_augment_is_refused_with_masked_labels() -> None:
    with pytest.raises(ConfigError, match="augment: records may lack the label 'watched'"):
        Learner(two_outputs, None, options(augment=lambda x, y, w: (x, y, w)))
