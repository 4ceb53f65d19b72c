"""Converts by AutoGraph, before the first fork, what each start of a trainer would convert again.

Tracing a call converts every function of ours that the graph runs: over half of what a start computes. AutoGraph
keeps what it has converted by the function's code, and so does a fork. No operation is run.
"""

from collections.abc import Callable
from typing import Any

from tensorflow.python.autograph.core import converter
from tensorflow.python.autograph.impl import api

from pipelines import dataset
from training.model import (
    added_losses,
    compiled_call,
    finite_guard,
    finite_look,
    gradient_projection,
    metrics,
    optimizer_steps,
    variables,
    witness,
)

Function = Callable[..., Any]
_Call = compiled_call.TrainingCall
_Guard = finite_guard.FiniteGuard
_Metrics = metrics.CompiledMetrics
ROOTS: tuple[Function, ...] = (
    _Call._call,
    _Call._record,
    _Metrics._stateless_results,
    finite_look.FiniteLook._sums_are_finite,
)
"""What is handed to `tf.function`."""
CALLED: tuple[Function, ...] = (
    _Call._learn_batch,
    _Call._first_step,
    _Call._recorded_step,
    _Call._open,
    _Call._score,
    _Call._loss,
    compiled_call.as_the_model_takes_it,
    compiled_call._with_ragged,
    _Metrics.reset,
    _Metrics.open,
    _Metrics.mute,
    _Metrics.read,
    _Guard.open,
    _Guard.verdict,
    _Guard.loss,
    _Guard.updates,
    optimizer_steps.OptimizerSteps.run,
    added_losses.AddedLosses.open,
    witness.Witness.add,
    witness._mix,
    variables.optimizers_of,
    variables.model_variables,
    variables.automatic_names,
    variables._snake,
    variables.by_structure,
    variables._renumbered,
    variables._free,
    gradient_projection.projected,
    dataset.replica_rows,
)
"""What these call."""


def convert() -> None:
    """Convert all of them."""
    for functions, is_root in ((ROOTS, True), (CALLED, False)):
        options = converter.ConversionOptions(recursive=True, user_requested=is_root, optional_features=None)
        for function in functions:
            api._TRANSPILER.transform_function(function, converter.ProgramContext(options=options))
