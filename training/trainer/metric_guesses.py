"""What guessing means for each compiled metric and for the loss: chooses the formula for `training.telemetry.baseline`.

Read from the compiled model once, when its call is traced. A metric that is not listed has no baseline.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np

from millrace.training.model.call.metrics import CompiledMetrics, is_roc
from millrace.training.model.setup.keras_internals import arguments_of, has_loss_weights
from millrace.training.telemetry import baseline, no_change
from millrace.training.telemetry.baseline import BaselinePlan, Guess, GuessedScore, GuessKind
from millrace.training.telemetry.label_sums import Labels
from millrace.training.telemetry.live_metrics import LOSS
from millrace.training.telemetry.no_change import Repeat, RepeatedScore

_ANY = frozenset({Labels.BINARY, Labels.ONE_HOT, Labels.NUMBERS})
_COLUMNS = frozenset({Labels.BINARY, Labels.ONE_HOT})
_ONE_HOT = frozenset({Labels.ONE_HOT})
_CLASSES = frozenset({Labels.CLASSES})
_NUMBERS = frozenset({Labels.BINARY, Labels.NUMBERS})
Options = Mapping[str, Any]
Component = tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class _Formula:
    """How one of Keras' functions over labels and predictions is guessed."""

    of: Collection[Labels]
    """The labels that it is defined for."""
    kind: GuessKind
    make: Callable[[Options], Guess]
    implies: Labels | None = None
    """What the labels are where this function is compiled; None if it does not show."""
    quantiles: bool = False


def _smoothed(guess: Callable[..., Any]) -> Callable[[Options], Guess]:
    return lambda options: partial(guess, smoothing=float(options.get("label_smoothing", 0.0)))


def _fixed(guess: Guess) -> Callable[[Options], Guess]:
    return lambda _options: guess


def _top_k(options: Options) -> Guess:
    return partial(baseline.top_k_accuracy, k=int(options.get("k", 5)))


def _huber(options: Options) -> Guess:
    return baseline.least_of(baseline.huber(float(options.get("delta", 1.0))))


_RATE, _MEAN, _CONSTANT = GuessKind.BASE_RATE, GuessKind.MEAN, GuessKind.CONSTANT
_FUNCTIONS: Mapping[str, _Formula] = {
    "binary_accuracy": _Formula(_COLUMNS, _RATE, _fixed(baseline.binary_accuracy), Labels.BINARY),
    "categorical_accuracy": _Formula(_ONE_HOT, _RATE, _fixed(baseline.accuracy), Labels.ONE_HOT),
    "sparse_categorical_accuracy": _Formula(_CLASSES, _RATE, _fixed(baseline.accuracy), Labels.CLASSES),
    "top_k_categorical_accuracy": _Formula(_ONE_HOT, _RATE, _top_k, Labels.ONE_HOT),
    "sparse_top_k_categorical_accuracy": _Formula(_CLASSES, _RATE, _top_k, Labels.CLASSES),
    "binary_crossentropy": _Formula(_COLUMNS, _RATE, _smoothed(baseline.binary_crossentropy), Labels.BINARY),
    "categorical_crossentropy": _Formula(_ONE_HOT, _RATE, _smoothed(baseline.crossentropy), Labels.ONE_HOT),
    "sparse_categorical_crossentropy": _Formula(_CLASSES, _RATE, _fixed(baseline.crossentropy), Labels.CLASSES),
    "mean_squared_error": _Formula(_ANY, _MEAN, _fixed(baseline.variance), Labels.NUMBERS),
    "mean_absolute_error": _Formula(
        _NUMBERS, GuessKind.MEDIAN, _fixed(baseline.absolute_deviation), Labels.NUMBERS, quantiles=True
    ),
    "huber": _Formula(_NUMBERS, _CONSTANT, _huber, Labels.NUMBERS, quantiles=True),
    "log_cosh": _Formula(
        _NUMBERS, _CONSTANT, _fixed(baseline.least_of(baseline.log_cosh)), Labels.NUMBERS, quantiles=True
    ),
    "mean_absolute_percentage_error": _Formula(
        _NUMBERS, _CONSTANT, _fixed(baseline.least_of(baseline.absolute_percentage)), Labels.NUMBERS, quantiles=True
    ),
}
_IMPLIED_BY_LOSS = {"binary_focal_crossentropy": Labels.BINARY, "categorical_focal_crossentropy": Labels.ONE_HOT}
_LOSS_CLASSES = {
    "BinaryCrossentropy": "binary_crossentropy",
    "BinaryFocalCrossentropy": "binary_focal_crossentropy",
    "CategoricalCrossentropy": "categorical_crossentropy",
    "CategoricalFocalCrossentropy": "categorical_focal_crossentropy",
    "SparseCategoricalCrossentropy": "sparse_categorical_crossentropy",
    "MeanSquaredError": "mean_squared_error",
    "MeanAbsoluteError": "mean_absolute_error",
    "MeanAbsolutePercentageError": "mean_absolute_percentage_error",
    "Huber": "huber",
    "LogCosh": "log_cosh",
}


_REPEATS: Mapping[str, Repeat] = {
    "binary_accuracy": no_change.mean_of(no_change.same),
    "categorical_accuracy": no_change.ONE_HOT_ACCURACY,
    "sparse_categorical_accuracy": no_change.mean_of(no_change.same),
    "binary_crossentropy": no_change.STAY_RATE_LOG_LOSS,
    "mean_squared_error": no_change.mean_of(no_change.squared),
    "mean_absolute_error": no_change.mean_of(no_change.absolute),
    "log_cosh": no_change.mean_of(baseline.log_cosh),
    "mean_absolute_percentage_error": no_change.mean_of(baseline.absolute_percentage),
}
"""How Keras' functions score the guess that nothing changes."""


def plan_of(model: Any, metrics: CompiledMetrics) -> BaselinePlan:
    """Return what is guessed beside the scores of this model. Trace the model's call before."""
    name, options = _function_of_loss(model)
    labels = _labels_of(name, metrics)
    # The score of each, and whether it takes quantiles.
    scores: list[tuple[GuessedScore, bool]] = []
    formula = _FUNCTIONS.get(name or "")
    if formula is not None and labels in formula.of and not has_loss_weights(model):
        score = GuessedScore(LOSS, formula.make(options), formula.kind, weighted=True, per_row=True)
        scores.append((score, formula.quantiles))
    for shown, at in metrics.shown().items():
        metric = metrics.metrics[at.metric]
        found = None if at.key is not None else _guess_of(metric, at.index, labels)
        if found is not None:
            guess, kind, quantiles = found
            scores.append((GuessedScore(shown, guess, kind, weighted=at.metric in metrics.weighted), quantiles))
    return BaselinePlan(
        labels=labels if scores else Labels.NONE,
        logits=bool(options.get("from_logits")),
        scores=tuple(score for score, _ in scores),
        quantiles=any(takes for _, takes in scores),
        repeats=tuple(_repeats([score for score, _ in scores], _repeat_of(name, options), metrics)),
    )


def _function_of_loss(model: Any) -> tuple[str | None, Options]:
    """Return the name of Keras' function that the compiled loss is, and its options; None for another loss."""
    loss = model.loss
    if isinstance(loss, str):
        try:
            loss = keras.losses.get(loss)
        except ValueError:
            return None, {}  # as "crossentropy", which Keras resolves by the shapes; the metrics tell
    if not type(loss).__module__.startswith("keras.") and not _is_keras_function(loss):
        return None, {}
    if isinstance(loss, keras.losses.Loss):
        # Huber's config lacks its delta.
        options = {**arguments_of(loss), **loss.get_config()}
        return _LOSS_CLASSES.get(type(loss).__name__), options
    return getattr(loss, "__name__", None), {}


def _is_keras_function(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith("keras.")


def _labels_of(loss: str | None, metrics: CompiledMetrics) -> Labels:
    formula = _FUNCTIONS.get(loss or "")
    if formula is not None and formula.implies is not None:
        return formula.implies
    if loss in _IMPLIED_BY_LOSS:
        return _IMPLIED_BY_LOSS[loss]
    for metric in metrics.metrics.values():
        formula = _FUNCTIONS.get(_function_of(metric) or "")
        if formula is not None and formula.implies is not None:
            return formula.implies
        if isinstance(metric, (keras.metrics.AUC, keras.metrics.Precision, keras.metrics.Recall)):
            return Labels.BINARY
    return Labels.NONE


def _function_of(metric: Any) -> str | None:
    """Return the name of Keras' function whose mean the metric is, or None."""
    function = getattr(metric, "_fn", None)
    return getattr(function, "__name__", None) if _is_keras_function(function) else None


def _guess_of(metric: Any, index: Component, labels: Labels) -> tuple[Guess, GuessKind, bool] | None:
    formula = _FUNCTIONS.get(_function_of(metric) or "")
    if formula is not None and labels in formula.of:
        options = {**arguments_of(metric), **metric.get_config()}
        return formula.make(options), formula.kind, formula.quantiles
    if isinstance(metric, keras.metrics.RootMeanSquaredError) and labels in _ANY:
        return baseline.deviation, _MEAN, False
    if isinstance(metric, keras.metrics.R2Score) and labels in _ANY:
        return baseline.constant(0.0), _MEAN, False
    guess = _of_columns(metric, index) if labels in _COLUMNS else None
    return None if guess is None else (guess, GuessKind.GUESSING, False)


def _of_columns(metric: Any, index: Component) -> Guess | None:
    """Return the guess for a metric over columns of 0 and 1."""
    km = keras.metrics
    column = getattr(metric, "class_id", None)
    rate = partial(baseline.positive_rate, column=column)
    guess: Guess | None = None
    if isinstance(metric, km.AUC):
        guess = baseline.constant(0.5) if is_roc(metric) else rate
    elif isinstance(metric, (km.Precision, km.Recall)):
        guess = rate if metric.top_k is None else None
    elif isinstance(metric, km.PrecisionAtRecall):
        guess = rate
    # Guessing at random has the same rate of true and of false positives, whatever that rate is.
    elif isinstance(metric, km.SensitivityAtSpecificity):
        guess = baseline.constant(1 - metric.specificity)
    elif isinstance(metric, km.SpecificityAtSensitivity):
        guess = baseline.constant(1 - metric.sensitivity)
    elif isinstance(metric, km.FBetaScore):
        one, place = metric.threshold is None, None if index is None else index[0]
        guess = partial(baseline.f_score, beta=metric.beta, average=metric.average, one_class=one, column=place)
    return guess


def _repeats(
    scores: Iterable[GuessedScore], of_loss: Repeat | None, metrics: CompiledMetrics
) -> Iterator[RepeatedScore]:
    """Yield how the guess that nothing changes is scored, for those of the scores that have such a guess."""
    shown = metrics.shown()
    for score in scores:
        # The loss alone is divided by rows.
        repeat = of_loss if score.per_row else _repeat_of_metric(metrics.metrics[shown[score.name].metric])
        if repeat is not None:
            yield RepeatedScore(score.name, repeat, score.weighted, score.per_row)


def _repeat_of(function: str | None, options: Options) -> Repeat | None:
    if function == "huber":
        return no_change.mean_of(baseline.huber(float(options.get("delta", 1.0))))
    return None if options.get("label_smoothing") else _REPEATS.get(function or "")


def _repeat_of_metric(metric: Any) -> Repeat | None:
    km = keras.metrics
    if isinstance(metric, km.RootMeanSquaredError):
        return no_change.root_of(no_change.squared)
    if isinstance(metric, km.AUC):
        return no_change.ROC_AUC if is_roc(metric) and not metric.multi_label else None
    if isinstance(metric, (km.Precision, km.Recall)):
        plain = metric.class_id is None and np.size(metric.thresholds) == 1
        return (no_change.PRECISION if isinstance(metric, km.Precision) else no_change.RECALL) if plain else None
    return _repeat_of(_function_of(metric), {**arguments_of(metric), **metric.get_config()})
