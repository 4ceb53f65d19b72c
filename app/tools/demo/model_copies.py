"""A copy of the user's model with a checkpoint's weights, for inference only. Imports TensorFlow."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from millrace.app.service.model_setup import model_file
from millrace.app.settings import Settings, to_schema
from millrace.training.checkpoints.part_files import decode
from millrace.training.checkpoints.parts import PartState
from millrace.training.model.setup.model_file import load
from millrace.training.model.weights.weights import model_with_weights


class Copy:
    """One model, with weights from a file."""

    def __init__(self, settings: Settings) -> None:
        self._schema = to_schema(settings.records)
        self._functions = load(model_file(settings))
        self._guess: Any = None

    def take(self, weights: Path) -> None:
        """Take the weights of this checkpoint."""
        state = PartState(arrays=decode(weights.read_bytes()))
        model = model_with_weights(self._functions, self._schema, state)
        self._guess = tf.function(lambda features: model(features, training=False), reduce_retracing=True)

    def hits(self, rows: Sequence[Mapping[str, Any]]) -> list[bool]:
        """Return for each record whether the copy guesses its label."""
        features = {
            field.name: tf.constant([row[field.source] for row in rows], tf.as_dtype(field.dtype))
            for field in self._schema.features
        }
        (label,) = self._schema.labels
        guesses = np.asarray(self._guess(features))[:, 0] > 0.5
        truth = np.array([row[label.source] for row in rows]) > 0.5
        found: list[bool] = (guesses == truth).tolist()
        return found
