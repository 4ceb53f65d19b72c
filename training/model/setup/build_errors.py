"""Why a model cannot learn a stream, in words.

Layers that a stream cannot feed, errors that TensorFlow words in its own terms, options of `model.compile` that have
no effect (docs/model.md lists them), and inputs that do not fit the schema, both shown side by side.

Pure inspection; runs while the model is built.
"""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from millrace.pipelines.schema import RAGGED
from millrace.pipelines.stream.blocks import Rows
from millrace.training.errors import ModelError
from millrace.training.model.setup.keras_internals import layers_of

_LOOKUPS = (keras.layers.TextVectorization, keras.layers.StringLookup, keras.layers.IntegerLookup)
_RECURRENT = (keras.layers.RNN, keras.layers.Bidirectional)


def unadapted(model: Any) -> str | None:
    """Return which lookup waits to be adapted to data, and the way out; None where none does."""
    for layer in layers_of(model):
        # Its table tells: a layer that was adapted in build_model has no vocabulary in its config.
        table = getattr(getattr(layer, "_lookup_layer", layer), "lookup_table", None)
        if isinstance(layer, _LOOKUPS) and type(getattr(table, "_initializer", None)).__name__ == "NullInitializer":
            return (
                f"layer {layer.name} ({type(layer).__name__}) has no vocabulary, and a stream has no first pass to "
                "adapt it: give it vocabulary=[…] or the path of a file, or use Hashing"
            )
    return None


def without_mean(model: Any) -> Iterator[str]:
    """Yield a sentence for each layer of the built model that changes nothing, as it was not adapted to data."""
    for layer in layers_of(model):
        if not isinstance(layer, keras.layers.Normalization) or not layer.built or layer.input_mean is not None:
            continue
        if not np.any(np.asarray(layer.adapt_mean)) and np.all(np.asarray(layer.adapt_variance) == 1):
            yield (
                f"layer {layer.name} (Normalization) has no mean and variance, so it changes nothing, and a stream has "
                "no first pass to adapt it: give it mean=… and variance=…, adapt it or load its weights in "
                "build_model, or use LayerNormalization"
            )


def explained(model: Any, error: BaseException) -> str | None:
    """Return what is wrong with a layer of the model, and the way out; None where the error says it all."""
    if isinstance(error, tf.errors.FailedPreconditionError):
        return unadapted(model)
    recurrent = [layer for layer in layers_of(model) if isinstance(layer, _RECURRENT)]
    if "ragged" in str(error).lower() and recurrent:
        return (
            f"layer {recurrent[0].name} ({type(recurrent[0]).__name__}) takes no ragged input: give the feature pad in "
            "the place of ragged: true, and mask the padding (mask_zero, or a Masking layer)"
        )
    return None


def without_effect(model: Any) -> Iterator[str]:
    """Yield a sentence for each option of the compiled model that has no effect here."""
    if model.run_eagerly:
        yield "run_eagerly has no effect: every step is traced; to debug one, call model.train_step in a test"
    if model.steps_per_execution not in {None, 1}:
        yield (
            f"steps_per_execution={model.steps_per_execution} has no effect: training.batches_per_call says how many "
            "steps a call runs"
        )
    # On a GPU Keras turns it on by itself.
    if model.jit_compile and not tf.config.list_physical_devices("GPU"):
        yield (
            "jit_compile has no effect: a call runs a varying number of batches, and XLA would compile each of them; "
            "give jit_compile=True to a tf.function inside the model if it pays"
        )


def check_inputs(model: Any, rows: Rows) -> None:
    """Refuse a functional model whose inputs differ from the features (after `preprocess`) in name, shape or kind."""
    inputs = getattr(model, "inputs", None)
    if not inputs:
        return
    wanted = {tensor.name: _Input(tuple(tensor.shape[1:]), str(tensor.dtype)) for tensor in inputs}
    offered = {
        name: _Input(tuple(column.shape[2:]), column.dtype.name)
        for name, column in rows.features.items()
        if not name.endswith(RAGGED)
    }
    if len(wanted) == len(offered) == 1 and not isinstance(getattr(model, "_inputs_struct", None), dict):
        offered = dict(zip(wanted, offered.values(), strict=True))
    unfit = []
    for name in sorted(wanted.keys() | offered.keys()):
        takes, given = wanted.get(name), offered.get(name)
        if takes is None or given is None or not takes.takes(given):
            unfit.append(f"{name}: the model wants {takes or 'nothing'}, the schema has {given or 'nothing'}")
    if unfit:
        raise ModelError(f"the model's inputs do not fit records.features: {'; '.join(unfit)}")


class _Input:
    """The shape of one row and its dtype."""

    def __init__(self, shape: tuple[int | None, ...], dtype: str) -> None:
        self.shape, self.dtype = shape, dtype

    def takes(self, other: "_Input") -> bool:
        """Return whether this input takes such a column. Keras casts numbers, never text."""
        shapes = len(self.shape) == len(other.shape) or (self.shape, other.shape) in {((1,), ()), ((), (1,))}
        sizes = all(a is None or a == b for a, b in zip(self.shape, other.shape, strict=False))
        return shapes and sizes and (self.dtype == "string") == (other.dtype == "string")

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape) or ''}"
