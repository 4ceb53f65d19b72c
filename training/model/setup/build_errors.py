"""Why a model cannot learn a stream, in words.

Layers that a stream cannot feed, errors that TensorFlow words in its own terms, options of `model.compile` that have
no effect (docs/model.md lists them), and inputs that do not fit the schema, both shown side by side.

Pure inspection; runs while the model is built.
"""

from collections.abc import Iterator, Mapping
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
    layers = layers_of(model)
    return next((_no_vocabulary(layer) for layer in layers if _lacks_vocabulary(layer)), None)


def without_mean(model: Any) -> Iterator[str]:
    """Yield a sentence for each layer of the built model that changes nothing, as it was not adapted to data."""
    layers = layers_of(model)
    for name in [layer.name for layer in layers if _lacks_mean(layer)]:
        yield (
            f"layer {name} (Normalization) has no mean and variance, so it changes nothing, and a stream has no first "
            "pass to adapt it: give it mean=… and variance=…, adapt it or load its weights in build_model, or use "
            "LayerNormalization"
        )


def explained(model: Any, error: BaseException) -> str | None:
    """Return what is wrong with a layer of the model, and the way out; None where the error says it all."""
    layers = layers_of(model)
    if isinstance(error, tf.errors.FailedPreconditionError):
        return unadapted(model)
    if "ragged" in str(error).lower():
        return next((_no_ragged(layer) for layer in layers if isinstance(layer, _RECURRENT)), None)
    return None


def _lacks_vocabulary(layer: Any) -> bool:
    # Its table tells: a layer that was adapted in build_model has no vocabulary in its config.
    table = getattr(getattr(layer, "_lookup_layer", layer), "lookup_table", None)
    return isinstance(layer, _LOOKUPS) and type(getattr(table, "_initializer", None)).__name__ == "NullInitializer"


def _no_vocabulary(layer: Any) -> str:
    return (
        f"layer {layer.name} ({type(layer).__name__}) has no vocabulary, and a stream has no first pass to adapt it: "
        "give it vocabulary=[…] or the path of a file, or use Hashing"
    )


def _lacks_mean(layer: Any) -> bool:
    if not isinstance(layer, keras.layers.Normalization) or not layer.built or layer.input_mean is not None:
        return False
    return not np.any(np.asarray(layer.adapt_mean)) and bool(np.all(np.asarray(layer.adapt_variance) == 1))


def _no_ragged(layer: Any) -> str:
    return (
        f"layer {layer.name} ({type(layer).__name__}) takes no ragged input: give the feature pad in the place of "
        "ragged: true, and mask the padding (mask_zero, or a Masking layer)"
    )


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
    if wanted.keys() != offered.keys() or any(not wanted[name].takes(offered[name]) for name in wanted):
        raise ModelError(f"the model's inputs do not fit records.features: {_side_by_side(wanted, offered)}")


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


def _side_by_side(wanted: Mapping[str, _Input], offered: Mapping[str, _Input]) -> str:
    rows = []
    for name in sorted(wanted.keys() | offered.keys()):
        model, schema = wanted.get(name), offered.get(name)
        if model is None or schema is None or not model.takes(schema):
            rows.append(f"{name}: the model wants {model or 'nothing'}, the schema has {schema or 'nothing'}")
    return "; ".join(rows)
