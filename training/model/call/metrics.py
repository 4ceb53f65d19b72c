"""The model's compiled metrics as additive states: reset at the start of a call, read at its end, summed by us.

Keras keeps metric states in float32, which stops counting on an endless stream; so a state only ever covers one call,
and the sums over calls are kept outside in float64 (training/telemetry/live_metrics.py). A metric that Keras would
update without sample weights (`metrics=[…]`) is given the presence of rows as its weight, so that absent rows are never
counted.

Owns the wrapping of the metrics' `update_state`; its methods with tensors run while a step is being traced.
"""

import math
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from millrace.training.errors import ModelError, gist, is_users
from millrace.training.model.call.metric_values import Shown, ValueNames
from millrace.training.model.call.replica_sums import summed
from millrace.training.model.setup.keras_internals import (
    as_is,
    metrics_as_given,
    metrics_compiled,
    outputs_of_metrics,
    own_trackers,
)
from millrace.training.model.variables import backing, copies

State = npt.NDArray[np.float64]
_MORE_IS_BETTER = (keras.metrics.TruePositives, keras.metrics.TrueNegatives)
_LESS_IS_BETTER = (keras.metrics.FalsePositives, keras.metrics.FalseNegatives)


class _MeteredStep(threading.local):
    """The state of the step being traced. Each replica is traced in a thread of its own, in turns."""

    def __init__(self) -> None:
        self.present: Any = None
        self.by_output: Mapping[str, Any] = {}
        self.muted = False
        self.skipped = False
        self.given: Any = None


class CompiledMetrics:
    """The metrics that a model was compiled with, and those that it holds as attributes, without the loss."""

    def __init__(self, model: Any) -> None:
        self._step = _MeteredStep()
        compiled, own = _objects(model)
        # Metrics of one name are told apart by a number.
        named: dict[str, Any] = {}
        for metric in [*compiled, *own]:
            name, twin = metric.name, 1
            while name in named:
                twin += 1
                name = f"{metric.name}_{twin}"
            named[name] = metric
        self.metrics = named
        outputs = outputs_of_metrics(model)
        self._output_of = {name: outputs.get(id(metric), "") for name, metric in named.items()}
        self.compiled = frozenset([*self.metrics][: len(compiled)])
        """The names of the metrics in `compile`; the others the model holds as attributes."""
        self.left_out: frozenset[str] = frozenset()
        """Metrics whose values would be wrong, as their states cannot be added up; their values are not shown."""
        self.weighted: set[str] = set()
        """Metrics that the step gives the records' weights; known once it is traced."""
        self.of_batches: set[str] = set()
        """Metrics that the step gives one value a batch, as a mean of losses is; known once it is traced."""
        self._results = tf.function(self._stateless_results, autograph=False)
        self._computing = ""
        self.separate = not scores_by_itself(model)
        """Whether a step can be run without them, as Keras' own step updates compiled metrics after all else."""
        if type(model).compute_metrics is keras.Model.compute_metrics:
            compute_metrics = model.compute_metrics

            @as_is
            def computed(x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
                # A layer's or a step's own metrics could be learnt from; nothing reads what these return but the logs.
                if self.separate and self._step.skipped:
                    return {}
                if not self._step.muted:
                    self._step.given = y_pred
                return compute_metrics(x, y, y_pred, sample_weight=sample_weight)

            model.compute_metrics = computed
        losses = [metric for metric in _flat(model.metrics) if metric not in self.metrics.values()]
        for name, metric in [*self.metrics.items(), *(("", loss) for loss in losses)]:
            metric.update_state = self._weighted(name, metric.update_state)

    @cached_property
    def names(self) -> ValueNames:
        """The names of the values; traces the results."""
        return ValueNames.of(self._arrays([np.zeros(variable.shape) for variable in self.variables]))

    @property
    def directions(self) -> dict[str, bool | None]:
        """Whether higher is better, by the name of the value; None for a metric that does not say."""
        known = {name: _higher_is_better(metric) for name, metric in self.metrics.items()}
        return {name: known[at.metric] for name, at in self.shown().items()}

    def shown(self) -> dict[str, Shown]:
        """Return where each value that is shown comes from, by name."""
        return {name: at for name, at in self.names.shown.items() if at.metric not in self.left_out}

    @property
    def variables(self) -> list[Any]:
        """All states, in order."""
        return [variable for metric in self.metrics.values() for variable in metric.variables]

    def open(self, present: Any, by_output: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Begin the tracing of a step whose rows are present where `present` is 1.

        `by_output` says it for the outputs whose label a row may lack.
        """
        self._step.present, self._step.by_output = present, by_output
        self._step.muted, self._step.skipped, self._step.given = False, False, None

    @property
    def given(self) -> Any:
        """What the model's metrics were given to score in this step; None if its own code scores."""
        return self._step.given

    def mute(self) -> None:
        """Stop counting for the rest of this step, because the scores were counted already."""
        self._step.muted = True

    def skip(self) -> None:
        """Leave the metrics out of this step if they are separate, which makes tracing it about twice as fast."""
        self._step.skipped = True

    def reset(self) -> None:
        """Reset all states at the beginning of a call; runs in the graph, outside of replicas."""
        # By the copies: to read, or to assign, what is reduced on read takes a collective for each variable.
        for variable in self.variables:
            for copy in copies(variable):
                copy.assign(tf.zeros(copy.shape, copy.dtype))

    def read(self) -> list[Any]:
        """Return the states' sums over the replicas; runs in the graph, on a replica."""
        # The identity has the replica's device, which a sum needs; what reads a variable has none.
        values = [tf.identity(tf.convert_to_tensor(variable.value)) for variable in self.variables]
        on_read = tf.VariableSynchronization.ON_READ
        portions = [
            at for at, one in enumerate(self.variables) if getattr(backing(one), "synchronization", None) == on_read
        ]
        sums = summed(tf.distribute.get_replica_context(), [values[at] for at in portions])
        for at, total in zip(portions, sums, strict=True):
            values[at] = total
        return values

    def results(self, states: Sequence[State]) -> dict[str, float]:
        """Return the metrics' values for these sums of states; none where there are no sums."""
        if not states:
            return {}
        values = self.names.values(self._arrays(states))
        return {name: values[name] for name in self.shown()}

    def results_or_nan(self, states: Sequence[State]) -> dict[str, float]:
        """Return the metrics' values for these sums of states; where there are no sums, NaN for each metric."""
        return self.results(states) if states else dict.fromkeys(self.shown(), math.nan)

    def _arrays(self, states: Sequence[State]) -> dict[str, Any]:
        """Return what each metric makes of these states, as NumPy arrays; raise ModelError where one cannot."""
        tensors = [tf.constant(state, tf.as_dtype(v.dtype)) for state, v in zip(states, self.variables, strict=True)]
        try:
            results: dict[str, Any] = tf.nest.map_structure(np.asarray, self._results(tensors))
        except Exception as error:
            raise ModelError(
                f"model.build: the metric {self._computing} has a result() that cannot be traced: {gist(error)}; "
                "compute it with keras.ops"
            ) from error
        return results

    def _stateless_results(self, tensors: list[Any]) -> dict[str, Any]:
        """Compute all results in one graph: one by one they are dozens of small operations on the trainer's thread."""
        left, results = list(tensors), {}
        for name, metric in self.metrics.items():
            self._computing = name
            own, left = left[: len(metric.variables)], left[len(metric.variables) :]
            results[name] = metric.stateless_result(own)
        return results

    def _weighted(self, name: str, update_state: Callable[..., Any]) -> Callable[..., Any]:
        def weighted(*args: Any, **kwargs: Any) -> Any:
            if self._step.muted:
                return None
            # What a Mean is given need not be one value a row. A third argument is the weight.
            compares = len(args) + len(kwargs.keys() & {"y_true", "y_pred"}) >= 2
            value = args[0] if args else kwargs.get("values")
            plain = value is not None and not isinstance(value, Mapping)
            if not compares and plain and tf.convert_to_tensor(value).shape.rank == 0:
                self.of_batches.add(name)
            unweighted = kwargs.get("sample_weight") is None and len(args) < 3
            if compares and not unweighted:
                self.weighted.add(name)
            elif compares and self._step.present is not None:
                output = self._output_of.get(name, "")
                kwargs["sample_weight"] = self._step.by_output.get(output, self._step.present)
            return update_state(*args, **kwargs)

        return weighted


@contextmanager
def weights_given(model: Any) -> Iterator[None]:
    """Give the user's metrics weights while Keras builds, which gives None, as they are always given while learning."""
    given = metrics_as_given(model)
    replaced = {metric: metric.update_state for metric in given if isinstance(metric, keras.metrics.Metric)}
    for metric, update_state in replaced.items():
        metric.update_state = partial(_with_weights, update_state)
    try:
        yield
    finally:
        for metric, update_state in replaced.items():
            metric.update_state = update_state


def _with_weights(update_state: Callable[..., Any], y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
    if sample_weight is None:
        sample_weight = tf.ones(tf.shape(tf.nest.flatten(y_pred)[0])[:1])
    return update_state(y_true, y_pred, sample_weight=sample_weight)


def scores_by_itself(model: Any) -> bool:
    """Return whether the model's own code or layers score, and not Keras after all else."""
    own = type(model)
    as_keras = own.train_step is keras.Model.train_step and own.compute_metrics is keras.Model.compute_metrics
    return bool(_objects(model)[1]) or not as_keras


def preferred(metrics: Mapping[str, Any]) -> list[str]:
    """Return the names of the metrics to watch where the settings name none, the best first.

    The area under the ROC curve comes before accuracy: where a class is rare, saying the other one is always accurate.
    """
    aucs = [name for name, metric in metrics.items() if isinstance(metric, keras.metrics.AUC) and is_roc(metric)]
    return [*aucs, "accuracy", "acc"]


def is_roc(metric: Any) -> bool:
    """Return whether this AUC is that of the ROC curve."""
    return str(metric.get_config()["curve"]).upper() == "ROC"


def metric_refusal(metric: Any, error: BaseException) -> str:
    """Return why this metric cannot be used, and what to do."""
    frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    lines = [f" ({file.name}, line {line})" for file, line in frames if is_users(str(file))]
    refused = f"the metric {metric.name} cannot be traced: {gist(error)}{lines[-1] if lines else ''}"
    if isinstance(metric, keras.metrics.FBetaScore):
        return f"{refused} Give the label a second axis in preprocess: label[:, None]"
    if isinstance(error, (AttributeError, TypeError, NotImplementedError)):
        return f"{refused}; compute it with keras.ops, as a graph has no values for NumPy or Python to work on"
    return refused


def metric_at_fault(error: BaseException) -> Any | None:
    """Return the metric in whose code this error was raised; None where it was raised elsewhere."""
    metric, step = None, error.__traceback__
    while step is not None:
        owner = step.tb_frame.f_locals.get("self")
        # Containers of metrics are metrics, too.
        if isinstance(owner, keras.metrics.Metric) and not hasattr(owner, "metrics"):
            metric = owner
        step = step.tb_next
    return metric


def _objects(model: Any) -> tuple[list[Any], list[Any]]:
    """Return the compiled metrics, and the model's own metric attributes."""
    compiled = metrics_compiled(model)
    known = {id(metric) for metric in [*compiled, *own_trackers(model)]}
    return compiled, [metric for metric in _flat(model.metrics) if id(metric) not in known]


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
