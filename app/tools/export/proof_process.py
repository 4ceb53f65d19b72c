"""Asks a fresh process what an export answers. Blocks its caller, for a bounded time; a child that hangs is killed."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.tools.child_process.die_with_parent import dying_with_parent
from app.tools.child_process.python_program import module_command, python_environment
from pipelines.schema import Column
from training.errors import ExportRefusedError
from training.model.export_proof import answers_in, request_of

PROOF_S = 300.0


def answers_of(folder: Path, raw: Mapping[str, Any], within_s: float = PROOF_S) -> dict[str, Column]:
    """Return what a fresh process answers that loads the SavedModel; ExportRefusedError where it cannot."""
    command = dying_with_parent(module_command("training.model.export_proof", [str(folder)]))
    try:
        done = subprocess.run(  # noqa: S603 - one of our own modules
            command,
            input=request_of(raw),
            capture_output=True,
            text=True,
            env=python_environment(),
            timeout=within_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ExportRefusedError(f"a fresh process has not answered within {within_s:g} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        why = lines[-1].strip()[:300] if lines else f"it ended by {done.returncode}"
        raise ExportRefusedError(f"a fresh process cannot use the export: {why}")
    return answers_in(done.stdout)
