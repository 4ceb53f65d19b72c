"""Accumulated gradients, averaged weights and clipping: the weights of plain Keras, on one replica and on two."""

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest

from tests.training.conftest import BATCH, FEATURES, MakeLearner, block, largest_difference, state_of, with_feature

pytestmark = pytest.mark.tensorflow
Make = Callable[[], Any]


def accumulating() -> Any:
    return keras.optimizers.Adam(1e-2, gradient_accumulation_steps=3, clipnorm=0.05)


def averaging() -> Any:
    return keras.optimizers.SGD(0.1, momentum=0.9, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2)


def both() -> Any:
    return keras.optimizers.AdamW(
        1e-2,
        weight_decay=0.1,
        gradient_accumulation_steps=2,
        use_ema=True,
        ema_momentum=0.9,
        ema_overwrite_frequency=4,
        global_clipnorm=0.1,
    )


def model(optimizer: Make) -> Any:
    inputs = keras.Input((FEATURES,), name="x")
    hidden = keras.layers.Dense(8, activation="tanh", kernel_constraint="max_norm")(inputs)
    built = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))
    built.compile(optimizer=optimizer(), loss="binary_crossentropy")
    return built


@pytest.mark.parametrize(
    ("replicas", "optimizer"),
    [
        (2, both),
        # `both` accumulates and averages, and two replicas do what one does.
        pytest.param(1, both, marks=pytest.mark.nightly),
        *(pytest.param(replicas, accumulating, marks=pytest.mark.nightly) for replicas in (1, 2)),
        *(pytest.param(replicas, averaging, marks=pytest.mark.nightly) for replicas in (1, 2)),
    ],
)
def test_the_weights_are_those_of_plain_keras(learner_of: MakeLearner, optimizer: Make, replicas: int) -> None:
    learner = learner_of(partial(model, optimizer), replicas=replicas)
    keras.utils.set_random_seed(7)
    plain = model(optimizer)
    plain.jit_compile = False
    blocks = [block(2, seed=1), block(5, seed=2), block(1, seed=3)]
    for rows in blocks:
        assert learner.call(rows).finite.all()
        for x, y in zip(rows.features["x"], rows.labels, strict=True):
            plain.train_on_batch(x, y)
    pairs = zip(learner.model.weights, plain.weights, strict=True)
    assert max(np.max(np.abs(mine.numpy() - theirs.numpy())) for mine, theirs in pairs) < 1e-6
    slots = zip(learner.model.optimizer.variables, plain.optimizer.variables, strict=True)
    assert max(np.max(np.abs(mine.numpy() - theirs.numpy())) for mine, theirs in slots) < 1e-6


@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_a_checkpoint_in_the_middle_of_an_accumulation_is_exact(learner_of: MakeLearner, replicas: int) -> None:
    one = learner_of(partial(model, accumulating), replicas=replicas)
    other = learner_of(partial(model, accumulating), replicas=replicas)
    one.learn(block(2, seed=1))
    for mine, theirs in zip(one.parts, other.parts, strict=True):
        theirs.restore(mine.snapshot())
    for learner in (one, other):
        learner.learn(block(2, seed=2))
    assert largest_difference(state_of(one), state_of(other)) == 0


def test_a_batch_that_is_not_finite_leaves_the_accumulators_as_they_were(learner_of: MakeLearner) -> None:
    learner = learner_of(partial(model, accumulating))
    learner.learn(block(1, seed=1))
    before = state_of(learner)
    assert any(np.any(value) for key, value in before.items() if "accumulator" in key)
    assert not learner.call(with_feature(block(1, seed=2), BATCH - 1, np.nan)).finite[0]
    assert largest_difference(before, state_of(learner)) == 0
