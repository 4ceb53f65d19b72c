"""The proof at start: a row pulls the same wherever in a batch it stands, and in proportion to its weight."""

from dataclasses import replace
from typing import Any

import keras
import pytest
import tensorflow as tf

from millrace.pipelines.schema import Field
from millrace.training.model.proof.proof import Finding, ModelProof
from tests.training.conftest import BATCH, SCHEMA, MakeLearner, mlp

pytestmark = pytest.mark.tensorflow

WEIGHED = replace(SCHEMA, weight=Field(name="weight", source="weight", dtype="float32"))


class Stepping(keras.Model):
    """A custom train_step whose loss by row is weighed by `weighed`."""

    def train_step(self, data: Any) -> Any:
        x, y, weight = data
        with tf.GradientTape() as tape:
            rows = tf.square(y - self(x, training=True)[:, 0])
            loss = tf.reduce_sum(self.weighed(rows, weight)) / BATCH
        self.update(tape.gradient(loss, self.trainable_variables))
        return {"loss": loss}

    def weighed(self, rows: Any, weight: Any) -> Any:
        return rows * weight

    def update(self, gradients: Any) -> None:
        self.optimizer.apply(gradients, self.trainable_variables)


class ByMicroBatches(Stepping):
    """Takes two parts of five rows each, and forgets what is left of the batch."""

    def weighed(self, rows: Any, weight: Any) -> Any:
        return (rows * weight)[:10]


class ByPlace(Stepping):
    """Has the rows behind in the batch count for more."""

    def weighed(self, rows: Any, weight: Any) -> Any:
        return rows * weight * tf.linspace(0.5, 1.5, BATCH)


class Masking(Stepping):
    """Takes the weights for a mask."""

    def weighed(self, rows: Any, weight: Any) -> Any:
        return rows * tf.cast(weight > 0, tf.float32)


class Clipping(Stepping):
    """Clips the gradients of a batch by itself."""

    def update(self, gradients: Any) -> None:
        super().update(tf.clip_by_global_norm(gradients, 1e-2)[0])


def _findings(make: MakeLearner, model: Any, *layers: Any, **given: Any) -> list[Finding]:
    return ModelProof(make(lambda: mlp(*layers, model=model), **given)).findings()


@pytest.mark.parametrize("model", [ByMicroBatches, ByPlace])
def test_a_step_that_heeds_the_place_of_a_row_is_refused(fresh_learner_of: MakeLearner, model: Any) -> None:
    found = _findings(fresh_learner_of, model)
    assert [finding.holds for finding in found] == [True, False]
    assert "changes with the order of the rows" in found[1].detail


def test_weights_that_are_taken_for_a_mask_are_refused_where_records_have_weights(
    fresh_learner_of: MakeLearner,
) -> None:
    found = _findings(fresh_learner_of, Masking, schema=WEIGHED)
    assert [finding.holds for finding in found] == [True, False]
    assert "is not half as large with half the weight of each row" in found[1].detail


@pytest.mark.slow
def test_they_pass_where_each_record_weighs_one(fresh_learner_of: MakeLearner) -> None:
    assert [finding.holds for finding in _findings(fresh_learner_of, Masking)] == [True, True]


@pytest.mark.slow
@pytest.mark.parametrize(
    "layers",
    [
        (),
        (lambda: keras.layers.Dense(4, kernel_regularizer="l2"),),
        (lambda: keras.layers.Dropout(0.5),),
        (lambda: keras.layers.Dense(4, dtype="mixed_bfloat16"),),
    ],
)
@pytest.mark.parametrize("model", [None, Clipping])
def test_an_honest_model_of_weighed_records_passes(fresh_learner_of: MakeLearner, model: Any, layers: Any) -> None:
    found = _findings(fresh_learner_of, model, *(make() for make in layers), schema=WEIGHED)
    assert [finding.holds for finding in found] == [True, True]
