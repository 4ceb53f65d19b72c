"""Whose code AutoGraph rewrites while a call is traced: the user's, with all that it calls, and none of ours."""

from functools import partial
from typing import Any

import keras
import pytest
import tensorflow as tf
from tensorflow.python.autograph.impl import api

from millrace.training.model.proof.proof import ModelProof
from tests.training.conftest import MakeLearner, block, mlp

pytestmark = pytest.mark.tensorflow


def halved_where_large(tensor: Any) -> Any:
    if tf.reduce_sum(tensor) > 1e9:
        tensor = tensor / 2.0
    return tensor


class Plain(keras.Model):
    """A step of the user's own without Python control flow over tensors."""

    def train_step(self, data: Any) -> Any:
        x, y, weight = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True), weight)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


class Branching(Plain):
    """A step with a loop, a branch, and a branch in what it calls."""

    def train_step(self, data: Any) -> Any:
        loss = super().train_step(data)["loss"]
        more = tf.zeros(())
        for _ in tf.range(3):
            if loss > 1e9:
                more += 1.0
        return {"loss": halved_where_large(loss) + more}


class Mapping(keras.layers.Layer):
    """A layer that maps a function with a branch over its rows."""

    def call(self, x: Any) -> Any:
        return tf.map_fn(halved_where_large, x)

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


class BranchingOptimizer(keras.optimizers.Adam):
    """An optimizer with a branch in what it does before its update."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        super().apply([halved_where_large(gradient) for gradient in grads], trainable_variables)


def with_branches(*layers: Any, model: Any = keras.Model) -> Any:
    built = mlp(*layers, model=model)
    built.compile(optimizer=BranchingOptimizer(1e-2), loss="binary_crossentropy")
    return built


@pytest.mark.slow
@pytest.mark.parametrize("passes", [pytest.param(1, marks=pytest.mark.nightly), 2])
@pytest.mark.parametrize(
    ("build", "step"),
    [
        (lambda: with_branches(Mapping()), keras.Model),
        (lambda: with_branches(Mapping(), model=Branching), Plain),
        # One by one what these two have together.
        *(
            pytest.param(build, step, marks=pytest.mark.nightly)
            for build, step in (
                (lambda: mlp(model=Branching), Plain),
                (lambda: mlp(Mapping()), keras.Model),
                (lambda: mlp(Mapping(), model=Plain), Plain),
                (with_branches, keras.Model),
            )
        ),
    ],
    ids=["in-keras-step", "in-own-step", "step", "layer", "layer-in-own-step", "optimizer"],
)
def test_branches_over_tensors_in_the_users_code_work(
    learner_of: MakeLearner, build: Any, step: Any, passes: int
) -> None:
    branching, straight = learner_of(build, passes=passes), learner_of(partial(mlp, model=step), passes=passes)
    losses = [learner.learn(block(3)).result.losses.tolist() for learner in (branching, straight)]
    assert losses[0] == pytest.approx(losses[1])
    assert [finding.holds for finding in ModelProof(branching).findings()] == [True, True]


def test_none_of_our_functions_is_rewritten(learner_of: MakeLearner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewriting them takes more than half of the CPU time of a trace."""
    rewritten: list[str] = []
    rewrite = api._convert_actual

    def noting(entity: Any, *others: Any) -> Any:
        rewritten.append(entity.__qualname__)
        return rewrite(entity, *others)

    monkeypatch.setattr(api, "_convert_actual", noting)
    for build in (mlp, lambda: mlp(keras.layers.Dropout(0.5))):
        learner = learner_of(build, passes=2)
        learner.trace(learner.rows_of(learner.probe()), deterministic=False)
        ModelProof(learner).findings()
    assert rewritten == []
    learner_of(lambda: mlp(model=Branching)).learn(block(1))
    assert "halved_where_large" in rewritten
