"""Fresh processes for an export: one that is asked what it answers, one that writes its model for ONNX Runtime.

Each blocks its caller for a bounded time; a child that hangs is killed.
"""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from millrace.app.tools.child_process import module_command, python_environment
from millrace.app.tools.child_process.die_with_parent import dying_with_parent
from millrace.pipelines.schema import Column
from millrace.training.errors import ExportRefusedError
from millrace.training.model.export.export_proof import SIGNATURE, answers_in, request_of

PROOF_S = 300.0
_LONGEST = 400
"""Characters of another program's words."""
_WITHOUT_ONNX = "; if ONNX has no such operation as the model or preprocess uses, write export.formats: [saved_model]"
_OPSET = 18
"""The newest that the converter writes."""


def answers_of(folder: Path, raw: Mapping[str, Any], within_s: float = PROOF_S) -> dict[str, Column]:
    """Return what a fresh process answers that loads the SavedModel; ExportRefusedError where it cannot."""
    return _answers("millrace.training.model.export.export_proof", folder, raw, within_s)


def onnx_answers_of(file: Path, raw: Mapping[str, Any], within_s: float = PROOF_S) -> dict[str, Column]:
    """Return what ONNX Runtime answers in a fresh process; ExportRefusedError where it cannot use the file."""
    return _answers("millrace.training.model.export.onnx_proof", file, raw, within_s, _WITHOUT_ONNX)


def write_onnx(folder: Path, file: Path, within_s: float = PROOF_S) -> None:
    """Write the SavedModel of a folder as ONNX; ExportRefusedError where the converter cannot."""
    told = ["--saved-model", folder, "--signature_def", SIGNATURE, "--output", file, "--opset", _OPSET]
    _run("tf2onnx.convert", [*map(str, told)], "", within_s, f"write {file.name}", _WITHOUT_ONNX)
    if not file.is_file():
        raise ExportRefusedError(f"a fresh process cannot write {file.name}: the converter has left no file")


def _answers(module: str, path: Path, raw: Mapping[str, Any], within_s: float, way_out: str = "") -> dict[str, Column]:
    what = path.name if path.is_file() else "the export"
    return answers_in(_run(module, [str(path)], request_of(raw), within_s, f"use {what}", way_out))


def _run(module: str, arguments: Sequence[str], given: str, within_s: float, what: str, way_out: str) -> str:
    """Return what a module prints in a fresh process; ExportRefusedError says what it could not do."""
    try:
        done = subprocess.run(  # noqa: S603 - modules of ours, and of a package that we name
            dying_with_parent(module_command(module, arguments)),
            input=given,
            capture_output=True,
            text=True,
            env=python_environment(),
            timeout=within_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ExportRefusedError(f"a fresh process could not {what} within {within_s:g} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        why = lines[-1].strip()[:_LONGEST] if lines else f"it ended by {done.returncode}"
        raise ExportRefusedError(f"a fresh process cannot {what}: {why}{way_out}")
    return done.stdout
