"""The watched metric: chosen by the settings or by what is known of the compiled metrics, and compared by it."""

import math
from typing import Any

import keras
import pytest

from millrace.consumers.errors import ConfigError
from millrace.training.model.call.metrics import CompiledMetrics, preferred
from millrace.training.telemetry.live_metrics import WATCHED_LOSS, Watched, choose_watched

KNOWN = {"mae": False, "gini": None, "auc": True, "accuracy": True}


def test_the_first_metric_of_a_known_direction_is_watched_by_default() -> None:
    assert choose_watched(KNOWN) == Watched("mae", higher_is_better=False)
    assert choose_watched({"gini": None, "auc": True}) == Watched("auc", higher_is_better=True)


def test_a_preferred_metric_is_watched_before_the_first_one() -> None:
    assert choose_watched(KNOWN, first=("f1", "accuracy")).name == "accuracy"
    assert choose_watched(KNOWN, first=("gini", "auc", "accuracy")).name == "auc", "gini cannot be compared"


def test_the_loss_is_watched_where_no_metric_can_be_compared() -> None:
    assert choose_watched({"gini": None}) == choose_watched({}) == WATCHED_LOSS


def test_the_settings_name_any_metric_or_the_loss() -> None:
    assert choose_watched(KNOWN, "loss") == WATCHED_LOSS
    assert choose_watched(KNOWN, "auc") == Watched("auc", higher_is_better=True)
    assert choose_watched(KNOWN, "gini", "higher") == Watched("gini", higher_is_better=True)
    assert choose_watched(KNOWN, "mae", "higher").higher_is_better, "the setting overrides what is known"


def test_an_unknown_name_is_refused_with_what_is_compiled() -> None:
    with pytest.raises(ConfigError) as refused:
        choose_watched(KNOWN, "acuracy")
    assert str(refused.value) == (
        "training.live_metrics.watch: the model compiles no metric 'acuracy', but loss, mae, gini, auc, accuracy; "
        "did you mean accuracy?"
    )


def test_a_metric_of_ones_own_needs_to_know_which_values_are_better() -> None:
    with pytest.raises(ConfigError, match=r"training\.live_metrics\.better: gini .* write higher or lower"):
        choose_watched(KNOWN, "gini")


@pytest.mark.parametrize(
    ("value", "than", "up", "down"),
    [
        (0.9, 0.8, True, False),
        (0.8, 0.9, False, True),
        (0.9, 0.9, False, False),
        (math.nan, 0.1, False, False),
        (0.1, math.nan, True, True),
        (math.inf, 0.1, False, False),
        (math.nan, math.nan, False, False),
    ],
)
def test_values_are_compared_and_what_is_not_finite_is_never_better(
    value: float, than: float, up: bool, down: bool
) -> None:
    assert Watched("a", higher_is_better=True).better(value, than) is up
    assert Watched("a", higher_is_better=False).better(value, than) is down


def gini(y_true: Any, y_pred: Any) -> Any:
    """Return a value for each row, as a metric of one's own does."""
    return y_true * y_pred


def _compiled(*metrics: Any) -> CompiledMetrics:
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(inputs))
    model.compile(loss="binary_crossentropy", metrics=list(metrics), run_eagerly=True)
    model.evaluate(keras.ops.zeros((4, 3)), keras.ops.zeros((4, 1)), verbose=0)
    return CompiledMetrics(model)


@pytest.mark.tensorflow
def test_keras_own_metrics_say_whether_higher_is_better() -> None:
    km = keras.metrics
    more = ["accuracy", km.AUC(), km.Precision(), km.Recall(), km.F1Score(threshold=0.5), km.R2Score()]
    less = ["mae", "mse", km.RootMeanSquaredError(), "binary_crossentropy", keras.losses.huber, km.FalsePositives()]
    assert list(_compiled(*more).directions.values()) == [True] * len(more)
    assert list(_compiled(*less).directions.values()) == [False] * len(less)
    assert _compiled(gini).directions == {"gini": None}


@pytest.mark.tensorflow
def test_an_area_under_the_roc_curve_is_watched_before_accuracy() -> None:
    areas = [keras.metrics.AUC(name="pr", curve="PR"), keras.metrics.AUC(name="roc")]
    for metrics, name in (["mae", "accuracy", *areas], "roc"), (["mae", "accuracy", areas[0]], "accuracy"):
        compiled = _compiled(*metrics)
        assert choose_watched(compiled.directions, first=preferred(compiled.metrics)).name == name
