"""Figures of epochs as TensorBoard reads them, in the folders and under the names that Keras' own callback uses.

Keras' callback needs the package tensorboard, which TensorFlow does not bring along; the files need only TensorFlow.
Owns the files; runs on the thread that trains.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

_VALIDATION = "val_"


class EventFiles(keras.callbacks.Callback):  # type: ignore[misc]  # keras has no types
    """Writes the figures of each epoch below a folder: `train/` and `validation/`."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._writers: dict[str, Any] = {}
        self._metadata = tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": "scalars"})

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Write the figures of an epoch."""
        for name, value in (logs or {}).items():
            validated = name.startswith(_VALIDATION)
            with self._writer("validation" if validated else "train").as_default():
                tag = f"epoch_{name.removeprefix(_VALIDATION)}"
                tf.summary.write(tag, tf.constant(value, tf.float32), step=epoch, metadata=self._metadata)
        for writer in self._writers.values():
            writer.flush()

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras' signature
        """Close the files."""
        for writer in self._writers.values():
            writer.close()

    def _writer(self, name: str) -> Any:
        if name not in self._writers:
            self._writers[name] = tf.summary.create_file_writer(str(self._folder / name))
        return self._writers[name]
