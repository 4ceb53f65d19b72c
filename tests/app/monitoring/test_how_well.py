"""How well a model does, in the words of the verdict: real models on streams that tempt to show a wrong number."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from millrace.app.monitoring.verdict import how_well, in_words, on_arrival
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.stream.blocks import Rows
from millrace.training.model.call.metrics import preferred
from millrace.training.model.learner import Learner, LearnerOptions
from millrace.training.model.setup.strategy import DeviceOptions
from millrace.training.recovery.isolation import Piece
from millrace.training.telemetry.live_metrics import LiveMetrics, LiveSnapshot, choose_watched
from millrace.training.trainer.arrivals.figures import ArrivalFigures
from millrace.training.trainer.board import ModelFacts, Posting
from millrace.training.trainer.learning import LearntRows, sums_of
from millrace.training.trainer.metric_guesses import plan_of

pytestmark = pytest.mark.tensorflow
FEATURES, BATCH, BATCHES = 6, 128, 4
Array = npt.NDArray[Any]


def model_of(width: int, activation: str | None, **compiled: Any) -> Callable[[], Any]:
    """Return a function that builds a linear model."""

    def build() -> Any:
        inputs = keras.Input((FEATURES,), name="x")
        model = keras.Model(inputs, keras.layers.Dense(width, activation=activation)(inputs))
        model.compile(optimizer=keras.optimizers.Adam(0.02), **compiled)
        return model

    return build


def learnt(
    build: Callable[[], Any],
    label: Callable[[Array], Array] | None,
    weight: Callable[[Array], Array] | None = None,
    *,
    blocks: int = 12,
    shape: tuple[int, ...] = (),
    watch: str | None = None,
    better: Any = None,
) -> LiveSnapshot:
    """Learn a stream of records, score each before it is learnt, and return the live metrics."""
    labels = () if label is None else (Field(name="y", source="y", dtype="float32", shape=shape),)
    schema = Schema(features=(Field(name="x", source="x", dtype="float32", shape=(FEATURES,)),), labels=labels)
    options = LearnerOptions(schema=schema, batch_size=BATCH, devices=DeviceOptions(replicas=1), seed=7)
    learner = Learner(build, None, options)
    learner.trace(learner.rows_of(learner.probe()), deterministic=False)
    metrics = learner.call.metrics
    plan = plan_of(learner.model, metrics)
    watched = choose_watched(metrics.directions, watch, better, first=preferred(metrics.metrics))
    live = LiveMetrics(
        window_s=60.0, scored="before_update", results=metrics.results, plan=plan, clock=lambda: 0.0, watch=watched
    )
    random = np.random.default_rng(3)
    for _ in range(blocks):
        x = random.normal(size=(BATCHES, BATCH, FEATURES)).astype(np.float32)
        y = None if label is None else label(x)
        rows = Rows(
            features={"x": tf.constant(x)},
            labels={} if y is None else tf.constant(y),
            weights=tf.ones((BATCHES, BATCH)) if weight is None or y is None else tf.constant(weight(y)),
            offsets=tf.reshape(tf.range(BATCHES * BATCH, dtype=tf.int64), (BATCHES, BATCH)),
            partitions=tf.zeros((BATCHES, BATCH), tf.int32),
        )
        live.add(sums_of(LearntRows.of(Piece(rows, learner.learn(rows))), plan, BATCH))
    return live.look()


def test_the_weights_of_records_reach_the_sums_unless_all_are_one() -> None:
    build = model_of(1, "sigmoid", loss="binary_crossentropy", metrics=["accuracy"])
    plain = learnt(build, rare)
    heavy = learnt(build, rare, lambda y: np.where(y == 1, 100.0, 1.0).astype(np.float32))
    assert plain.baseline["accuracy"] == heavy.baseline["accuracy"]
    assert heavy.baseline["loss"] > 3 * plain.baseline["loss"]


def rare(x: Array) -> Array:
    """Return 1 for one record in 200."""
    return np.asarray(x.sum(axis=-1) > 2.576 * np.sqrt(FEATURES), np.float32)


def test_a_rare_class_with_class_weights_is_judged_by_its_auc_beside_chance() -> None:
    build = model_of(1, "sigmoid", loss="binary_crossentropy", metrics=["accuracy", keras.metrics.AUC(name="auc")])
    live = learnt(build, rare, lambda y: np.where(y == 1, 100.0, 1.0).astype(np.float32), blocks=25)
    (sentence,) = how_well(live)
    assert re.fullmatch(r"AUC 0\.9\d* over the last minute \(guessing: 0\.5\)\.", sentence)
    ahead = live.ahead_of_guessing
    assert ahead is not None
    assert ahead > 0.4
    assert live.values["accuracy"] < live.baseline["accuracy"], "which was the headline, and called the model useless"
    assert live.values["loss"] < live.baseline["loss"], "the guess is weighted as the loss is, so no alert fires"


def test_a_regression_with_outliers_is_judged_beside_the_median() -> None:
    def price(x: Array) -> Array:
        plain = 10 + 5 * x[..., 0]
        return np.asarray(np.where(x[..., 1] > 2.5, 1e5, plain), np.float32)

    live = learnt(model_of(1, None, loss="mae", metrics=["mae"]), price)
    (sentence,) = how_well(live)
    found = re.fullmatch(r"MAE (\S+) over the last minute \(median: (\S+)\)\.", sentence)
    assert found is not None, sentence
    random = np.random.default_rng(3)
    labels = np.concatenate(
        [price(random.normal(size=(BATCHES, BATCH, FEATURES)).astype(np.float32)).reshape(-1) for _ in range(12)]
    )
    assert float(found[2]) == pytest.approx(np.abs(labels - np.median(labels)).mean(), rel=0.01)
    assert live.guesses["loss"] == "median"


def test_five_classes_have_an_f1_for_each_and_may_be_judged_by_their_mean() -> None:
    def one_of_five(x: Array) -> Array:
        return np.asarray(np.eye(5, dtype=np.float32)[np.clip(np.floor(x[..., 0] * 1.2 + 2), 0, 4).astype(int)])

    build = model_of(
        5, "softmax", loss="categorical_crossentropy", metrics=["accuracy", keras.metrics.F1Score(name="f1")]
    )
    live = learnt(build, one_of_five, shape=(5,), watch="f1")
    (sentence,) = how_well(live)
    assert re.fullmatch(r"F1 0\.\d+ over the last minute \(guessing: 0\.\d+\)\.", sentence)
    assert {f"f1[{index}]" for index in range(5)} < live.values.keys()
    assert live.baseline["f1"] == pytest.approx(max(live.baseline[f"f1[{index}]"] for index in range(5)) / 5)
    assert (live.guesses["accuracy"], live.guesses["f1[4]"]) == ("base rate", "guessing")


def test_a_guess_of_no_change_that_beats_the_base_rate_is_named_and_has_to_be_beaten() -> None:
    in_runs = LiveSnapshot(
        scored="before_update",
        window_s=60.0,
        records=100,
        values={"accuracy": 0.91},
        baseline={"accuracy": 0.55},
        guesses={"accuracy": "base rate"},
        no_change={"accuracy": 0.93},
        cumulative={},
        cumulative_records=100,
        watch=choose_watched({"accuracy": True}),
    )
    assert how_well(in_runs) == ["Accuracy 0.91 over the last minute (base rate: 0.55, no change: 0.93)."]
    assert in_runs.ahead_of_guessing == pytest.approx(-0.02)
    at_random = replace(in_runs, no_change={"accuracy": 0.505})
    assert how_well(at_random) == ["Accuracy 0.91 over the last minute (base rate: 0.55)."]
    assert at_random.ahead_of_guessing == pytest.approx(0.36)


def test_an_autoencoder_without_a_label_is_judged_beside_the_mean_of_its_input() -> None:
    live = learnt(model_of(FEATURES, None, loss="mse"), None)
    (sentence,) = how_well(live)
    assert re.fullmatch(r"Loss \S+ over the last minute \(mean: (0\.9|1)\d*\.?\d*\)\.", sentence), sentence
    assert live.baseline["loss"] == pytest.approx(1.0, abs=0.05)


def gini(y_true: Any, y_pred: Any) -> Any:
    """Return a value for each row."""
    return keras.ops.mean(keras.ops.abs(y_true - y_pred), axis=-1)


def test_a_metric_of_ones_own_is_judged_by_what_the_settings_say() -> None:
    live = learnt(model_of(1, None, loss="mse", metrics=[gini]), lambda x: x[..., 0], watch="gini", better="lower")
    (sentence,) = how_well(live)
    assert re.fullmatch(r"Gini \S+ over the last minute\.", sentence), "it has no guess, and says none"
    assert not live.watch.higher_is_better
    assert live.ahead_of_guessing is None


@pytest.mark.parametrize(
    ("name", "words"),
    [("auc", "AUC"), ("mae", "MAE"), ("auc_pr", "AUC PR"), ("log_loss", "Log loss"), ("f1_score[2]", "F1 score[2]")],
)
def test_a_metrics_name_is_put_in_words(name: str, words: str) -> None:
    assert in_words(name) == words


def test_a_value_of_before_a_silence_says_when_its_last_record_came() -> None:
    build = model_of(1, "sigmoid", loss="binary_crossentropy", metrics=["accuracy"])
    live = learnt(build, rare, blocks=2)
    (now,), (later,) = how_well(replace(live, age_s=5.0)), how_well(replace(live, age_s=720.0))
    assert " over the last " in now
    assert re.search(r" over the .+ before the last record, 12 min ago \(base rate: ", later)


def test_what_is_expected_of_records_without_labels_is_called_an_estimate() -> None:
    build = model_of(1, "sigmoid", loss="binary_crossentropy", metrics=["accuracy"])
    live = learnt(build, lambda x: (x[..., :1] > 0).astype(np.float32), shape=(1,), blocks=2)
    figures = ArrivalFigures(
        share=0.01, values={}, records=0, scored=0, missed=0, expected={"accuracy": 0.7431}, waiting=1240
    )
    posting = Posting(
        live=live,
        learning_rate=0.02,
        step=8,
        model=ModelFacts(parameters=7, replicas=1, devices=("CPU:0",)),
        last_save=None,
        saves=0,
        failed_saves=0,
        save_error=None,
        learnt_to_ms=None,
        figures={ArrivalFigures.name: figures},
    )
    [sentence] = on_arrival(posting)
    assert sentence == "Expected of 1,240 predictions without labels yet, an estimate: accuracy 0.743."
    few = replace(posting, figures={ArrivalFigures.name: replace(figures, expected={})})
    assert on_arrival(few) == []
