"""Compiled metrics of any shape: arrays, mappings, functions; and what is refused in words."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.stream.blocks import Rows
from millrace.training.errors import ModelError
from millrace.training.model.call.metric_values import MOST_COMPONENTS, ValueNames
from millrace.training.model.learner import Learner
from millrace.training.model.proof.function_proofs import states_add_up
from tests.training.conftest import BATCH, FEATURES, SCHEMA, MakeLearner, block, mlp

pytestmark = pytest.mark.tensorflow
CLASSES = 5
ONE_OF_FIVE = Schema(features=SCHEMA.features, labels=(Field(name="y", source="y", dtype="float32", shape=(CLASSES,)),))


def own_error(y_true: Any, y_pred: Any) -> Any:
    """Return a value for each row."""
    return keras.ops.mean(keras.ops.abs(y_true - y_pred), axis=-1)


class ErrorAndBias(keras.metrics.Metric):
    """Returns a mapping."""

    def __init__(self) -> None:
        super().__init__(name="errors")
        self.sums = self.add_variable((3,), initializer="zeros", name="sums")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        weight = keras.ops.ones_like(y_pred[:, 0]) if sample_weight is None else sample_weight
        gap = keras.ops.mean(y_pred - y_true, axis=-1)
        parts = [weight * keras.ops.abs(gap), weight * gap, weight]
        self.sums.assign_add(keras.ops.stack([keras.ops.sum(part) for part in parts]))

    def result(self) -> dict[str, Any]:
        return {"gap": self.sums[0] / self.sums[2], "bias": self.sums[1] / self.sums[2]}


def five_classes(*metrics: Any) -> Callable[[], Any]:
    """Return a function that builds a classifier of five classes that stands still."""

    def build() -> Any:
        inputs = keras.Input((FEATURES,), name="x")
        model = keras.Model(inputs, keras.layers.Dense(CLASSES, activation="softmax")(inputs))
        model.compile(keras.optimizers.SGD(0.0), loss="categorical_crossentropy", metrics=list(metrics))
        return model

    return build


def five(seed: int) -> Rows:
    """Make a block of two batches with one-hot labels."""
    rows = block(2, seed=seed)
    classes = np.random.default_rng(seed).integers(0, CLASSES, (2, BATCH))
    return rows._replace(labels=tf.one_hot(classes, CLASSES))


def scored(learner: Learner, seeds: range) -> tuple[dict[str, float], Any, Any]:
    """Learn a block for each seed; return the values over all of them, and all their rows."""
    blocks = [five(seed) for seed in seeds]
    results = [learner.learn(rows).result for rows in blocks]
    states = [np.sum([result.states[i] for result in results], axis=0) for i in range(len(results[0].states))]
    x = np.concatenate([rows.features["x"].numpy().reshape(-1, FEATURES) for rows in blocks])
    y = np.concatenate([rows.labels.numpy().reshape(-1, CLASSES) for rows in blocks])
    return learner.call.metrics.results(states), x, y


def test_an_array_is_shown_by_its_mean_and_its_components_as_keras_computes_them(learner_of: MakeLearner) -> None:
    learner = learner_of(five_classes("accuracy", keras.metrics.F1Score()), schema=ONE_OF_FIVE)
    values, x, y = scored(learner, range(3))
    own = keras.metrics.F1Score()
    own.update_state(y, learner.model(x))
    by_class = np.asarray(own.result())
    assert list(values) == ["accuracy", "f1_score", *(f"f1_score[{index}]" for index in range(CLASSES))]
    assert [values[f"f1_score[{index}]"] for index in range(CLASSES)] == pytest.approx(by_class)
    assert values["f1_score"] == pytest.approx(by_class.mean())
    assert learner.call.metrics.directions["f1_score[4]"] is True


def test_a_mapping_is_shown_by_its_keys_as_in_keras(learner_of: MakeLearner) -> None:
    learner = learner_of(five_classes(ErrorAndBias(), own_error), schema=ONE_OF_FIVE)
    values, x, y = scored(learner, range(2))
    gap = (learner.model(x).numpy() - y).mean(axis=-1)
    assert values.keys() == {"gap", "bias", "own_error"}
    assert values["gap"] == pytest.approx(np.abs(gap).mean(), abs=1e-6)
    assert values["own_error"] == pytest.approx(np.abs(learner.model(x).numpy() - y).mean(), rel=1e-5)


def test_an_array_of_too_many_components_is_shown_by_its_mean_alone() -> None:
    names = ValueNames.of({"few": np.zeros(3), "many": np.zeros(MOST_COMPONENTS), "square": np.zeros((2, 2))})
    values = names.values({"few": [1.0, 2.0, 6.0], "many": np.full(MOST_COMPONENTS, 4.0), "square": np.eye(2)})
    assert values["many"] == 4.0
    assert values["few[2]"] == 6.0
    assert values["square[0,1]"] == 0.0
    assert len(values) == 3 + 3 + 4


def test_a_class_without_a_score_is_left_out_of_the_mean() -> None:
    names = ValueNames.of({"each": np.zeros(3)})
    assert names.values({"each": [0.5, float("nan"), 1.0]})["each"] == 0.75


def test_a_key_that_is_taken_gets_the_metrics_name_before_it() -> None:
    names = ValueNames.of({"gap": 0.0, "errors": {"gap": 0.0, "bias": 0.0}})
    assert list(names.shown) == ["gap", "errors_gap", "bias"]


class Greatest(keras.metrics.Metric):
    """Keeps a maximum."""

    def __init__(self) -> None:
        super().__init__(name="greatest")
        self.most = self.add_variable((), initializer="zeros", name="most")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.most.assign(keras.ops.maximum(self.most, keras.ops.max(keras.ops.abs(y_true - y_pred))))

    def result(self) -> Any:
        return self.most


class Least(Greatest):
    """Keeps a minimum."""

    def __init__(self) -> None:
        keras.metrics.Metric.__init__(self, name="least")
        self.most = self.add_variable((), initializer="ones", name="least")

    def reset_state(self) -> None:
        self.most.assign(1.0)


class InPython(keras.metrics.Metric):
    """Keeps its state in an attribute of Python's."""

    def __init__(self) -> None:
        super().__init__(name="in_python")
        self.seen = 0

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.seen += 1

    def result(self) -> Any:
        return self.seen


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (Greatest, "metric greatest keeps a maximum, a mean or the last value"),
        (Least, "metric least starts from a value other than 0"),
        (InPython, "metric in_python keeps no Keras variable"),
    ],
)
def test_a_metric_whose_state_is_no_sum_is_named_and_not_shown(
    learner_of: MakeLearner, metric: type[keras.metrics.Metric], words: str
) -> None:
    learner = learner_of(lambda: mlp(metrics=["accuracy", metric()]))
    (finding,) = states_add_up(learner)
    assert finding.holds is False
    assert words in finding.detail
    result = learner.learn(block(1)).result
    assert learner.call.metrics.results(result.states).keys() == {"accuracy"}
    assert learner.call.metrics.directions.keys() == {"accuracy"}


def test_keras_own_metrics_are_sums(learner_of: MakeLearner) -> None:
    km = keras.metrics
    metrics = [km.AUC(), km.F1Score(), km.R2Score(), km.PrecisionAtRecall(0.5), "mae"]
    learner = learner_of(five_classes(*metrics, keras.losses.huber, own_error), schema=ONE_OF_FIVE)
    before = [np.asarray(variable) for variable in learner.state]
    (finding,) = states_add_up(learner)
    assert finding.holds, finding.detail
    assert all(np.array_equal(a, np.asarray(b)) for a, b in zip(before, learner.state, strict=True)), "it is undone"


def in_numpy(y_true: Any, y_pred: Any) -> Any:
    """Compute what only NumPy can."""
    return np.abs(y_true.numpy() - y_pred.numpy())


class ResultInNumPy(ErrorAndBias):
    """Has a result that only NumPy can compute."""

    def result(self) -> Any:
        return float(self.sums.value.numpy()[0])


def test_a_metric_that_cannot_be_traced_is_named(learner_of: MakeLearner) -> None:
    with pytest.raises(
        ModelError,
        match=r"the metric in_numpy cannot be traced: .* \(test_metric_shapes\.py, line \d+\); compute it",
    ):
        learner_of(lambda: mlp(metrics=[in_numpy]))
    with pytest.raises(ModelError, match=r"the metric f1_score .* second axis in preprocess: label\[:, None\]"):
        learner_of(lambda: mlp(metrics=[keras.metrics.F1Score()]))
    with pytest.raises(ModelError, match=r"the metric errors (cannot|has a result\(\) that cannot) be traced"):
        learner_of(lambda: mlp(metrics=[ResultInNumPy()])).call.metrics.results([np.zeros(3)])
