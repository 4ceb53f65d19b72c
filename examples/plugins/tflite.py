"""An export writer: `model.tflite` beside the SavedModel of each version, for phones and small boards.

    export:
      path: ./exports
      formats: [saved_model, ./tflite.py:TFLite]

`millrace validate` has it write your model, and compares its answers with the model's.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from millrace.training.model.export.export_writer import ExportWriter, WritableModel

FILE = "model.tflite"


class TFLite(ExportWriter):
    """Converts the SavedModel, and answers with the interpreter that a phone has."""

    rounding = 64
    """Its kernels sum in another order than TensorFlow's."""

    def write(self, model: WritableModel, folder: Path) -> None:
        """Write one file; the SavedModel is in the folder already."""
        import tensorflow as tf

        converted = tf.lite.TFLiteConverter.from_saved_model(str(folder)).convert()
        (folder / FILE).write_bytes(converted)

    def prove(self, folder: Path, rows: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the answers of the file. This runs in a fresh process, before the version is published."""
        import tensorflow as tf

        interpreter = tf.lite.Interpreter(model_path=str(folder / FILE))
        answers: Mapping[str, Any] = interpreter.get_signature_runner("serving_default")(**rows)
        return answers
