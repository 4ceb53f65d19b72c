"""A model that is forked: with the same layers it learns on bit for bit, and a changed one has forgotten nothing."""

from typing import Any

import keras
import numpy as np
import pytest

from millrace.training.model.variables import model_variables, optimizer_variables, read
from millrace.training.model.weights.initial_weights import KeptSlots, keep_slots, match, take_over
from millrace.training.model.weights.weight_files import FoundWeights

pytestmark = [pytest.mark.tensorflow, pytest.mark.row(41), pytest.mark.slow]
FEATURES, BATCH = 8, 64


def model(*, wider: bool = False, optimizer: str = "adam") -> Any:
    x = keras.Input((FEATURES,), name="x")
    hidden = keras.layers.Dense(16, activation="tanh", name="hidden")(x)
    if wider:
        beside = keras.layers.Dense(16, kernel_initializer="zeros", name="beside")(x)
        hidden = keras.layers.Add(name="sum")([hidden, beside])
    built = keras.Model(x, keras.layers.Dense(1, name="score")(hidden))
    built.compile(optimizer=optimizer, loss="mse", steps_per_execution=16)
    built.optimizer.learning_rate = 0.002
    built.optimizer.build(built.trainable_variables)
    return built


def rows(count: int, seed: int) -> tuple[Any, Any]:
    x = np.random.default_rng(seed).normal(size=(count, FEATURES)).astype(np.float32)
    return x, np.sin(x[:, :1] * 2.0) + x[:, 1:2] * x[:, 2:3]


def learn(built: Any, count: int, seed: int) -> None:
    built.fit(*rows(count, seed), batch_size=BATCH, shuffle=False, verbose=0)


def loss(built: Any) -> float:
    x, y = rows(2000, 99)
    return float(np.mean((built(x).numpy() - y) ** 2))


def fork(old: Any, new: Any) -> KeptSlots:
    arrays = {key: np.array(read(variable)) for key, variable in model_variables(old).items()}
    slots = {key: np.array(read(variable)) for key, variable in optimizer_variables(old).items()}
    take_over(new, match(new, FoundWeights(what="old@1", sha256="", arrays=arrays)))
    return keep_slots(new, slots, {"optimizer": type(old.optimizer).__name__})


@pytest.fixture(scope="module")
def old() -> Any:
    """Return a model that has learnt for long."""
    keras.utils.set_random_seed(1)
    built = model()
    learn(built, 1024 * BATCH, 1)
    return built


def test_a_fork_of_the_same_model_learns_on_bit_for_bit(old: Any) -> None:
    first, second = model(), model()
    slots = fork(old, first)
    assert (slots.kept, slots.new) == (1 + 2 * 4, 0)
    assert int(first.optimizer.iterations) == int(old.optimizer.iterations) == 1024
    learn(first, 16 * BATCH, 50)
    fork(first, second)
    for one in (first, second):
        learn(one, 16 * BATCH, 51)
    pairs = zip(first.variables, second.variables, strict=True)
    assert all(np.array_equal(one.numpy(), other.numpy()) for one, other in pairs)


def test_a_changed_model_is_no_worse_than_the_old_one_and_one_begun_anew_is(old: Any) -> None:
    going_on, changed, anew = model(), model(wider=True), model(wider=True)
    fork(old, going_on)
    slots = fork(old, changed)
    assert (slots.kept, slots.new) == (1 + 2 * 4, 2 * 2)
    assert loss(changed) == pytest.approx(loss(old), rel=1e-5)
    for built in (going_on, changed, anew):
        learn(built, 512 * BATCH, 60)
    assert loss(changed) <= 1.03 * loss(going_on)
    assert loss(anew) > 1.2 * loss(going_on)


def test_another_optimizer_begins_anew(old: Any) -> None:
    slots = fork(old, model(optimizer="sgd"))
    assert slots.kept == 0
