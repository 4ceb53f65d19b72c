"""Fresh processes for an export: one that is asked what it answers, one that converts.

Each blocks its caller for a bounded time; a child that hangs is killed.
"""

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from millrace.app.tools.child_process import module_command, python_environment
from millrace.app.tools.child_process.die_with_parent import dying_with_parent
from millrace.pipelines.schema import Column
from millrace.training.errors import ExportRefusedError
from millrace.training.model.export import writers
from millrace.training.model.export.answers import as_text, of_text
from millrace.training.model.export.export_writer import ExportWriter

PROOF_S = 300.0
_LONGEST = 400
"""Characters of another program's words."""


def answers_of(
    place: str, writer: ExportWriter, rows: Iterable[Mapping[str, Any]], folder: Path, within_s: float = PROOF_S
) -> list[dict[str, Column]]:
    """Return what a writer answers in a fresh process to each of these, from what is in the folder.

    Raises ExportRefusedError if it cannot.
    """
    use = f"use {writer.written or 'the export'}"
    arguments = [place, str(folder)]
    return of_text(run_module(writers.__name__, arguments, use, writer.way_out, as_text(rows), within_s=within_s))


def run_module(
    module: str, arguments: Sequence[str], what: str, way_out: str = "", given: str = "", *, within_s: float = PROOF_S
) -> str:
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
        raise ExportRefusedError(f"a fresh process cannot {what}: {why}{way_out and f'; {way_out}'}")
    return done.stdout
