"""What we rely on inside Keras and TensorFlow is still there: a new version that changes it fails here."""

import itertools
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.metrics.reduction_metrics import MeanMetricWrapper
from keras.src.models import Functional
from keras.src.ops.node import Node
from keras.src.saving import saving_lib
from keras.src.trainers.compile_utils import CompileLoss, CompileMetrics

from millrace.training.model.setup import keras_internals
from tests.private_parts import gone, private_names

USED_OF_KERAS = {
    keras.Model: (
        "_flatten_layers",
        "_losses",
        "_symbolic_build",
        "_compile_config",
        "_compile_loss",
        "_compile_metrics",
        "_loss_tracker",
        "_aggregate_additional_loss",
    ),
    keras.optimizers.Optimizer: (
        "_learning_rate",
        "_trainable_variables",
        "_model_variables_moving_average",
        "_accumulated_gradients",
        "_get_variable_index",
        "_iterations",
        "_clip_gradients",
        "_apply_weight_decay",
        "_backend_update_step",
        "_backend_apply_gradients",
    ),
    TFOptimizer: ("_all_reduce_sum_gradients", "_distributed_tf_update_step"),
    CompileLoss: ("_user_loss_weights",),
    CompileMetrics: ("_user_metrics", "_flat_metrics", "_flat_weighted_metrics"),
    Functional: ("_inputs_struct", "_outputs_struct"),
    keras.losses.BinaryCrossentropy: ("_fn_kwargs",),
    MeanMetricWrapper: ("_fn_kwargs",),
    keras.Variable: ("_path",),
    Node: ("_keras_history",),
}
"""Of each class the private parts that are used of it; it is a node that gives a tensor its history."""
USED_OF_TENSORFLOW = {tf.data.experimental.service.WorkerServer: ("_address",)}


def test_what_is_used_inside_keras_is_there_in_this_version() -> None:
    assert gone("keras", USED_OF_KERAS, by=keras_internals) == []
    assert hasattr(saving_lib, "_save_state"), "this keras has no saving_lib._save_state any more"


def test_what_is_used_inside_tensorflow_is_there_in_this_version() -> None:
    assert gone("tensorflow", USED_OF_TENSORFLOW, by=keras_internals) == []


def test_all_that_is_used_inside_keras_and_tensorflow_is_looked_for() -> None:
    listed = {*itertools.chain(*USED_OF_KERAS.values(), *USED_OF_TENSORFLOW.values()), "_save_state"}
    assert private_names(keras_internals) == listed


def test_a_private_part_that_is_gone_is_named_with_library_and_version() -> None:
    (sentence,) = gone("keras", {keras.Model: ("_flatten_layers", "_gone")}, by=keras_internals)
    assert sentence == (f"keras {keras.__version__} has no Model._gone any more, which {keras_internals.__name__} uses")


@pytest.mark.parametrize(("address", "port"), [("localhost:5050", 5050), ("[::1]:80", 80)])
def test_the_port_of_a_data_server_is_the_last_part_of_its_address(address: str, port: int) -> None:
    assert keras_internals.bound_port(SimpleNamespace(_address=address)) == port


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    **{name: partial(getattr(keras.optimizers, name), 0.01) for name in ("Adam", "AdamW", "SGD", "Nadam", "Muon")},
    "amsgrad": lambda: keras.optimizers.Adam(0.01, amsgrad=True, clipnorm=0.1),
    "schedule": lambda: keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 5)),
}


def updated(make: Callable[[], Any], *, once: bool) -> tuple[list[Any], Any]:
    """Return what six updates make of two matrices and a vector, slots included, and the graph of an update."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        random = np.random.default_rng(1)
        values = [random.normal(size=shape).astype(np.float32) for shape in ((4, 3), (3, 2), (2,))]
        weights = [keras.Variable(value, name=f"weight_{at}") for at, value in enumerate(values)]
        optimizer = make()
        optimizer.build(weights)
        keras_internals.take_sums(optimizer)
        if once:
            keras_internals.read_once(optimizer)

        def step(*gradients: Any) -> None:
            strategy.run(lambda *given: optimizer.apply(list(given), weights), args=gradients)

        function = tf.function(step, autograph=False)
        for number in range(6):
            draws = np.random.default_rng(number)
            function(*[tf.constant(draws.normal(size=one.shape), tf.float32) for one in weights])
        graph = function.get_concrete_function(*[tf.TensorSpec(one.shape) for one in weights]).graph
    assert isinstance(optimizer.iterations, keras.Variable)
    assert int(np.asarray(optimizer.iterations)) == 6
    return [np.asarray(one) for one in (*weights, *optimizer.variables)], graph


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_is_read_once_gives_the_bits_of_keras(name: str) -> None:
    (mine, _), (theirs, _) = (updated(OPTIMIZERS[name], once=once) for once in (True, False))
    assert all(np.array_equal(one, other) for one, other in zip(mine, theirs, strict=True))


def test_an_update_reads_rate_and_steps_once_for_all_variables() -> None:
    def reads(graph: Any) -> int:
        return sum(operation.type == "ReadVariableOp" for operation in graph.get_operations())

    (_, plain), (_, once) = (updated(OPTIMIZERS["Adam"], once=once) for once in (False, True))
    assert reads(plain) - reads(once) == 2 * (3 - 1), "rate and steps, of three variables"


def test_an_optimizer_of_the_users_own_reads_as_it_likes() -> None:
    class Own(keras.optimizers.Adam):
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            assert isinstance(self.iterations, keras.Variable)
            super().update_step(gradient, variable, learning_rate)

    updated(partial(Own, 0.01), once=True)
