"""Starts a group for a config on this machine, and runs it to its end."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from millrace.app.tools.child_process.python_program import millrace_command, worker_environment
from millrace.app.tools.local_group.group import StopSignals, run_group
from millrace.app.tools.local_group.places import Place, plan_of
from millrace.app.tools.local_group.worker import Worker
from millrace.consumers.kafka.positions import parse_until

_CLOSING_S = 10.0
"""How long a process may take to end beside stop.grace."""


def run_locally(
    config: Path,
    workers: int,
    until: str | None,
    *,
    paused: bool = False,
    in_terminal: bool,
    started: Callable[[Place, int], None],
    write: Callable[[str], None],
) -> int:
    """Run so many workers of a config until a signal, or until they have learnt up to `until`; return the exit code.

    With `paused` they begin to learn when the chief is told to resume.
    `started` is called with the place and the process id of each worker that was started, also again; `write` with
    each line of their logs.
    """
    if until is not None:
        parse_until(until)  # so that a mistake is one line, and not one of each worker
    plan = plan_of(config, workers, in_terminal=in_terminal)
    more = [*([] if until is None else ["--until", until]), *(["--paused"] if paused else [])]
    command = millrace_command(["run", "-c", str(config), *more])
    signals = StopSignals()
    signals.install()
    with tempfile.TemporaryDirectory(prefix="millrace-group-") as logs:
        group = {
            Worker(
                place.name, command, worker_environment(place.variables), Path(logs) / f"{place.name}.log", write
            ): place
            for place in plan.places
        }
        return run_group(
            list(group),
            signals,
            ends=until is not None,
            grace_s=plan.grace_s + _CLOSING_S,
            started=lambda worker: started(group[worker], worker.pid),
        )
