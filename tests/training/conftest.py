"""Learners on one, two or three logical CPU devices, and small models and blocks for them."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager.context import Context

from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.stream.blocks import Rows
from millrace.training.model.learner import Learner, LearnerOptions
from millrace.training.model.setup.strategy import DeviceOptions
from tests.training.learner_pool import POOL

FEATURES = 6
BATCH = 12

SCHEMA = Schema(
    features=(Field(name="x", source="x", dtype="float32", shape=(FEATURES,)),),
    labels=(Field(name="y", source="y", dtype="float32"),),
)


def mlp(*layers: Any, loss: Any = "binary_crossentropy", metrics: Any = ("accuracy",), model: Any = None) -> Any:
    """Build a small classifier with some layers in its middle."""
    inputs = keras.Input((FEATURES,), name="x")
    hidden = keras.layers.Dense(8, activation="relu")(inputs)
    for layer in layers:
        hidden = layer(hidden)
    outputs = keras.layers.Dense(1, activation="sigmoid")(hidden)
    built = (model or keras.Model)(inputs, outputs)
    built.compile(optimizer=keras.optimizers.Adam(1e-2), loss=loss, metrics=list(metrics))
    return built


class Fragile(keras.Model):
    """Raises if a feature is above 100, after it has updated the weights."""

    def train_step(self, data: Any) -> Any:
        logs = super().train_step(data)
        moved = 0.0 * tf.reduce_sum(self.trainable_variables[0].value)
        x = data[0]["x"] if isinstance(data[0], dict) else data[0]
        largest = tf.reduce_max(tf.where(tf.math.is_nan(x), 0.0, x))
        tf.debugging.assert_less(largest + moved, 100.0, message="a feature is too large")
        return logs


MakeLearner = Callable[..., Learner]


def _seed_alone(context: Any, seed: int) -> None:
    """Set the seed as TensorFlow does, and leave the kernels."""
    context._seed, context._rng = seed, Random(seed)


@pytest.fixture(autouse=True)
def lending(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take back what the test has lent from the pool of learners, when all else of the test has ended.

    A seed, which each learner sets as it is built or reset, leaves the kernels of all others: TensorFlow would drop
    them, and optimize every function again at its next call. No learner in use here draws by a kernel's own state.
    """
    monkeypatch.setattr(Context, "_set_global_seed", _seed_alone)
    yield
    POOL.take_back()


@pytest.fixture
def learner_of() -> MakeLearner:
    """Return a function that gives a learner as it is when it has just been built; it may come from the pool."""

    def lend(build: Callable[[], Any] = mlp, **given: Any) -> Learner:
        return POOL.lend(build, options_of(**given))

    return lend


@pytest.fixture
def fresh_learner_of() -> MakeLearner:
    """Return a function that builds a learner."""

    def make(build: Callable[[], Any] = mlp, **given: Any) -> Learner:
        return Learner(build, None, options_of(**given))

    return make


def options_of(*, replicas: int = 1, batch: int = BATCH, schema: Schema = SCHEMA, passes: int = 1) -> LearnerOptions:
    """Return the options of a learner with these."""
    devices = DeviceOptions(replicas=replicas)
    return LearnerOptions(schema=schema, batch_size=batch, devices=devices, seed=7, passes=passes)


def block(batches: int, *, rows: int | None = None, batch: int = BATCH, seed: int = 0, first: int = 0) -> Rows:
    """Make a learnable block; rows beyond `rows` are absent, and are copies of the first."""
    random = np.random.default_rng(seed)
    size = batches * batch
    present = size if rows is None else rows
    x = random.normal(size=(size, FEATURES)).astype(np.float32)
    y = (x.sum(axis=1) > 0).astype(np.float32)
    here = np.arange(size) < present
    x[~here], y[~here] = x[0], y[0]
    shape = (batches, batch)
    return Rows(
        features={"x": tf.constant(x.reshape(*shape, FEATURES))},
        labels=tf.constant(y.reshape(shape)),
        weights=tf.constant(here.astype(np.float32).reshape(shape)),
        offsets=tf.constant(np.where(here, first + np.arange(size), -1).reshape(shape)),
        partitions=tf.zeros(shape, tf.int32),
    )


def with_feature(rows: Rows, row: int, value: float) -> Rows:
    """Return the same block with one number of one row replaced."""
    x = rows.features["x"].numpy().copy()
    x.reshape(-1, FEATURES)[row, 2] = value
    features, *others = rows
    return Rows({**features, "x": tf.constant(x)}, *others)


def state_of(learner: Learner) -> dict[str, Any]:
    """Return every number of model and optimizer that a checkpoint would hold."""
    values = {}
    for part in learner.parts[:2]:
        for key, value in part.snapshot().arrays.items():
            values[f"{part.name}/{key}"] = np.array(value)
    return values


def largest_difference(a: dict[str, Any], b: dict[str, Any]) -> float:
    """Return the largest difference between two states."""
    assert a.keys() == b.keys()
    return max(float(np.max(np.abs(a[key].astype(float) - b[key].astype(float)), initial=0)) for key in a)
