"""All that is used of the private parts of Keras and TensorFlow, because they have no public way to do the same.

Nothing else reaches into them: `tests/training/model/setup/test_keras_internals.py` fails with the name that is gone
when a new version changes what this module relies on. Owns nothing.

AutoGraph, TensorFlow's rewriting of Python control flow over tensors, is applied to the user's code, never to ours
(`as_is`, `converted`): rewriting our own functions would take more than half of the CPU time of tracing a call. They
write their loops and branches with `tf.while_loop` and `tf.cond` instead. A user's `train_step` may use `if` and
`for` on tensors, and so may whatever it calls.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import keras
import tensorflow as tf
from keras.src.models.functional import Functional
from keras.src.saving import saving_lib


def layers_of(model: Any) -> list[Any]:
    """Return the model and its layers, those within layers too; Keras has no public recursive walk."""
    return [*model._flatten_layers()]


def build(model: Any, x: Any, y: Any, w: Any) -> None:
    """Create the variables for such a batch. Keras builds by fitting in public, and that would learn."""
    model._symbolic_build(data_batch=(x, y, w))


def is_plain(model: Any) -> bool:
    """Return whether a model is of Keras' own classes, and states its inputs."""
    return type(model) is Functional or (type(model) is keras.Sequential and model.built)


def inputs_of(model: Any) -> Any:
    """Return the inputs of such a model in their structure, as symbolic tensors."""
    return model._inputs_struct if type(model) is Functional else model.inputs[0]


def compiled_with(model: Any) -> Mapping[str, Any]:
    """Return what `compile` was given; in public Keras gives it serialized."""
    return model._compile_config.config  # type: ignore[no-any-return]


def put_below(variable: Any, name: str) -> None:
    """Have the path of a variable begin with a name, before an optimizer names its own after it."""
    variable._path = f"{name}/{variable.path}"


def forget_metrics(model: Any) -> None:
    """Leave out the metrics that a model was compiled with; to compile it again would keep them."""
    model._compile_metrics = None


def last_operation(model: Any) -> Any:
    """Return what makes the model's first output."""
    return model.outputs[0]._keras_history.operation


def has_loss(model: Any) -> bool:
    """Return whether the model was compiled with a loss, which Keras does not tell otherwise."""
    return model._compile_loss is not None


def has_loss_weights(model: Any) -> bool:
    """Return whether the model was compiled with weights of its losses; they scale the loss that Keras reports."""
    return getattr(model._compile_loss, "_user_loss_weights", None) is not None


def weigh_added_losses(model: Any, weighed: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> None:
    """Wrap what takes the sum of a loss that a layer has added; there is no public place for it."""
    model._aggregate_additional_loss = weighed(model._aggregate_additional_loss)


def added_losses(model: Any) -> Iterator[Any]:
    """Yield each loss that a layer has added, as the layer gave it."""
    for layer in layers_of(model):
        yield from layer._losses


def output_structure(model: Any) -> Any:
    """Return the outputs in their structure; None for a model of the user's own class, which has none beforehand."""
    return getattr(model, "_outputs_struct", None)


def outputs_of_metrics(model: Any) -> dict[int, str]:
    """Return the name of the output that each compiled metric is about, by the metric's id; nothing for one output."""
    compiled = model._compile_metrics
    lists = (
        [] if compiled is None or not compiled.built else [*compiled._flat_metrics, *compiled._flat_weighted_metrics]
    )
    return {id(metric): one.output_name for one in lists if one and one.output_name for metric in one.metrics}


def metrics_as_given(model: Any) -> list[Any]:
    """Return what `compile` was given as metrics; it has no public list before they are built."""
    compiled = model._compile_metrics
    return [] if compiled is None else tf.nest.flatten(compiled._user_metrics)


def metrics_compiled(model: Any) -> list[Any]:
    """Return the metrics that Keras has built of them."""
    return [] if model._compile_metrics is None else list(model._compile_metrics.metrics)


def own_trackers(model: Any) -> list[Any]:
    """Return the metrics among the model's that Keras keeps for itself, and those of its loss."""
    losses = [] if model._compile_loss is None else model._compile_loss.metrics
    return [model._loss_tracker, model._compile_metrics, *losses]


def save_variables(model: Any, store: Any) -> None:
    """Give a store of Keras' the variables of a model, by the walk that makes the names in Keras' files."""
    saving_lib._save_state(model, weights_store=store, assets_store=None, inner_path="", visited_saveables=set())


def rate_of(optimizer: Any) -> Any:
    """Return a variable or a schedule: Keras gives the rate in public, never the schedule."""
    return optimizer._learning_rate


def trainable_variables_of(optimizer: Any) -> Sequence[Any]:
    """Return the variables for which the optimizer was built, as its own `apply` finds them."""
    return optimizer._trainable_variables  # type: ignore[no-any-return]


def averages(optimizer: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each variable with its moving average, if it has one."""
    pairs = zip(optimizer._trainable_variables, optimizer._model_variables_moving_average, strict=True)
    return ((weight, average) for weight, average in pairs if average is not None)


def accumulators(optimizer: Any, variables: Sequence[Any]) -> list[Any]:
    """Return the accumulated gradient of each variable."""
    return [optimizer._accumulated_gradients[optimizer._get_variable_index(variable)] for variable in variables]


def steps_made(optimizer: Any) -> Any:
    """Return the number of steps, those that only accumulate included."""
    return tf.convert_to_tensor(optimizer._iterations.value)


def take_sums(optimizer: Any) -> None:
    """Have `apply` take its gradients as the sums over the replicas; Keras has no option for it."""
    optimizer._all_reduce_sum_gradients = list


def read_once(optimizer: Any) -> None:
    """Have an update read the rate and the steps made once, and not for each variable; the bits are the same.

    Adam's corrections are computed of these alone, so TensorFlow computes them once: a small model learns for three
    quarters of the CPU. Other optimizers compute less of them, and some of the user's own ask more of what they read.
    """
    if type(optimizer) not in (keras.optimizers.Adam, keras.optimizers.AdamW):
        return
    update = optimizer._distributed_tf_update_step

    def reading_once(strategy: Any, gradients: Any, rate: Any) -> None:
        if strategy.num_replicas_in_sync > 1:  # each device reads its own copy
            update(strategy, gradients, rate)
            return
        steps, attributes = optimizer._iterations, vars(optimizer)  # Keras tracks what is set as an attribute
        attributes["_iterations"] = tf.convert_to_tensor(steps.value)
        try:
            update(strategy, gradients, tf.convert_to_tensor(rate))
        finally:
            attributes["_iterations"] = steps

    optimizer._distributed_tf_update_step = reading_once


def replace_apply(optimizer: Any, apply: Callable[[Sequence[Any], Sequence[Any]], None]) -> None:
    """Replace what decides, on each replica, whether a step updates or accumulates."""
    optimizer._backend_apply_gradients = apply


def update(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Take Keras' own three steps of an update."""
    gradients = optimizer._clip_gradients(gradients)
    optimizer._apply_weight_decay(variables)
    optimizer._backend_update_step(gradients, variables, optimizer.learning_rate)


def arguments_of(wrapper: Any) -> Mapping[str, Any]:
    """Return the arguments with which a loss or a metric calls its function; none if it is another kind."""
    return getattr(wrapper, "_fn_kwargs", {})


def bound_port(server: Any) -> int:
    """Return the port of a server of tf.data, which is known nowhere else."""
    return int(server._address.rpartition(":")[2])


Function = TypeVar("Function", bound=Callable[..., Any])
# Internal, because the public `do_not_convert` would turn AutoGraph off for the user's code that ours calls, too.
_convert = tf.__internal__.autograph.tf_convert
_UNDECIDED = tf.__internal__.autograph.control_status_ctx()
"""The state outside of any conversion."""


def as_is(function: Function) -> Function:
    """Decorate a function of ours that runs while a step is traced: it is not rewritten."""
    kept: Function = _convert(function, _UNDECIDED, convert_by_default=False)
    return kept


def converted(function: Function) -> Function:
    """Return a function of the user's as AutoGraph rewrites it; one of Keras' is not rewritten."""
    rewritten: Function = _convert(function, _UNDECIDED)
    return rewritten
