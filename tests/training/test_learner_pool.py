"""The pool lends learners that are, to the bit, as they were when they had been built."""

import gc
import random
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from millrace.consumers.records import Partition
from millrace.training.model.call.metrics import CompiledMetrics
from millrace.training.model.learner import Learner
from millrace.training.model.variables import read
from tests.training.conftest import BATCH, FEATURES, block, mlp, options_of, state_of
from tests.training.learner_pool import LearnerPool

pytestmark = pytest.mark.tensorflow
PARTITION = Partition("clicks", 0)
LEFT = {"float": np.nan, "int": 77, "uint": 77, "bool": True}
"""What the test before leaves in every variable, by the beginning of its type's name."""


def of_everything() -> Any:
    """Build a model with statistics, random numbers, moments, averages of weights, and metrics with much state."""
    inputs = keras.Input((FEATURES,), name="x")
    hidden = keras.layers.Dropout(0.3)(keras.layers.BatchNormalization()(keras.layers.Dense(8)(inputs)))
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.compile(
        optimizer=keras.optimizers.AdamW(1e-2, use_ema=True, ema_overwrite_frequency=2),
        loss="binary_crossentropy",
        metrics=["accuracy", keras.metrics.AUC(num_thresholds=20, name="auc")],
    )
    return model


class TwoOptimizers(keras.Model):
    """Steps with the compiled optimizer, and with one of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.second = keras.optimizers.SGD(0.01, momentum=0.9)

    def train_step(self, data: Any) -> Any:
        x, y, w = data
        variables = self.trainable_variables
        with tf.GradientTape(persistent=True) as tape:
            loss = self.compute_loss(x, y, self(x, training=True), w)
        self.optimizer.apply(tape.gradient(loss, variables[:2]), variables[:2])
        self.second.apply(tape.gradient(loss, variables[2:]), variables[2:])
        return {"loss": loss}


def with_two_optimizers() -> Any:
    """Build a model whose weights two optimizers share."""
    model = mlp(model=TwoOptimizers, metrics=())
    model.second.build(model.trainable_variables[2:])
    return model


def _variables() -> dict[int, Any]:
    """Return every variable of this process, whoever holds it, but for the tokens by which TensorFlow orders calls."""
    things = gc.get_objects()
    tokens = {id(held) for t in things if type(t).__name__ == "CollectiveReplicaLauncher" for held in vars(t).values()}
    found = [thing for thing in things if issubclass(type(thing), tf.Variable)]
    return {
        id(variable): variable for variable in found if id(variable) not in tokens and not hasattr(variable, "values")
    }


def _poison(variables: list[Any]) -> None:
    for variable in variables:
        left = next(value for kind, value in LEFT.items() if variable.dtype.name.startswith(kind))
        variable.assign(tf.cast(tf.fill(variable.shape, left), variable.dtype))


def _learnt(learner: Learner) -> dict[str, Any]:
    """Train, and return every number that comes out of it: results, weights, moments, seeds, counts, randomness."""
    found: dict[str, Any] = {"first": state_of(learner), "random": (random.random(), np.random.random())}
    learner.witness.know(PARTITION, 0)
    for seed in range(2):
        result = learner.learn(block(3, rows=3 * BATCH - 5, seed=seed)).result
        found[f"result {seed}"] = (result.finite, result.losses, result.states)
        found[f"scores {seed}"] = learner.call.metrics.results(result.states)
    variables = [*learner.state, *learner.metric_variables()]
    return {**found, "last": [np.array(read(v).numpy()) for v in variables], "seen": learner.witness.testimonies()}


@pytest.mark.parametrize(
    ("build", "replicas"),
    [
        # The others have all that this one has.
        pytest.param(mlp, 1, marks=pytest.mark.nightly),
        pytest.param(of_everything, 2, marks=pytest.mark.slow),
        (with_two_optimizers, 1),
    ],
)
def test_a_learner_lent_again_has_and_learns_the_bits_of_a_fresh_one(build: Callable[[], Any], replicas: int) -> None:
    options = options_of(replicas=replicas)
    pool, known = LearnerPool(), _variables()
    lent = pool.lend(build, options)
    new = [variable for key, variable in _variables().items() if key not in known]
    before = [variable.numpy() for variable in new]
    assert len(new) >= replicas * len(lent.state)

    lent.witness.know(Partition("another", 3), 5)
    lent.call.metrics.results(lent.learn(block(3, seed=9)).result.states)
    _poison(new)
    pool.take_back()
    again = pool.lend(build, options)
    assert again is lent
    for variable, value in zip(new, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value, err_msg=variable.name)
    found, expected = _learnt(again), _learnt(Learner(build, None, options))
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)


def test_two_learners_in_use_are_two_objects_and_options_tell_them_apart() -> None:
    pool = LearnerPool()
    lent = [pool.lend(mlp, options_of()), pool.lend(mlp, options_of()), pool.lend(mlp, options_of(passes=2))]
    assert len({id(learner) for learner in lent}) == 3
    assert lent[2].options.passes == 2
    pool.take_back()
    assert pool.lend(mlp, options_of(passes=2)) is lent[2]
    assert {id(pool.lend(mlp, options_of())) for _ in range(3)} > {id(lent[0]), id(lent[1])}


def _replaced_method(learner: Learner) -> None:
    learner.learn = None  # type: ignore[method-assign,assignment]


def _metric_left_out(learner: Learner) -> None:
    learner.call.metrics.left_out = frozenset({"accuracy"})


def _other_metrics(learner: Learner) -> None:
    learner.call.metrics = CompiledMetrics(learner.model)


def _other_rate(learner: Learner) -> None:
    learner.model.optimizer.weight_decay = 0.1


@pytest.mark.parametrize("change", [_replaced_method, _metric_left_out, _other_metrics, _other_rate])
def test_a_learner_in_which_a_test_has_replaced_something_is_not_lent_again(
    change: Callable[[Learner], None],
) -> None:
    pool = LearnerPool()
    lent = pool.lend(mlp, options_of())
    change(lent)
    pool.take_back()
    assert pool.lend(mlp, options_of()) is not lent


def test_a_pool_keeps_no_more_learners_than_it_may_the_newest_ones() -> None:
    pool = LearnerPool(most=1)
    first, second = pool.lend(mlp, options_of()), pool.lend(mlp, options_of())
    pool.take_back()
    assert pool.lend(mlp, options_of()) is second
    assert pool.lend(mlp, options_of()) is not first
