"""The model's compiled metrics as additive states: reset at the start of a call, read at its end, summed by us.

Keras keeps metric states in float32, which stops counting on an endless stream; so a state only ever covers one call,
and the sums over calls are kept outside in float64 (training/telemetry/live_metrics.py). A metric that Keras would
update without sample weights (`metrics=[…]`) is given the presence of rows as its weight, so that absent rows are never
counted.

Owns the wrapping of the metrics' `update_state`; its methods with tensors run while a step is being traced.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

State = npt.NDArray[np.float64]
_MORE_IS_BETTER = (keras.metrics.TruePositives, keras.metrics.TrueNegatives)
_LESS_IS_BETTER = (keras.metrics.FalsePositives, keras.metrics.FalseNegatives)


class _MeteredStep(threading.local):
    """The state of the step being traced. Each replica is traced in a thread of its own, in turns."""

    def __init__(self) -> None:
        self.present: Any = None
        self.muted = False


class CompiledMetrics:
    """The metrics that a model was compiled with, and those that it holds as attributes, without the loss."""

    def __init__(self, model: Any) -> None:
        self._step = _MeteredStep()
        compiled, own = _objects(model)
        self.metrics = _named([*compiled, *own])
        self._results = tf.function(self._stateless_results)
        losses = [metric for metric in _flat(model.metrics) if metric not in self.metrics.values()]
        for metric in [*self.metrics.values(), *losses]:
            metric.update_state = self._weighted(metric.update_state)

    @property
    def directions(self) -> dict[str, bool | None]:
        """Whether higher is better, by the metric's name; None for a metric that does not say."""
        return {name: _higher_is_better(metric) for name, metric in self.metrics.items()}

    @property
    def variables(self) -> list[Any]:
        """All states, in order."""
        return [variable for metric in self.metrics.values() for variable in metric.variables]

    def open(self, present: Any) -> None:
        """Begin the tracing of a step whose rows are present where `present` is 1."""
        self._step.present, self._step.muted = present, False

    def mute(self) -> None:
        """Stop counting for the rest of this step, because the scores were counted already."""
        self._step.muted = True

    def reset(self) -> None:
        """Reset all states at the beginning of a call; runs in the graph, outside of replicas."""
        for variable in self.variables:
            variable.assign(tf.zeros_like(variable.value))

    def read(self) -> list[Any]:
        """Return the states' sums over the replicas; runs in the graph, outside of replicas."""
        return [tf.convert_to_tensor(variable.value) for variable in self.variables]

    def results(self, states: Sequence[State]) -> dict[str, float]:
        """Return the metrics' values for these sums of states; scalars only, and none where there are no sums."""
        if not states:
            return {}
        tensors = [tf.constant(state, tf.as_dtype(v.dtype)) for state, v in zip(states, self.variables, strict=True)]
        values = {name: np.asarray(value) for name, value in self._results(tensors).items()}
        return {name: float(value) for name, value in values.items() if value.ndim == 0}

    def _stateless_results(self, tensors: list[Any]) -> dict[str, Any]:
        """Compute all results in one graph: one by one they are dozens of small operations on the trainer's thread."""
        left, results = list(tensors), {}
        for name, metric in self.metrics.items():
            own, left = left[: len(metric.variables)], left[len(metric.variables) :]
            results[name] = metric.stateless_result(own)
        return results

    def _weighted(self, update_state: Callable[..., Any]) -> Callable[..., Any]:
        def weighted(*args: Any, **kwargs: Any) -> Any:
            if self._step.muted:
                return None
            # What a Mean is given need not be one value a row. A third argument is the weight already.
            compares = len(args) + len(kwargs.keys() & {"y_true", "y_pred"}) >= 2
            if self._step.present is not None and compares and kwargs.get("sample_weight") is None and len(args) < 3:
                kwargs["sample_weight"] = self._step.present
            return update_state(*args, **kwargs)

        return weighted


def preferred(metrics: Mapping[str, Any]) -> list[str]:
    """Return the names of the metrics to watch where the settings name none, the best first.

    The area under the ROC curve comes before accuracy: where a class is rare, saying the other one is always accurate.
    """
    aucs = [name for name, metric in metrics.items() if isinstance(metric, keras.metrics.AUC) and _is_roc(metric)]
    return [*aucs, "accuracy", "acc"]


def _is_roc(metric: Any) -> bool:
    return str(metric.get_config()["curve"]).upper() == "ROC"


def _objects(model: Any) -> tuple[list[Any], list[Any]]:
    """Return the compiled metrics, and the model's own metric attributes."""
    compiled = model._compile_metrics.metrics if model._compile_metrics is not None else []  # noqa: SLF001 - no public list
    known = {id(metric) for metric in compiled}
    trackers = {id(model._loss_tracker), id(model._compile_metrics)}  # noqa: SLF001 - to tell them from the user's
    if model._compile_loss is not None:  # noqa: SLF001 - as above
        trackers |= {id(metric) for metric in model._compile_loss.metrics}  # noqa: SLF001 - as above
    own = [metric for metric in _flat(model.metrics) if id(metric) not in known | trackers]
    return list(compiled), own


def _flat(metrics: Sequence[Any]) -> list[Any]:
    """Return the metrics in the order of the list, with containers replaced by what they contain."""
    flat: list[Any] = []
    for metric in metrics:
        inner = getattr(metric, "metrics", None)
        flat.extend(_flat(inner) if inner is not None and not isinstance(metric, keras.Model) else [metric])
    return flat


def _higher_is_better(metric: Any) -> bool | None:
    """Return whether a higher value of the metric is better; None where nothing says so."""
    if isinstance(metric, _MORE_IS_BETTER):
        return True
    if isinstance(metric, _LESS_IS_BETTER):
        return False
    # Keras has no public attribute for it. A function of the user's own is wrapped in a metric that has none at all.
    return {"up": True, "down": False}.get(getattr(metric, "_direction", None) or "")


def _named(metrics: Sequence[Any]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for metric in metrics:
        name, twin = metric.name, 1
        while name in named:
            twin += 1
            name = f"{metric.name}_{twin}"
        named[name] = metric
    return named
