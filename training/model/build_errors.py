"""Errors of building a model that TensorFlow words in its own terms: the layer at fault, and what to write instead.

Pure inspection; runs while the model is built.
"""

from typing import Any

import keras
import tensorflow as tf

_LOOKUPS = (keras.layers.TextVectorization, keras.layers.StringLookup, keras.layers.IntegerLookup)
_RECURRENT = (keras.layers.RNN, keras.layers.Bidirectional)


def explained(model: Any, error: BaseException) -> str | None:
    """Return what is wrong with a layer of the model, and the way out; None where the error says it all."""
    layers = model._flatten_layers()  # noqa: SLF001 - Keras has no public recursive walk
    if isinstance(error, tf.errors.FailedPreconditionError):
        return next((_no_vocabulary(layer) for layer in layers if _lacks_vocabulary(layer)), None)
    if "ragged" in str(error).lower():
        return next((_no_ragged(layer) for layer in layers if isinstance(layer, _RECURRENT)), None)
    return None


def _lacks_vocabulary(layer: Any) -> bool:
    return isinstance(layer, _LOOKUPS) and layer.get_config().get("vocabulary") is None


def _no_vocabulary(layer: Any) -> str:
    return (
        f"layer {layer.name} ({type(layer).__name__}) has no vocabulary, and a stream has no first pass to adapt it: "
        "give it vocabulary=[…] or the path of a file, or use Hashing"
    )


def _no_ragged(layer: Any) -> str:
    return (
        f"layer {layer.name} ({type(layer).__name__}) takes no ragged input: give the feature pad in the place of "
        "ragged: true, and mask the padding (mask_zero, or a Masking layer)"
    )
