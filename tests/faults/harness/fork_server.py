"""Starts `millrace` from a process that has imported it already: a start costs a fork instead of 4 s of imports.

A forked command is a process of its own, with its own id, environment, folder, output and exit code, and it is killed
for real. The server has imported TensorFlow and has run no operation: TensorFlow starts its threads with the first one,
and a fork keeps only the thread that calls it. Whatever a module reads from the environment at its import is read again
after the fork. `multiprocessing` owns the server, one for each process of pytest: it starts with the first command and
ends with pytest. Tests of starts and stops start Python instead, as users do. What one forked start has proven of a
model, the next one does not prove again (`tests/faults/harness/proven.py`).

A worker of a group that begins again replaces itself by a new Python. Here it ends instead, having noted with what it
begins again, and a fork takes its place, under another id; with `cold_again` it replaces itself as a user's does.
"""

import atexit
import gc
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from multiprocessing import connection, forkserver, get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from unittest import mock

from millrace.app.tools.child_process import millrace_command
from millrace.app.tools.child_process.die_with_parent import die_with_parent
from millrace.app.tools.prove.trainer_process import ROOT
from millrace.consumers import failpoints

_KILLED_WITHIN_S = 60.0
_PRELOADED = "tests.faults.harness.preloaded"
_BEGINS_AGAIN = 99
"""The exit code of who has noted with what it begins again; `millrace` has none like it."""
_context = get_context("forkserver")
_lock = threading.Lock()
"""Held to start and to poll: each start polls all that were started, and an exit code can be read only once."""


class ForkedProcess:
    """A running command, with the part of `SupervisedProcess` that a trainer's owner uses.

    A thread of its own waits for its end, to fork whoever begins again.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        outputs: tuple[Path, Path],
        *,
        cold_again: bool = False,
    ) -> None:
        """`outputs` are the files for stdout and stderr, which may be one."""
        for path in outputs:
            path.touch()
        self._about = cwd, outputs, _notes(), cold_again
        self._killed = False
        with _lock:
            self._process = self._forked(arguments, env)
        if not cold_again:
            threading.Thread(target=self._watch, name=f"begins again: {arguments[0]}", daemon=True).start()

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code, minus the number of the signal that ended it; None while the process runs."""
        with _lock:
            code = self._process.exitcode
            if code != _BEGINS_AGAIN or self._killed:
                return code
            self._process = self._forked(*json.loads(_again(_notes(), self.pid).read_text()))
            return None

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self.exit_code is None

    def terminate(self) -> None:
        """Send SIGTERM; a process that has ended is left as it is."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL and wait until the process is gone; one that was about to begin again does not."""
        with _lock:
            self._killed = True
        self._send(signal.SIGKILL)
        assert self.wait(_KILLED_WITHIN_S), "the system does not end it"

    def wait(self, within_s: float) -> bool:
        """Wait for the end for at most `within_s` seconds; return whether the process has ended."""
        ends_at = time.monotonic() + within_s
        while self.alive and (left_s := ends_at - time.monotonic()) > 0:
            connection.wait([self._process.sentinel], left_s)
        return not self.alive

    def _send(self, number: signal.Signals) -> None:
        if self.alive:
            with suppress(ProcessLookupError):  # the server has met its end by now
                os.kill(self.pid, number)

    def _forked(self, arguments: Sequence[str], env: Mapping[str, str]) -> ForkServerProcess:
        return _fork(_run_command, list(arguments), dict(env), *self._about)

    def _watch(self) -> None:
        while self.alive:
            connection.wait([self._process.sentinel])


def fork(function: Callable[..., None], *arguments: object) -> ForkServerProcess:
    """Run a function of a module in a process of its own, which has imported what a trainer imports."""
    with _lock:
        return _fork(function, *arguments)


def _fork(function: Callable[..., None], *arguments: object) -> ForkServerProcess:
    """Fork while the lock is held."""
    _ensure_server()
    process = _context.Process(target=function, args=arguments, daemon=True)
    process.start()
    return process


def fork_trainer(
    arguments: Sequence[str], cwd: Path, environment: Mapping[str, str], log: Path, *, cold_again: bool = False
) -> ForkedProcess:
    """Start a command whose output goes to one file."""
    return ForkedProcess(arguments, cwd, environment, (log, log), cold_again=cold_again)


def run_forked(
    arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout: float = 120.0
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, as `subprocess.run` does with captured text; AssertionError where it takes longer."""
    with tempfile.TemporaryDirectory() as folder:
        stdout, stderr = outputs = Path(folder) / "stdout", Path(folder) / "stderr"
        process = ForkedProcess(arguments, cwd, env, outputs)
        try:
            assert process.wait(timeout), f"{arguments} still runs after {timeout:g} s: {stderr.read_text()}"
        finally:
            process.kill()
        code = process.exit_code
        assert code is not None
        return subprocess.CompletedProcess(list(arguments), code, stdout.read_text(), stderr.read_text())


def millrace(*words: str) -> str:
    """Run a command as the caller's own, and return what it prints; CalledProcessError if it fails."""
    done = run_forked(words, cwd=Path.cwd(), env=os.environ, timeout=180)
    sys.stderr.write(done.stderr)
    done.check_returncode()
    return done.stdout


def _ensure_server() -> None:
    """Start the server where it does not run yet, in the environment in which it has to import."""
    _context.set_forkserver_preload([_PRELOADED, __name__])
    ours = {"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    with mock.patch.dict(os.environ, ours):
        forkserver.ensure_running()


@cache
def _notes() -> Path:
    """Return the folder in which forked starts note what they have proven; it ends with this process."""
    folder = Path(tempfile.mkdtemp(prefix="millrace-proven-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _again(notes: Path, pid: int) -> Path:
    """Return where a process notes with what it begins again."""
    return notes / f"again-{pid}.json"


def _run_command(
    arguments: list[str], env: dict[str, str], cwd: Path, outputs: tuple[Path, Path], notes: Path, cold_again: bool
) -> None:
    """Become the command, in the forked process; it ends with the server, which ends with pytest."""
    die_with_parent()
    for number, path in enumerate(outputs, start=1):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), write_through=True)
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None  # read again from TMPDIR
    failpoints.arm(env.get(failpoints.VARIABLE, ""))
    sys.argv = ["millrace", *arguments]
    import numpy as np

    np.random.seed()  # the legacy generator is one state that every fork would share
    gc.unfreeze()

    from millrace.app.cli import main
    from tests.faults.harness.proven import command_that_proves_once, prove_once

    def note(_program: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        _again(notes, os.getpid()).write_text(json.dumps([command[1:], dict(environment)]))
        os._exit(_BEGINS_AGAIN)

    # A worker of a group replaces itself by the same command.
    if cold_again:
        sys.orig_argv = command_that_proves_once(millrace_command(arguments), notes)
    else:
        sys.orig_argv = ["millrace", *arguments]
        mock.patch.object(os, "execve", note).start()
    prove_once(notes)
    try:
        main()
    finally:
        atexit._run_exitfuncs()  # multiprocessing leaves them out
