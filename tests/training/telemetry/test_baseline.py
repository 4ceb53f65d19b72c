"""The baseline equals the score that Keras' own metrics give to the best guess, weighted as each metric is."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import pytest

from millrace.training.model.call.metrics import CompiledMetrics
from millrace.training.telemetry.baseline import BaselinePlan, absolute_percentage, huber, log_cosh
from millrace.training.telemetry.label_sums import Labels, LabelSums, QuantileSketch
from millrace.training.trainer.metric_guesses import plan_of

pytestmark = pytest.mark.tensorflow

RANDOM = np.random.default_rng(5)
ROWS = 600
BITS = (RANDOM.random((ROWS, 1)) < 0.3).astype(np.float32)
BOTH = np.concatenate([BITS, 1 - BITS[::-1]], axis=1)
CLASSES = RANDOM.choice(4, ROWS, p=[0.1, 0.5, 0.15, 0.25])
ONE_HOT = np.eye(4, dtype=np.float32)[CLASSES]
NUMBERS = RANDOM.lognormal(1, 1, (ROWS, 1)).astype(np.float32)
NUMBERS[::100] *= 1e4
WEIGHTS = RANDOM.choice([1.0, 10.0], ROWS).astype(np.float32)
Guessed = npt.NDArray[np.float32]


def planned(
    loss: Any, metrics: list[Any], labels: npt.NDArray[Any], width: int = 1, weighted: tuple[Any, ...] = ()
) -> BaselinePlan:
    """Compile a real model, score some rows as a traced call does, and return its plan."""
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.layers.Dense(width, activation="sigmoid")(inputs))
    model.compile(loss=loss, metrics=metrics, weighted_metrics=list(weighted))
    x = np.zeros((8, 2), np.float32)
    model.test_on_batch(x, labels[:8])
    compiled = CompiledMetrics(model)
    compiled.open(np.ones(8, np.float32))
    model.compute_metrics(x, labels[:8], model(x), sample_weight=np.ones(8, np.float32))
    return plan_of(model, compiled)


def guessed(plan: BaselinePlan, labels: npt.NDArray[Any]) -> dict[str, float]:
    """Return the guesses' scores over all rows, added up from pieces."""
    plain, weighted = LabelSums(), LabelSums()
    for rows in np.array_split(np.arange(ROWS), 7):
        plain.add(LabelSums.over(plan.labels, labels[rows], quantiles=plan.quantiles))
        weighted.add(LabelSums.over(plan.labels, labels[rows], WEIGHTS[rows], quantiles=plan.quantiles))
    return plan.guessed(plain, weighted)


def scored(metric: Any, labels: Any, guess: Any, weights: Any = None) -> Any:
    """Return what Keras' metric gives to the same guess for every row."""
    metric.reset_state()
    metric.update_state(labels, np.broadcast_to(np.asarray(guess, np.float32), labels.shape), sample_weight=weights)
    return np.asarray(metric.result())


km = keras.metrics
RATE = BITS.mean()
BINARY: list[tuple[Callable[[], Any], Any]] = [
    (lambda: km.BinaryAccuracy(name="accuracy"), 0.0),
    (lambda: km.BinaryCrossentropy(name="log_loss"), "mean"),
    (lambda: km.AUC(name="auc"), 0.5),
    (lambda: km.Precision(name="precision"), 1.0),
    (lambda: km.F1Score(threshold=0.5, name="f1"), 1.0),
    (lambda: km.FBetaScore(beta=2.0, threshold=0.5, average="micro", name="f2"), 1.0),
    (lambda: km.MeanSquaredError(name="brier"), "mean"),
    (lambda: km.RootMeanSquaredError(name="rmse"), "mean"),
    (lambda: km.MeanAbsoluteError(name="mae"), "median"),
]


def _mean(labels: npt.NDArray[Any], weights: npt.NDArray[Any]) -> Any:
    return np.average(labels, axis=0, weights=weights)


def _median(labels: npt.NDArray[Any], weights: npt.NDArray[Any]) -> Any:
    return np.median(np.repeat(labels, weights.astype(int), axis=0), axis=0)


def _of(guess: Any, labels: npt.NDArray[Any], weights: npt.NDArray[Any]) -> Any:
    return {"mean": _mean, "median": _median}[guess](labels, weights) if isinstance(guess, str) else guess


@pytest.mark.slow
@pytest.mark.parametrize("labels", [BITS, BOTH], ids=["one", "two"])
@pytest.mark.parametrize("weighted", [False, True])
def test_guesses_of_binary_metrics_score_what_keras_gives_them(labels: npt.NDArray[Any], weighted: bool) -> None:
    metrics = [make() for make, _ in BINARY]
    compiled = ([], tuple(metrics)) if weighted else (metrics, ())
    scores = guessed(planned("binary_crossentropy", compiled[0], labels, labels.shape[1], compiled[1]), labels)
    weights = WEIGHTS if weighted else np.ones(ROWS, np.float32)
    for make, guess in BINARY:
        metric = make()
        constant = _of(guess, labels, weights)
        if metric.name == "accuracy":
            constant = (_mean(labels, weights) > 0.5).astype(np.float32)
        if metric.name == "f1" and labels.shape[1] == 2:
            by_class = scored(metric, labels, constant, weights)
            assert [scores["f1[0]"], scores["f1[1]"]] == pytest.approx(by_class, rel=1e-5)
            assert scores["f1"] == pytest.approx(by_class.mean(), rel=1e-5)
        else:
            assert scores[metric.name] == pytest.approx(
                float(scored(metric, labels, constant, weights).mean()), rel=1e-4
            )
    rate = float(_mean(labels, weights).mean())
    assert scores["precision"] == pytest.approx(rate, rel=1e-5)


def test_recall_and_the_curve_of_precision_are_compared_with_guessing_at_random() -> None:
    compiled = [km.Recall(name="recall"), km.AUC(curve="PR", name="pr"), km.SensitivityAtSpecificity(0.8, name="at")]
    scores = guessed(planned("binary_crossentropy", compiled, BITS), BITS)
    random = np.random.default_rng(1)
    many = np.tile(BITS, (200, 1))
    guesses = (random.random(many.shape) < RATE, *random.random((2, *many.shape)))
    fresh = (km.Recall(), km.AUC(curve="PR"), km.SensitivityAtSpecificity(0.8))
    for name, metric, guess in zip(("recall", "pr", "at"), fresh, guesses, strict=True):
        assert scores[name] == pytest.approx(float(scored(metric, many, guess)), abs=0.01)


ONE_OF_FOUR: list[Callable[[], Any]] = [
    lambda: km.CategoricalAccuracy(name="accuracy"),
    lambda: km.TopKCategoricalAccuracy(k=2, name="top_2"),
    lambda: km.CategoricalCrossentropy(name="log_loss"),
    lambda: km.CategoricalCrossentropy(label_smoothing=0.2, name="smoothed"),
]


def test_guesses_of_classes_score_what_keras_gives_them() -> None:
    averages = [None, "micro", "macro", "weighted"]
    f_scores = [km.F1Score(average=average, name=f"f1_{average}") for average in averages]
    plan = planned("categorical_crossentropy", [*(make() for make in ONE_OF_FOUR), *f_scores], ONE_HOT, 4)
    scores = guessed(plan, ONE_HOT)
    shares = ONE_HOT.mean(axis=0)
    for make in ONE_OF_FOUR:
        metric = make()
        guess = shares * 0.8 + 0.05 if metric.name == "smoothed" else shares
        assert scores[metric.name] == pytest.approx(float(scored(metric, ONE_HOT, guess)), rel=1e-5)
    each = [np.eye(4, dtype=np.float32)[index] for index in range(4)]
    for average in averages[1:]:
        best = max(float(scored(km.F1Score(average=average), ONE_HOT, one)) for one in each)
        assert scores[f"f1_{average}"] == pytest.approx(best, rel=1e-5)
    always = [float(scored(km.F1Score(), ONE_HOT, one)[index]) for index, one in enumerate(each)]
    assert [scores[f"f1_None[{index}]"] for index in range(4)] == pytest.approx(always, rel=1e-5)
    assert scores["f1_None"] == pytest.approx(max(always) / 4, rel=1e-5)


def test_class_numbers_have_the_guesses_of_the_same_classes() -> None:
    sparse = guessed(planned("sparse_categorical_crossentropy", ["accuracy"], CLASSES, 4), CLASSES)
    one_hot = guessed(planned("categorical_crossentropy", ["accuracy"], ONE_HOT, 4), ONE_HOT)
    assert sparse == pytest.approx(one_hot)
    assert sparse["accuracy"] == pytest.approx(np.bincount(CLASSES).max() / ROWS)


def _errors() -> dict[str, Any]:
    return {
        "mean_squared_error": km.MeanSquaredError(),
        "mean_absolute_error": km.MeanAbsoluteError(),
        "huber": km.MeanMetricWrapper(keras.losses.huber, name="huber", delta=2.0),
        "logcosh": km.LogCoshError(),
        "mean_absolute_percentage_error": km.MeanAbsolutePercentageError(),
    }


@pytest.mark.slow
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
def test_guesses_of_numbers_are_the_best_constants_by_keras(weights: npt.NDArray[Any] | None) -> None:
    compiled = ([], tuple(_errors().values())) if weights is not None else (list(_errors().values()), ())
    scores = guessed(planned("mse", compiled[0], NUMBERS, 1, compiled[1]), NUMBERS)
    means = [float(_mean(NUMBERS, np.ones(ROWS))[0]), float(_mean(NUMBERS, WEIGHTS)[0])]
    constants = [*means, *np.quantile(NUMBERS, np.linspace(0, 0.97, 60))]
    for name, metric in _errors().items():
        best = min(float(scored(metric, NUMBERS, constant, weights)) for constant in constants)
        assert scores[name] == pytest.approx(best, rel=0.02), name


def test_the_best_constants_of_many_columns_are_those_of_each_alone() -> None:
    """The columns are searched at once, and hold different numbers of values."""
    columns = np.stack([np.round(-NUMBERS[:, 0], digits) for digits in (-3, -1, 0, 3)] + [np.full(ROWS, 7.0)], axis=1)
    whole = QuantileSketch.over(columns, WEIGHTS.astype(np.float64))
    each = [QuantileSketch.over(columns[:, [i]], WEIGHTS.astype(np.float64)) for i in range(columns.shape[1])]
    assert len({sketch.values.size for sketch in each}) == len(each)
    for loss in (huber(2.0), log_cosh, absolute_percentage):
        alone = [sketch.least(loss) for sketch in each]
        assert whole.least(loss) == pytest.approx(np.mean([least for least in alone if least is not None]), rel=1e-9)


def test_a_column_without_numbers_takes_no_part_in_the_guess() -> None:
    numbers = np.stack([NUMBERS[:, 0], np.full(ROWS, np.nan)], axis=1)
    both, one = (QuantileSketch.over(rows, np.ones(ROWS)) for rows in (numbers, NUMBERS))
    assert both.least(log_cosh) == pytest.approx(one.least(log_cosh))
    assert QuantileSketch.over(numbers[:, 1:], np.ones(ROWS)).least(log_cosh) is None


def test_the_guessed_loss_is_weighted_and_divided_by_rows_as_keras_does() -> None:
    weights = np.full(ROWS, 10.0, np.float32)
    for loss, labels, width, guess in (
        ("binary_crossentropy", BITS, 1, np.full_like(BITS, RATE)),
        ("categorical_crossentropy", ONE_HOT, 4, np.tile(ONE_HOT.mean(axis=0), (ROWS, 1))),
        (keras.losses.MeanSquaredError(), NUMBERS, 1, np.full_like(NUMBERS, NUMBERS.mean())),
    ):
        plan = planned(loss, [], labels, width)
        sums = LabelSums.over(plan.labels, labels, weights)
        expected = keras.losses.get(loss) if not isinstance(loss, str) else getattr(keras.losses, loss)
        own = float(np.mean(np.asarray(expected(labels, guess)) * 10.0))
        assert plan.guessed(LabelSums(), sums)["loss"] == pytest.approx(own, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("delta", [0.5, 30.0])
def test_the_guess_of_hubers_loss_honours_its_delta(delta: float) -> None:
    loss = keras.losses.Huber(delta=delta)
    plan = planned(loss, [], NUMBERS, 1)
    sums = LabelSums.over(plan.labels, NUMBERS, quantiles=plan.quantiles)
    guess = plan.guessed(LabelSums(), sums)["loss"]
    constants = np.quantile(NUMBERS, np.linspace(0, 1, 200))
    best = min(float(loss(NUMBERS, np.full_like(NUMBERS, constant))) for constant in constants)
    assert guess == pytest.approx(best, rel=0.02)


def test_class_weights_move_the_guess_of_the_loss_not_of_an_unweighted_metric() -> None:
    rare = (np.arange(ROWS) % 200 == 0).astype(np.float32)[:, None]
    weights = np.where(rare[:, 0] == 1, 199.0, 1.0).astype(np.float32)
    plan = planned("binary_crossentropy", ["accuracy", km.AUC(name="auc")], rare, 1, (km.BinaryAccuracy(name="fair"),))
    plain, weighted = LabelSums.over(plan.labels, rare), LabelSums.over(plan.labels, rare, weights)
    scores = plan.guessed(plain, weighted)
    assert scores["accuracy"] == pytest.approx(0.995)
    assert scores["fair"] == pytest.approx(0.5)
    assert scores["auc"] == 0.5
    assert scores["loss"] == pytest.approx(np.log(2) * weights.mean(), rel=1e-3)


@pytest.mark.parametrize(
    ("kind", "labels"), [(Labels.BINARY, BOTH), (Labels.CLASSES, CLASSES), (Labels.NUMBERS, NUMBERS)]
)
def test_sums_of_pieces_are_the_sums_of_the_whole_and_come_back_from_arrays(
    kind: Labels, labels: npt.NDArray[Any]
) -> None:
    whole, pieces = LabelSums.over(kind, labels, WEIGHTS, quantiles=True), LabelSums()
    for rows in np.array_split(np.arange(ROWS), 3):
        pieces.add(LabelSums.over(kind, labels[rows], WEIGHTS[rows], quantiles=True))
    assert pieces.rows == ROWS
    assert pieces.weight == pytest.approx(WEIGHTS.sum())
    for one, other in ((whole.total, pieces.total), (whole.squares, pieces.squares), (whole.classes, pieces.classes)):
        np.testing.assert_allclose(one, other, rtol=1e-9)
    back = LabelSums.of(pieces.arrays("any"), "any")
    assert back.arrays("any").keys() == pieces.arrays("any").keys()
    assert all(np.array_equal(back.arrays("any")[key], array) for key, array in pieces.arrays("any").items())


def test_a_class_that_appears_later_joins_the_sums() -> None:
    sums = LabelSums.over(Labels.CLASSES, np.array([0, 0, 1]))
    sums.add(LabelSums.over(Labels.CLASSES, np.array([7])))
    assert sums.shares.tolist() == [0.5, 0.25, 0, 0, 0, 0, 0, 0.25]


def test_a_negative_label_is_counted_and_is_of_no_class() -> None:
    sums = LabelSums.over(Labels.CLASSES, np.array([[0, -1], [-1, 2]]), np.array([3.0, 1.0]))
    assert (sums.rows, sums.weight) == (2, 4.0)
    assert sums.shares.tolist() == [0.375, 0, 0.125]


def test_labels_of_one_value_are_guessed_without_loss() -> None:
    for loss, labels in (("binary_crossentropy", np.ones((ROWS, 1))), ("mse", np.full((ROWS, 1), 2.0))):
        plan = planned(loss, ["accuracy"], labels)
        assert guessed(plan, labels)["loss"] == pytest.approx(0.0)


def test_without_rows_nothing_is_guessed() -> None:
    plan = planned("binary_crossentropy", ["accuracy"], BITS)
    assert plan.guessed(LabelSums(), LabelSums()) == {}


def test_an_even_selection_of_very_many_labels_is_summed_up() -> None:
    images = np.arange(6000 * 100, dtype=np.float32).reshape(6000, 100) % 7
    sums = LabelSums.over(Labels.NUMBERS, images)
    assert sums.rows == 2000
    np.testing.assert_allclose(sums.variances, images.var(axis=0), rtol=0.01)


def test_a_loss_or_metric_of_ones_own_has_no_baseline() -> None:
    def own(y_true: Any, y_pred: Any) -> Any:
        return keras.ops.mean(keras.ops.abs(y_true - y_pred), axis=-1)

    plan = planned(own, [own, "mae"], NUMBERS)
    assert guessed(plan, NUMBERS).keys() == {"mae"}
    assert plan.kinds == {"mae": "median"}
    assert planned(own, [own], NUMBERS).labels is Labels.NONE
    assert planned("binary_focal_crossentropy", ["accuracy"], BITS).kinds == {"accuracy": "base rate"}


def test_ones_own_loss_or_metric_under_keras_name_has_no_baseline_either() -> None:
    def mean_squared_error(y_true: Any, y_pred: Any) -> Any:
        return 7.0 * keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)

    class Huber(keras.losses.Loss):
        def call(self, y_true: Any, y_pred: Any) -> Any:
            return mean_squared_error(y_true, y_pred)

    for own in (mean_squared_error, Huber()):
        assert guessed(planned(own, [mean_squared_error, "mae"], NUMBERS), NUMBERS).keys() == {"mae"}
