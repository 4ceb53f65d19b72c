"""What we rely on inside Keras and TensorFlow is still there: a new version that changes it fails here."""

import itertools
from types import SimpleNamespace

import keras
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
    TFOptimizer: ("_all_reduce_sum_gradients",),
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
