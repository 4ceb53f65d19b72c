"""The live metrics: cumulative sums that never saturate, a window that forgets, and values equal to Keras' own."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from millrace.pipelines.schema import Field, Schema
from millrace.training.checkpoints.parts import PartState
from millrace.training.model.learner import Learner
from millrace.training.recovery.isolation import Piece
from millrace.training.telemetry.baseline import (
    BaselinePlan,
    GuessedScore,
    GuessKind,
    absolute_deviation,
    binary_accuracy,
    variance,
)
from millrace.training.telemetry.label_sums import Labels, LabelSums
from millrace.training.telemetry.live_metrics import LiveMetrics, Results, Sums
from millrace.training.trainer.learning import LearntRows, sums_of
from millrace.training.trainer.metric_guesses import plan_of
from tests.training.conftest import BATCH, FEATURES, SCHEMA, MakeLearner, block, mlp
from tests.training.trainer_rig import Clock

pytestmark = pytest.mark.tensorflow


def _share(states: Any) -> dict[str, float]:
    return {"accuracy": float(states[0] / states[1])}


PLAN = BaselinePlan(labels=Labels.BINARY, scores=(GuessedScore("accuracy", binary_accuracy, GuessKind.BASE_RATE),))

NUMBER_SCORES = (
    GuessedScore("mse", variance, GuessKind.MEAN),
    GuessedScore("mae", absolute_deviation, GuessKind.MEDIAN, weighted=True),
)


def _live(clock: Clock, results: Results = _share) -> LiveMetrics:
    return LiveMetrics(window_s=60.0, scored="before_update", results=results, plan=PLAN, clock=clock)


def _sums(right: float, records: int, *, loss: float = 0.5, label: int = 0) -> Sums:
    labels = LabelSums.over(Labels.BINARY, np.full((min(records, 100),), label))
    states = [np.array(float(right)), np.array(float(records))]
    return Sums(records, loss * records, records, states, labels)


def _metrics() -> list[Any]:
    return [
        "accuracy",
        keras.metrics.AUC(name="auc"),
        keras.metrics.AUC(name="auc_pr", curve="PR"),
        keras.metrics.Precision(name="precision"),
        keras.metrics.Recall(name="recall", thresholds=0.3),
        keras.metrics.PrecisionAtRecall(0.5, name="precision_at_recall"),
        keras.metrics.RootMeanSquaredError(name="rmse"),
        keras.metrics.MeanAbsoluteError(name="mae"),
    ]


def _standing_still(weighted: tuple[Any, ...] = ()) -> Any:
    """Build a model that learns nothing, so that all of its scores are of the same weights."""
    inputs = keras.Input((FEATURES,), name="x")
    outputs = keras.layers.Dense(1, activation="sigmoid")(keras.layers.Dense(4, activation="relu")(inputs))
    model = keras.Model(inputs, outputs)
    model.compile(
        optimizer=keras.optimizers.SGD(0.0),
        loss="binary_crossentropy",
        metrics=_metrics(),
        weighted_metrics=list(weighted),
    )
    return model


def _scored(learner: Learner, seeds: range, rows: int) -> tuple[LiveMetrics, Any, Any]:
    """Learn a block for each seed; return the live metrics of them, and all their rows."""
    live = _live(Clock(), learner.call.metrics.results)
    xs, ys = [], []
    for seed in seeds:
        made = block(3, rows=rows, seed=seed)
        result = learner.learn(made).result
        live.add(Sums(rows, float(result.losses.sum()) * BATCH, rows, list(result.states)))
        xs.append(made.features["x"].numpy().reshape(-1, FEATURES)[:rows])
        ys.append(made.labels.numpy().reshape(-1)[:rows])
    return live, np.concatenate(xs), np.concatenate(ys)


# The sums of one replica are the simpler case.
@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_values_of_merged_calls_are_keras_own_over_all_the_rows(learner_of: MakeLearner, replicas: int) -> None:
    learner = learner_of(_standing_still, replicas=replicas)
    live, x, y = _scored(learner, range(6), rows=2 * BATCH + 5)
    own = _standing_still()
    own.jit_compile = False
    own.set_weights(learner.model.get_weights())
    expected = own.evaluate(x, y, batch_size=len(x), verbose=0, return_dict=True)
    look = live.look()
    assert look.records == len(x) == 6 * 29
    assert look.values.keys() == expected.keys()
    assert dict(look.values) == pytest.approx(expected, rel=2e-5)
    assert look.values == look.cumulative


@pytest.mark.parametrize("dtype", ["bool", "int64", "float32"])
def test_labels_of_any_dtype_have_the_guesses_of_their_base_rate(learner_of: MakeLearner, dtype: Any) -> None:
    schema = Schema(features=SCHEMA.features, labels=(Field(name="y", source="y", dtype=dtype),))
    learner = learner_of(mlp, schema=schema)
    made = block(3, rows=2 * BATCH + 5)
    rows = made._replace(labels=tf.cast(made.labels, dtype))
    plan = plan_of(learner.model, learner.call.metrics)
    live = LiveMetrics(window_s=60.0, scored="", results=learner.call.metrics.results, plan=plan, clock=Clock())
    live.add(sums_of(LearntRows.of(Piece(rows, learner.learn(rows))), plan, BATCH))
    share = made.labels.numpy().reshape(-1)[: 2 * BATCH + 5].mean()
    baseline = live.look().baseline
    assert baseline["accuracy"] == pytest.approx(max(share, 1 - share))
    assert baseline["loss"] == pytest.approx(-share * np.log(share) - (1 - share) * np.log(1 - share), rel=1e-4)


def test_sums_keep_counting_where_float32_would_stop() -> None:
    clock = Clock()
    live = _live(clock)
    live.add(_sums(2**33, 2**34))
    for _ in range(100):
        live.add(_sums(1024, 1024))
    stuck = np.float32(2**34)
    for _ in range(100):
        stuck += np.float32(1024)
    assert stuck == 2**34
    arrays = live.snapshot().arrays
    assert float(np.asarray(arrays["state.0"])) == 2**33 + 100 * 1024
    assert float(np.asarray(arrays["state.1"])) == 2**34 + 100 * 1024
    look = live.look()
    assert look.records == look.cumulative_records == 2**34 + 100 * 1024
    assert look.values["accuracy"] == look.cumulative["accuracy"] == (2**33 + 102400) / (2**34 + 102400)


def test_an_auc_over_billions_of_records_still_moves(learner_of: MakeLearner) -> None:
    learner = learner_of(_standing_still)
    live, _, _ = _scored(learner, range(2), rows=3 * BATCH)
    once, state = live.look().values["auc"], live.snapshot()
    huge = {k: np.asarray(np.asarray(v) * 2.0**30) for k, v in state.arrays.items() if k.startswith("state.")}
    live.restore(PartState(arrays={**state.arrays, **huge}, facts=state.facts))
    assert live.look().cumulative["auc"] == pytest.approx(once, rel=1e-6)
    before = live.snapshot().arrays
    result = learner.learn(block(3, seed=9)).result
    live.add(Sums(3 * BATCH, 0.0, 0, list(result.states)))
    for index, added in enumerate(result.states):
        moved = np.asarray(live.snapshot().arrays[f"state.{index}"]) - np.asarray(before[f"state.{index}"])
        np.testing.assert_allclose(moved, added, rtol=1e-3, atol=1e-4)


def test_the_window_forgets_and_the_cumulative_sums_do_not() -> None:
    clock = Clock()
    live = _live(clock)
    live.add(_sums(0, 100, loss=2.0, label=1))
    clock.now += 50
    live.add(_sums(100, 100, loss=1.0, label=0))
    both = live.look()
    assert (both.records, both.values) == (200, {"loss": 1.5, "accuracy": 0.5})
    assert both.baseline["accuracy"] == 0.5
    clock.now += 20
    live.add(_sums(100, 100, loss=1.0, label=0))
    later = live.look()
    assert (later.records, later.values) == (200, {"loss": 1.0, "accuracy": 1.0})
    assert later.baseline["accuracy"] == 1.0
    assert later.cumulative_records == 300
    assert later.cumulative["accuracy"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("silent_s", [20.0, 61.0, 86_400.0])
def test_while_nothing_is_scored_the_values_stand_still_and_say_their_age(silent_s: float) -> None:
    clock = Clock()
    live = _live(clock)
    assert (live.look().values, live.look().cumulative, live.look().age_s) == ({}, {}, None)
    live.add(_sums(0, 100, loss=2.0, label=1))
    clock.now += 50
    live.add(_sums(100, 100, loss=1.0, label=0))
    before = live.look()
    clock.now += silent_s
    after = live.look()
    assert (after.values, after.baseline, after.records) == (before.values, before.baseline, before.records)
    assert (before.age_s, after.age_s) == (0.0, silent_s)
    live.add(_sums(1, 2))
    assert live.look().records == (102 if silent_s < 60 else 2)


def _numbers(rows: int, seed: int, *, weighted: bool = False) -> Sums:
    random = np.random.default_rng(seed)
    numbers = random.normal(size=rows)
    plain = LabelSums.over(Labels.NUMBERS, numbers, quantiles=True)
    heavier = LabelSums.over(Labels.NUMBERS, numbers, random.random(rows), quantiles=True) if weighted else plain
    return Sums(rows, 0.5 * rows, rows, [np.array(1.0), np.array(2.0)], plain, heavier)


def test_looks_at_the_window_on_the_way_change_no_later_one() -> None:
    clock, plan = Clock(), BaselinePlan(labels=Labels.NUMBERS, scores=NUMBER_SCORES, quantiles=True)
    looked, other = (
        LiveMetrics(window_s=60.0, scored="before_update", results=_share, plan=plan, clock=clock) for _ in range(2)
    )
    for second in range(150):
        clock.now = second * 0.7
        for live in (looked, other):
            live.add(_numbers(20, second))
        looked.look()
        if second == 100:
            for live in (looked, other):
                live.restore(live.snapshot())
    before, after = looked.look(), other.look()
    assert (before.records, before.values) == (after.records, after.values)
    assert before.baseline == pytest.approx(after.baseline, rel=1e-9)
    assert before.records < 51 * 20


def test_labels_whose_weights_are_all_one_are_summed_up_once_until_one_is_not() -> None:
    clock, plan = Clock(), BaselinePlan(labels=Labels.NUMBERS, scores=NUMBER_SCORES, quantiles=True)
    live = LiveMetrics(window_s=60.0, scored="before_update", results=_share, plan=plan, clock=clock)
    both = Sums()
    for seed in range(3):
        live.add(_numbers(50, seed))
        both.add(_numbers(50, seed))
    assert both.weighted_labels is both.labels
    taken = live.snapshot()
    live.restore(taken)
    for seed in range(3, 5):
        live.add(_numbers(50, seed, weighted=True))
    pieces = [_numbers(50, seed, weighted=seed > 2) for seed in range(5)]
    plain, weighted = LabelSums(), LabelSums()
    for piece in pieces:
        plain.add(piece.labels)
        weighted.add(piece.weighted_labels)
    arrays = live.snapshot().arrays
    expected = {**plain.arrays("labels"), **weighted.arrays("weighted_labels")}
    assert all(np.array_equal(arrays[name], array) for name, array in expected.items())
    assert weighted.weight != plain.weight
    assert float(taken.arrays["labels.rows_and_weight"][0]) == 150, "what was taken before does not change"


def test_the_sums_of_a_call_are_not_changed_by_later_calls() -> None:
    live = _live(Clock())
    first = _sums(1, 2)
    live.add(first)
    live.add(_sums(5, 5))
    assert [float(state) for state in first.states] == [1.0, 2.0]
    taken = live.snapshot()
    live.add(_sums(5, 5))
    assert float(np.asarray(taken.arrays["state.1"])) == 7


def test_a_restart_restores_the_cumulative_sums_and_empties_the_window() -> None:
    clock = Clock()
    live, fresh = _live(clock), _live(clock)
    live.add(_sums(60, 100, loss=1.0, label=1))
    fresh.add(_sums(1, 1))
    fresh.restore(live.snapshot())
    look = fresh.look()
    assert (look.records, look.values) == (0, {})
    assert (look.cumulative_records, look.cumulative) == (100, {"loss": 1.0, "accuracy": 0.6})
    fresh.add(_sums(40, 100, loss=3.0))
    assert fresh.look().cumulative == {"loss": 2.0, "accuracy": 0.5}
    assert fresh.look().values == {"loss": 3.0, "accuracy": 0.4}
    assert float(np.asarray(live.snapshot().arrays["state.1"])) == 100, "the two share nothing"


def test_metrics_that_are_compiled_differently_begin_at_zero_after_a_restart() -> None:
    live, fresh = _live(Clock()), _live(Clock(), results=lambda states: {"bins": float(len(states))})
    live.add(_sums(60, 100))
    fresh.restore(live.snapshot())
    states = [np.zeros(3), np.ones(3), np.ones(1)]
    fresh.add(Sums(10, 5.0, 10, states))
    assert fresh.look().cumulative["bins"] == 3
    assert fresh.look().cumulative_records == 110


def test_sums_with_an_unknown_loss_give_metrics_and_no_loss() -> None:
    live = _live(Clock())
    sums = _sums(1, 2)
    sums.loss, sums.scored = 0.0, 0
    live.add(sums)
    assert live.look().values == {"accuracy": 0.5}


def test_a_metric_replaced_by_another_of_the_same_shape_begins_at_zero() -> None:
    def live(*names: str) -> LiveMetrics:
        return LiveMetrics(
            window_s=60.0,
            scored="before_update",
            results=lambda states: {"value": float(states[0])} if states else {},
            plan=BaselinePlan(),
            clock=lambda: 0.0,
            names=names,
        )

    before = live("accuracy")
    before.add(Sums(records=4, states=[np.array(3.0)]))
    same, other = live("accuracy"), live("mse")
    same.restore(before.snapshot())
    other.restore(before.snapshot())
    assert same.look().cumulative == {"value": 3.0}
    assert other.look().cumulative == {}
