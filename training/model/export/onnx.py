"""`model.onnx` beside the SavedModel of a version, for ONNX Runtime: the export writer `onnx`.

The converter reads the SavedModel, so it needs the numbers that a model takes to be of one shape. It may succeed with a
file that no runtime can load, or that answers otherwise, so nothing is published but what ONNX Runtime was asked.
Importing this loads neither TensorFlow nor ONNX.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from millrace.consumers.errors import ConfigError
from millrace.consumers.suggested_command import install_of
from millrace.pipelines.schema import Column, Field
from millrace.training.errors import ExportRefusedError
from millrace.training.model.export.answers import SIGNATURE
from millrace.training.model.export.export_writer import ExportWriter, WritableModel

FILE = "model.onnx"
_PACKAGES = ("onnx", "onnxruntime", "tf2onnx")
_OPSET = 18
"""The newest that the converter writes."""


class OnnxWriter(ExportWriter):
    """Writes ONNX and answers with ONNX Runtime, which knows neither TensorFlow nor the user's code."""

    title = "ONNX Runtime"
    written = FILE
    rounding = 64
    """Its kernels round otherwise than TensorFlow's in each layer."""
    way_out = "if ONNX has no such operation as the model or preprocess uses, write export.formats: [saved_model]"
    refused = "a layer of it cannot be written as ONNX: write export.formats: [saved_model]"

    def misfit(self, field: Field) -> str | None:
        """Refuse a text, or a list."""
        is_text = field.dtype == "string" or field.classes is not None
        if not is_text and field.pad is None:
            return None
        kind = "text" if is_text else "a list of varying length"
        return f"onnx takes numbers of one shape, and {field.name} is {kind}; write [saved_model]"

    def require(self) -> None:
        """Raise ConfigError if a package is missing."""
        if missing := [name for name in _PACKAGES if find_spec(name) is None]:
            raise ConfigError(
                f"export.formats: onnx needs packages that are not installed: {', '.join(missing)}; run "
                f"{install_of('onnx')}, or write [saved_model]"
            )

    def write(self, model: WritableModel, folder: Path) -> None:
        """Convert the SavedModel in the folder, in a process of its own."""
        file = folder / FILE
        told = ["--saved-model", folder, "--signature_def", SIGNATURE, "--output", file, "--opset", _OPSET]
        model.run("tf2onnx.convert", [*map(str, told)], f"write {FILE}", self.way_out)
        if not file.is_file():
            raise ExportRefusedError(f"a fresh process cannot write {FILE}: the converter has left no file")

    def prove(self, folder: Path, rows: Mapping[str, Column]) -> Mapping[str, Column]:
        """Return what ONNX Runtime answers."""
        import onnxruntime  # noqa: PLC0415 - the extra `onnx` brings it

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(folder / FILE), options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        answers = dict(zip(names, session.run(names, dict(rows)), strict=True))
        return {name: _as_ours(answer) for name, answer in answers.items()}


def _as_ours(answer: Column) -> Column:
    """Return an answer as TensorFlow gives it: the runtime's texts are `str`."""
    if answer.dtype != object:
        return answer
    texts = [text.encode() if isinstance(text, str) else text for text in answer.ravel().tolist()]
    return np.array(texts, object).reshape(answer.shape)
