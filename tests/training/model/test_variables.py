"""Variables by structure, refused before they are touched, and copied so that later updates do not reach the copy."""

import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.stream.blocks import Rows
from millrace.training.checkpoints.parts import PartState
from millrace.training.errors import OtherModelError, UncapturedStateError
from millrace.training.model.learner import Learner
from millrace.training.model.variables import VariablesPart, model_variables, optimizer_variables, optimizers_of
from tests.training.conftest import BATCH, FEATURES, MakeLearner, block, largest_difference, mlp, state_of

pytestmark = pytest.mark.tensorflow

OPTIMIZERS = {
    "adam": keras.optimizers.Adam,
    "nadam": keras.optimizers.Nadam,
    "sgd": lambda: keras.optimizers.SGD(momentum=0.9),
    "rmsprop": lambda: keras.optimizers.RMSprop(centered=True, momentum=0.5),
    "ftrl": keras.optimizers.Ftrl,
    "average": lambda: keras.optimizers.AdamW(use_ema=True),
}
TRACED = [
    pytest.param(optimizer, id=name, marks=() if name == "average" else pytest.mark.nightly)
    for name, optimizer in OPTIMIZERS.items()
]
"""The same where a learner is traced with each; the gate takes the one that keeps most state."""


class Drawing(keras.layers.Layer):
    """State of its own, unnamed: a seed generator and a variable."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds = keras.random.SeedGenerator(1)
        self.count = keras.Variable(0.0, trainable=False)

    def call(self, x: Any) -> Any:
        self.count.assign_add(1.0)
        return x + 0.0 * keras.random.normal((), seed=self.seeds)


def _of_everything(optimizer: Callable[[], Any] = keras.optimizers.Adam) -> Any:
    """Layers whose names Keras counts up, by themselves, wrapped and nested."""
    inputs = keras.Input((FEATURES,), name="x")
    hidden = keras.layers.Reshape((FEATURES, 1))(inputs)
    hidden = keras.layers.Bidirectional(keras.layers.LSTM(2, return_sequences=True))(hidden)
    hidden = keras.layers.Conv1D(3, 2)(hidden)
    hidden = keras.layers.MultiHeadAttention(1, 2)(hidden, hidden)
    hidden = keras.layers.GRU(3, dropout=0.2)(hidden)
    hidden = keras.layers.PReLU()(Drawing()(hidden))
    inner = [keras.layers.Dense(3), keras.layers.BatchNormalization(), keras.layers.Dense(3), keras.layers.Dropout(0.1)]
    hidden = keras.Sequential(inner)(hidden)
    outputs = keras.layers.Dense(1, activation="sigmoid")(hidden)
    model = keras.Model(inputs, outputs)
    model.compile(optimizer=optimizer(), loss="binary_crossentropy")
    model.optimizer.build(model.trainable_variables)
    return model


def _image() -> Any:
    layers = [keras.layers.Conv2D(2, 2), keras.layers.Conv2DTranspose(2, 2), keras.layers.DepthwiseConv2D(2)]
    model = keras.Sequential([keras.Input((5, 5, 1)), *layers, keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
    model.optimizer.build(model.trainable_variables)
    return model


# Names


@pytest.mark.parametrize("build", [_of_everything, _image], ids=["sequences", "images"])
def test_the_same_model_built_again_has_the_same_keys_for_all_its_variables(
    build: Callable[[], Any],
) -> None:
    first, second = build(), build()
    assert {v.path for v in first.variables} != {v.path for v in second.variables}, "Keras has counted on"
    for keys in (model_variables, optimizer_variables):
        assert list(keys(first)) == list(keys(second))
        assert [v.shape for v in keys(first).values()] == [v.shape for v in keys(second).values()]


def test_every_variable_has_a_key_seeds_included() -> None:
    model = _of_everything()
    assert len(model_variables(model)) == len(model.variables)
    assert sum("seed_generator" in key for key in model_variables(model)) == 5


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_the_optimizers_state_is_found_under_the_weight_it_belongs_to(optimizer: Callable[[], Any]) -> None:
    first, second = _of_everything(optimizer), _of_everything(optimizer)
    keys = optimizer_variables(first)
    assert list(keys) == list(optimizer_variables(second))
    assert len(keys) == len(first.optimizer.variables)
    assert not any("#" in key for key in keys), "two of them share a key"
    assert {"optimizer/iteration", "optimizer/learning_rate"} <= keys.keys()


def test_names_that_the_user_gave_stay_as_they_are() -> None:
    inputs = keras.Input((3,), name="x")
    hidden = keras.layers.Dense(2, name="tower_7")(inputs)
    outputs = keras.layers.Dense(1, name="clicked_2024")(keras.layers.Dense(2)(hidden))
    assert set(model_variables(keras.Model(inputs, outputs))) == {
        *("tower_7/kernel", "tower_7/bias", "dense/kernel", "dense/bias", "clicked_2024/kernel", "clicked_2024/bias")
    }


def test_layers_with_one_name_at_one_place_are_told_apart_in_their_order() -> None:
    class Twins(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.towers = [keras.layers.Dense(size, name="tower") for size in (2, 4)]

        def call(self, x: Any) -> Any:
            return self.towers[1](self.towers[0](x))

    model = Twins()
    model(np.zeros((1, 3), np.float32))
    shapes = {key: tuple(variable.shape) for key, variable in model_variables(model).items() if "kernel" in key}
    assert shapes == {"twins/tower/kernel": (3, 2), "twins/tower/kernel#2": (2, 4)}


class TwoOptimizers(keras.Model):
    """A model of which the second optimizer trains the last layer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.head_optimizer = keras.optimizers.SGD(0.1, momentum=0.9)

    def train_step(self, data: Any) -> Any:
        x, y, weight = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True), weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients[:-2], self.trainable_variables[:-2])
        self.head_optimizer.apply(gradients[-2:], self.trainable_variables[-2:])
        return {"loss": loss}


def _with_two_optimizers() -> Any:
    model = mlp(model=TwoOptimizers)
    model.optimizer.build(model.trainable_variables[:-2])
    model.head_optimizer.build(model.trainable_variables[-2:])
    return model


def test_a_second_optimizer_is_saved_under_its_attributes_name_and_resumed(learner_of: MakeLearner) -> None:
    undisturbed, second = (learner_of(_with_two_optimizers) for _ in range(2))
    assert list(optimizers_of(undisturbed.model)) == ["optimizer", "head_optimizer"]
    assert any(key.startswith("head_optimizer/dense_1_kernel_mom") for key in optimizer_variables(undisturbed.model))
    for seed in range(4):
        undisturbed.learn(block(2, seed=seed))
        if seed > 1:
            second.learn(block(2, seed=seed))
        if seed == 1:
            for part, fresh in zip(undisturbed.parts, second.parts, strict=True):
                fresh.restore(part.snapshot())
    assert largest_difference(state_of(undisturbed), state_of(second)) == 0


# Refused


def test_another_model_is_refused_with_names_and_shapes_before_any_change(
    learner_of: MakeLearner,
) -> None:
    narrow = learner_of(lambda: mlp(keras.layers.Dense(4, name="middle"), keras.layers.Dense(3, name="gone")))
    wide = learner_of(lambda: mlp(keras.layers.Dense(5, name="middle"), keras.layers.Dense(3, name="fresh")))
    before = state_of(wide)
    with pytest.raises(OtherModelError) as told:
        wide.parts[0].restore(narrow.parts[0].snapshot())
    text = str(told.value)
    assert text.startswith("the checkpoint holds another model (model): ")
    assert "middle/kernel is [8, 5] here and [8, 4] there" in text
    assert "fresh/bias is new" in text
    assert "gone/kernel is gone" in text
    assert "model.args" in text
    assert largest_difference(before, state_of(wide)) == 0


def test_many_differences_are_shown_by_the_first_and_counted() -> None:
    part = VariablesPart("model", {f"layer_{i}": tf.Variable(0.0) for i in range(10)})
    with pytest.raises(OtherModelError, match="and 4 more"):
        part.restore(PartState())


class Counting(keras.layers.Layer):
    """Holds a variable that Keras does not know of."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = tf.Variable(0.0, trainable=False, name="seen_so_far")

    def call(self, x: Any) -> Any:
        self.seen.assign_add(1.0)
        return x


class Dicing(keras.layers.Layer):
    """Draws from TensorFlow's own state."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        super().__init__()
        self.draw = draw

    def call(self, x: Any) -> Any:
        return x + 0.0 * tf.stop_gradient(self.draw(x))


class Remembering(keras.Model):
    """Changes a lookup table while it trains."""

    table: Any = None

    def train_step(self, data: Any) -> Any:
        self.table.insert(tf.constant([1], tf.int64), tf.constant([1], tf.int64))
        return super().train_step(data)


def _trace(learner: Learner, *, deterministic: bool = False) -> None:
    learner.trace(learner.rows_of(learner.probe()), deterministic=deterministic)


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_variable_that_keras_does_not_know_of_is_refused_by_name(learner_of: MakeLearner, replicas: int) -> None:
    with pytest.raises(UncapturedStateError, match=r"seen_so_far.*add_weight"):
        _trace(learner_of(lambda: mlp(Counting()), replicas=replicas))


def test_a_lookup_table_that_changes_while_training_is_refused_by_name(learner_of: MakeLearner) -> None:
    Remembering.table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)
    with pytest.raises(UncapturedStateError, match=r"LookupTableInsert.*Hashing"):
        _trace(learner_of(lambda: mlp(model=Remembering)))


DRAWS: dict[str, Callable[[Any], Any]] = {
    "normal": lambda x: tf.random.normal(tf.shape(x)),
    "uniform": lambda x: tf.random.uniform(tf.shape(x)),
    "shuffle": tf.random.shuffle,
    "dropout": lambda x: tf.nn.dropout(x, 0.5),
    "gamma": lambda x: tf.random.gamma(tf.shape(x), 1.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_random_numbers_without_a_seed_generator_are_refused_if_deterministic(
    learner_of: MakeLearner, draw: Callable[[Any], Any]
) -> None:
    learner = learner_of(lambda: mlp(Dicing(draw)))
    _trace(learner)
    with pytest.raises(UncapturedStateError, match=r"training\.deterministic.*SeedGenerator"):
        _trace(learner, deterministic=True)


def test_a_generator_of_tensorflows_is_refused_as_the_variable_that_it_is(learner_of: MakeLearner) -> None:
    def build() -> Any:
        generator = tf.random.Generator.from_seed(1)
        return mlp(Dicing(lambda x: generator.normal(tf.shape(x))))

    with pytest.raises(UncapturedStateError, match="StateVar"):
        _trace(learner_of(build))


def test_dropout_and_what_else_keras_seeds_is_let_pass(learner_of: MakeLearner) -> None:
    _trace(learner_of(lambda: mlp(keras.layers.Dropout(0.5), keras.layers.GaussianNoise(0.1))), deterministic=True)


# Copies

ROWS = 1000


def _embedding(optimizer: Callable[[], Any]) -> Any:
    inputs = keras.Input((), name="ad", dtype="int32")
    outputs = keras.layers.Dense(1)(keras.layers.Embedding(ROWS, 4)(inputs))
    model = keras.Model({"ad": inputs}, outputs)
    model.compile(optimizer=optimizer(), loss="mse")
    return model


EMBEDDED = Schema(
    features=(Field(name="ad", source="ad", dtype="int32"),), labels=(Field(name="y", source="y", dtype="float32"),)
)


def _ads(seed: int) -> Rows:
    ads = np.random.default_rng(seed).integers(0, ROWS, (2, BATCH)).astype(np.int32)
    return Rows(
        features={"ad": tf.constant(ads)},
        labels=tf.constant((ads % 2).astype(np.float32)),
        weights=tf.ones((2, BATCH)),
        offsets=tf.constant(np.arange(2 * BATCH).reshape(2, BATCH)),
        partitions=tf.zeros((2, BATCH), tf.int32),
    )


def _held_back(learner: Learner, learn: Callable[[int], object]) -> None:
    """Check that a snapshot that is read after more training holds what it held when it was taken."""
    learn(0)
    snapshots = [part.snapshot() for part in learner.parts[:2]]
    then = [{k: v.copy() for k, v in snapshot.arrays.items()} for snapshot in snapshots]
    late = [part.snapshot() for part in learner.parts[:2]]
    for seed in range(1, 4):
        learn(seed)
    changed = False
    for part, early, held in zip(learner.parts[:2], then, late, strict=True):
        now = part.snapshot().arrays
        for key, value in held.arrays.items():
            np.testing.assert_array_equal(value, early[key], err_msg=key)
            changed = changed or not np.array_equal(now[key], value)
    assert changed, "nothing was learnt in between"


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("optimizer", TRACED)
def test_a_snapshot_does_not_change_when_training_goes_on(
    learner_of: MakeLearner, optimizer: Callable[[], Any], replicas: int
) -> None:
    def build() -> Any:
        model = mlp(keras.layers.BatchNormalization(), keras.layers.Dropout(0.2))
        model.compile(optimizer=optimizer(), loss="binary_crossentropy")
        return model

    learner = learner_of(build, replicas=replicas)
    _held_back(learner, lambda seed: learner.learn(block(2, seed=seed)))


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("optimizer", TRACED)
def test_a_snapshot_of_an_embedding_does_not_change_when_single_rows_are_updated(
    learner_of: MakeLearner, optimizer: Callable[[], Any], replicas: int
) -> None:
    learner = learner_of(lambda: _embedding(optimizer), replicas=replicas, schema=EMBEDDED)
    _held_back(learner, lambda seed: learner.learn(_ads(seed)))


def test_a_snapshot_survives_updates_in_place_by_row() -> None:
    """Change a variable as much as any optimizer could between the copy and the writing."""
    variable = tf.Variable(np.zeros((ROWS, 4), np.float32))
    part = VariablesPart("model", {"rows": variable})
    for _ in range(3):
        before = variable.numpy().copy()
        snapshot = part.snapshot()
        variable.scatter_add(tf.IndexedSlices(tf.ones((2, 4)), tf.constant([1, 2])))
        variable.assign_add(tf.ones_like(variable))
        np.testing.assert_array_equal(snapshot.arrays["rows"], before)


def test_memory_of_a_snapshot_serves_another_once_it_is_released_and_not_before() -> None:
    variable = tf.Variable(np.zeros(ROWS, np.float32))
    part = VariablesPart("model", {"rows": variable})
    first = part.snapshot()
    variable.assign_add(tf.ones_like(variable))
    second = part.snapshot()
    assert not np.shares_memory(first.arrays["rows"], second.arrays["rows"])
    first.release()
    variable.assign_add(tf.ones_like(variable))
    third = part.snapshot()
    assert np.shares_memory(first.arrays["rows"], third.arrays["rows"])
    np.testing.assert_array_equal(second.arrays["rows"], np.ones(ROWS))
    np.testing.assert_array_equal(third.arrays["rows"], np.full(ROWS, 2.0))


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_restore_sets_every_replicas_copy(learner_of: MakeLearner, replicas: int) -> None:
    trained, fresh = learner_of(), learner_of(replicas=replicas)
    trained.learn(block(2))
    for part, other in zip(trained.parts[:2], fresh.parts[:2], strict=True):
        other.restore(part.snapshot())
    for key, variable in model_variables(fresh.model).items():
        wanted = np.asarray(model_variables(trained.model)[key])
        copies = variable.value.values
        assert len(copies) == replicas
        for copy in copies:
            np.testing.assert_array_equal(copy.numpy(), wanted)


def test_the_size_of_the_state_is_that_of_its_arrays(learner_of: MakeLearner) -> None:
    learner = learner_of()
    assert learner.state_bytes == sum(value.nbytes for value in state_of(learner).values())
    assert re.fullmatch(r"CPU:0", learner.devices[0])
