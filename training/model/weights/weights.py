"""A checkpoint's weights in the user's own model, as plain Keras has it: no strategy, no call, no training.

May run beside a trainer, in a process of its own. The variables are found by structure, as in every
restore, so a checkpoint of another model is refused with the names and shapes that differ.
"""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from millrace.consumers.errors import ConfigError
from millrace.pipelines.schema import Schema
from millrace.pipelines.stream.dataset import NO_LABEL, flat_preprocess
from millrace.training.checkpoints.parts import PartState
from millrace.training.errors import ModelError
from millrace.training.model.call.compiled_call import as_the_model_takes_it
from millrace.training.model.probes import Probe, ProbeRows, ReadSample
from millrace.training.model.setup.model_file import LoadedModelFile
from millrace.training.model.variables import VariablesPart, model_variables

PART = "model"
SUFFIX = ".weights.h5"
_ROWS = 2


def model_with_weights(
    functions: LoadedModelFile, schema: Schema, state: PartState, samples: tuple[ReadSample, ...] = ()
) -> Any:
    """Build the model and set its variables. OtherModelError where they are not the checkpoint's.

    A model that has to see rows to be built gets those of the samples, or made-up ones.
    """
    model = functions.build()
    if not isinstance(model, keras.Model):
        raise ModelError(f"model.build: it returned a {type(model).__name__}, not a keras.Model")
    if not model.built:
        ProbeRows(schema, _ROWS, samples).require(partial(_build, model, functions))
    VariablesPart(PART, model_variables(model)).restore(state)
    return model


def checked_target(path: Path) -> Path:
    """Return the path if a file of weights may be written there; ConfigError otherwise."""
    if not path.name.endswith(SUFFIX):
        raise ConfigError(f"{path} is no name for weights: Keras wants one that ends with {SUFFIX}")
    if path.exists():
        raise ConfigError(f"{path} is there already; remove it, or choose another name")
    if not path.parent.is_dir():
        raise ConfigError(f"there is no folder {path.parent}; make it first")
    return path


def write_weights(model: Any, path: Path) -> int:
    """Write `.weights.h5` under its name in one step, and return its size in bytes."""
    checked_target(path)
    try:
        # Keras writes into the final path, where a kill would leave half a file.
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".millrace-") as folder:
            whole = Path(folder) / path.name
            model.save_weights(whole)
            whole.rename(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}; choose another place") from error
    return path.stat().st_size


def _build(model: Any, functions: LoadedModelFile, probe: Probe) -> None:
    """Call the model on some rows, so that it learns its shapes."""
    features, _, _ = flat_preprocess(
        functions.preprocess,
        {name: tf.constant(column) for name, column in probe.features.items()},
        {name: tf.constant(column) for name, column in probe.labels.items()},
        tf.ones(_ROWS),
    )
    x, _, _ = as_the_model_takes_it(model, features, NO_LABEL, None)
    model(x, training=False)
