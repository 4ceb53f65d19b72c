"""A call gives the answers that were scored: those of the weights before each update, row by row."""

from typing import Any

import keras
import numpy as np
import pytest

from tests.training.conftest import BATCH, FEATURES, MakeLearner, block, mlp, with_feature

pytestmark = pytest.mark.tensorflow


def classifier() -> Any:
    """Build a classifier of three classes that answers with logits."""
    inputs = keras.Input((FEATURES,), name="x")
    model = keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Dropout(0.5)(inputs)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-2), loss=loss, metrics=["accuracy"])
    return model


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_call_gives_the_answers_of_the_weights_before_it(learner_of: MakeLearner, replicas: int) -> None:
    for build, columns in ((mlp, 1), (classifier, 3)):
        learner, rows = learner_of(build, replicas=replicas), block(1, rows=BATCH - 1)
        before = learner.model(rows.features["x"][0], training=False).numpy()
        outputs = learner.learn(rows).result.outputs
        assert outputs.shape == (1, BATCH, columns)
        np.testing.assert_allclose(outputs[0], before, rtol=1e-5, atol=1e-6)


def test_answers_to_rows_beside_a_culprit_stay_those_of_their_rows(learner_of: MakeLearner) -> None:
    learner = learner_of()
    rows = with_feature(block(2), BATCH + 5, np.nan)
    lesson = learner.learn(rows)
    assert lesson.culprits.offsets == ((0, BATCH + 5),)
    outputs = lesson.result.outputs.reshape(-1)
    assert np.isfinite(np.delete(outputs, BATCH + 5)).all()
    now = learner.model(rows.features["x"][1], training=False).numpy().reshape(-1)
    # The rows of a later try are answered by the weights that an earlier one has left.
    first = learner_of().call(rows).outputs.reshape(-1)
    assert not np.array_equal(np.delete(outputs[BATCH:], 5), np.delete(first[BATCH:], 5))
    np.testing.assert_allclose(np.delete(outputs[BATCH:], 5), np.delete(now, 5), atol=0.15)
    assert np.corrcoef(np.delete(outputs[BATCH:], 5), np.delete(now, 5))[0, 1] > 0.9


def test_what_has_several_outputs_or_scores_by_itself_has_no_answers(learner_of: MakeLearner) -> None:
    class ByItself(keras.Model):
        def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            return super().compute_metrics(x, y, y_pred, sample_weight)

    def own() -> Any:
        return mlp(model=ByItself)

    assert learner_of(own).learn(block(1)).result.outputs.shape == (1, BATCH, 0)
