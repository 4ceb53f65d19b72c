"""Runs `millrace export` as a child of a running service, and reads what it reports.

Blocks the thread `exporter`, which owns the child: it is killed when that thread ends, when it takes too long, and at a
stop. What it prints is read by `communicate`, so a child that prints a lot does not hang.
"""

import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

from millrace.app.service.exporting import ExportVerdict
from millrace.app.tools.child_process.die_with_parent import dying_with_parent
from millrace.app.tools.child_process.priority import give_way
from millrace.app.tools.child_process.python_program import millrace_command, worker_environment

_LOOK_S = 0.2
_LONGEST = 300


class ExportProcess:
    """Exports checkpoints of one config."""

    def __init__(self, config: Path) -> None:
        self._command = dying_with_parent(millrace_command(["export", "-c", str(config), "--json"]))

    def __call__(self, number: int, within_s: float, stopped: threading.Event) -> ExportVerdict:
        """Export a checkpoint, and wait."""
        child = subprocess.Popen(  # noqa: S603 - our own command
            [*self._command, "--", str(number)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=worker_environment({}),
            process_group=0,  # to be killed with what it starts; its session stays the trainer's
        )
        give_way(child.pid)  # from its first moment, as importing TensorFlow is most of its work
        ends_at = time.monotonic() + within_s
        while True:
            try:
                output, errors = child.communicate(timeout=_LOOK_S)
                break
            except subprocess.TimeoutExpired:
                if stopped.is_set() or time.monotonic() >= ends_at:
                    _kill(child)
        if child.returncode == 0:
            return published(output)
        late = time.monotonic() >= ends_at
        return ExportVerdict(
            manifest=None, error=f"it took longer than {within_s:g} s" if late else _reason(errors, child.returncode)
        )


def _kill(child: "subprocess.Popen[str]") -> None:
    """End the child with the fresh process that it may be waiting for, which is of its group."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        child.kill()


def published(output: str) -> ExportVerdict:
    """Return what a child that has ended well has reported."""
    try:
        # The user's model may print lines of its own before.
        manifest = json.loads(output[output.rindex("\n{\n") :] if "\n{\n" in output else output)
        return ExportVerdict(manifest=manifest, already=bool(manifest["already"]))
    except (ValueError, KeyError, TypeError):
        return ExportVerdict(manifest=None, error="it has not reported what it published")


def _reason(errors: str, code: int) -> str:
    """Return why the child failed: its own error, or the last line that it printed."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    for line in reversed(lines):
        try:
            return str(json.loads(line)["error"])[:_LONGEST]
        except (ValueError, KeyError, TypeError):
            continue
    ended = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return f"its process ended with {ended}" + (f": {lines[-1][:_LONGEST]}" if lines else "")
