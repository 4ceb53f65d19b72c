"""The model of `model.py`, which learns its rows otherwise than they came: with noise, drawn by layers of Keras."""

from functools import cache
from typing import Any

import keras

from tests.faults.harness.model import build_model

__all__ = ["augment", "build_model"]


@cache
def _noise() -> keras.Layer:
    return keras.layers.GaussianNoise(0.2)


def augment(features: dict[str, Any], label: Any, weight: Any) -> tuple[dict[str, Any], Any, Any]:
    """Add the noise of a layer that is kept, and of one that is made while this is traced."""
    x = _noise()(features["x"], training=True)
    return {**features, "x": keras.layers.GaussianDropout(0.1)(x, training=True)}, label, weight
