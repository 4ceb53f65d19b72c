"""Layers that a stream cannot feed, and errors of building a model that TensorFlow words in its own terms.

Pure inspection; runs while the model is built.
"""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

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
