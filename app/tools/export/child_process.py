"""The processes of an export: `millrace export` as a child of a running service, and the children of an export itself.

`ExportProcess` runs the verb and reads its report. It blocks the thread `exporter`, which owns the child: it is
killed when that thread ends, when it takes too long, and at a stop. Its output is read by `communicate`, so a child
that prints a lot does not hang. It runs while a core is idle; one that starves beside a trainer that leaves none is
started again at the lowest priority.

`answers_of` and `run_module` run fresh processes for an export: one that is asked for answers, one that converts.
Each blocks its caller for a bounded time; a child that hangs is killed.
"""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from millrace.app.service.exporting import ExportVerdict
from millrace.app.tools.child_process import (
    cpu_s_of_group,
    give_way,
    millrace_command,
    module_command,
    python_environment,
    run_when_idle,
    worker_environment,
)
from millrace.app.tools.child_process.die_with_parent import dying_with_parent
from millrace.pipelines.schema import Column
from millrace.training.errors import ExportRefusedError
from millrace.training.model.export import writers
from millrace.training.model.export.answers import as_text, of_text
from millrace.training.model.export.export_writer import ExportWriter

_LOOK_S = 0.2
_STARVING_S, _STARVING_SHARE = 20.0, 0.05
"""A child starves that has had less than this share of a core for so long."""
_LONGEST = 300


class ExportProcess:
    """Exports checkpoints of one config."""

    def __init__(self, config: Path) -> None:
        self._command = dying_with_parent(millrace_command(["export", "-c", str(config), "--json"]))

    def __call__(self, number: int, within_s: float, stopped: threading.Event) -> ExportVerdict:
        """Export a checkpoint, and wait."""
        ends_at = time.monotonic() + within_s
        ended, again = self._run(number, ends_at, stopped, idle=True), False
        if ended is None:
            ended, again = self._run(number, ends_at, stopped, idle=False), True
        assert ended is not None  # only an idle one is given up
        if ended.returncode == 0:
            verdict = published(ended.stdout)
            # One that was given up may have published before: then it is this export's all the same.
            return replace(verdict, already=False) if again else verdict
        late = time.monotonic() >= ends_at
        why = f"it took longer than {within_s:g} s" if late else _reason(ended.stderr, ended.returncode)
        return ExportVerdict(manifest=None, error=why)

    def _run(
        self, number: int, ends_at: float, stopped: threading.Event, *, idle: bool
    ) -> "subprocess.CompletedProcess[str] | None":
        """Run the child to its end, killed at a stop and when its time is over; None if it was idle and starved."""
        child = subprocess.Popen(  # noqa: S603 - our own command
            [*self._command, "--", str(number)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=worker_environment({}),
            process_group=0,  # to be killed with what it starts; its session stays the trainer's
        )
        # From its first moment, as importing TensorFlow is most of its work.
        give_way(child.pid)
        idle = idle and run_when_idle(child.pid)
        starved, had_s, look_at = False, 0.0, time.monotonic() + _STARVING_S
        while True:
            try:
                output, errors = child.communicate(timeout=_LOOK_S)
                break
            except subprocess.TimeoutExpired:
                now = time.monotonic()
                if idle and now >= look_at:
                    before_s, had_s, look_at = had_s, cpu_s_of_group(child.pid), now + _STARVING_S
                    starved = had_s - before_s < _STARVING_SHARE * _STARVING_S
                if starved or stopped.is_set() or now >= ends_at:
                    _kill(child)
        if starved and not stopped.is_set():
            return None
        return subprocess.CompletedProcess(child.args, child.returncode, output, errors)


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


PROOF_S = 300.0
_LONGEST_OF_A_PROOF = 400
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
        why = lines[-1].strip()[:_LONGEST_OF_A_PROOF] if lines else f"it ended by {done.returncode}"
        raise ExportRefusedError(f"a fresh process cannot {what}: {why}{way_out and f'; {way_out}'}")
    return done.stdout
