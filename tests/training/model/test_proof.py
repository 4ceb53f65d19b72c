"""The proof at start: what it holds to be true, what it names as the fault, and that it leaves no trace."""

from typing import Any

import keras
import pytest
import tensorflow as tf

from tests.training.conftest import MakeLearner, largest_difference, mlp, state_of
from training.model.proof import Finding, ModelProof

pytestmark = pytest.mark.tensorflow


class Deaf(keras.Model):
    """A custom train_step that ignores the weights."""

    def train_step(self, data: Any) -> Any:
        x, y, _ = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


class Sum(keras.metrics.Metric):
    """A metric of the user's own that ignores the weights."""

    def __init__(self) -> None:
        super().__init__(name="sum")
        self.total = self.add_weight(name="total", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(tf.reduce_sum(y_pred))

    def result(self) -> Any:
        return self.total.value


def _findings(learner_of: MakeLearner, build: Any, **kwargs: Any) -> list[Finding]:
    return ModelProof(learner_of(build, **kwargs)).findings()


@pytest.mark.parametrize("replicas", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "layers",
    [(), (keras.layers.LayerNormalization,), (lambda: keras.layers.Dense(4, kernel_regularizer="l2"),)],
    ids=["plain", "layer-norm", "regularised"],
)
def test_a_plain_model_passes(learner_of: MakeLearner, replicas: int, layers: Any) -> None:
    found = _findings(learner_of, lambda: mlp(*(layer() for layer in layers)), replicas=replicas)
    assert [finding.holds for finding in found] == [True] * (2 if replicas == 1 else 3)


def test_dropout_passes_where_masks_are_the_same(learner_of: MakeLearner) -> None:
    found = _findings(learner_of, lambda: mlp(keras.layers.Dropout(0.5)), replicas=2)
    assert [finding.holds for finding in found] == [True, True, None]


def test_batch_normalization_is_named_with_a_way_out(learner_of: MakeLearner) -> None:
    found = _findings(learner_of, lambda: mlp(keras.layers.BatchNormalization(name="bn")))
    assert found[0].holds is False
    assert found[0].detail.startswith("layer bn (BatchNormalization)")
    assert "LayerNormalization" in found[0].detail


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_loss_that_is_a_mean_over_present_rows_is_refused(learner_of: MakeLearner, replicas: int) -> None:
    loss = keras.losses.BinaryCrossentropy(reduction="mean_with_sample_weight")
    found = _findings(learner_of, lambda: mlp(loss=loss), replicas=replicas)
    assert found[1].holds is False
    assert "sum_over_batch_size" in found[1].detail


def test_a_train_step_that_ignores_the_weights_is_refused(learner_of: MakeLearner) -> None:
    found = _findings(learner_of, lambda: mlp(model=Deaf))
    assert found[0].holds is False
    assert "sample_weight" in found[0].detail


def test_a_metric_that_counts_absent_rows_is_named(learner_of: MakeLearner) -> None:
    found = _findings(learner_of, lambda: mlp(metrics=["accuracy", Sum()]))
    assert found[0].holds is False
    assert found[0].detail.startswith("metric sum counts absent rows")


def test_the_proof_leaves_the_model_as_it_was(learner_of: MakeLearner) -> None:
    learner = learner_of(lambda: mlp(keras.layers.Dropout(0.5)), replicas=2)
    before = state_of(learner)
    ModelProof(learner).findings()
    assert largest_difference(before, state_of(learner)) == 0
    assert learner.witness.testimonies() == {}
