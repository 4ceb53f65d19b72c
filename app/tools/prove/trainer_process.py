"""A real `millrace run` in a process of its own: started, asked over HTTP, killed by its id.

Its stdout and stderr go to a file, in which failpoints and log lines are found. Runs on the caller's thread; a process
that still runs when the context ends is killed.
"""

import contextlib
import http.client
import json
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from millrace.app.tools.child_process import ROOT, SupervisedProcess, millrace_command, python_environment
from millrace.consumers.errors import MillraceError
from millrace.consumers.failpoints import VARIABLE

__all__ = ["ROOT", "Run", "TrainerFolder"]

_FIRST_CALL = "call.settled"
_BEACON = f"{_FIRST_CALL}=sleep:0:once"
"""Acts once, when the first call is settled, and only writes a line to the log."""
_ANSWER_S = 90.0
_TAIL = 25
_ENDED = object()
"""What a wait has met where the process ended first."""

T = TypeVar("T")
PATIENCE_S = 180.0
"""A start takes 10 s on a quiet machine, and this one may not be quiet."""
_POLL_S, _LONGEST_S = 0.01, 0.2
_REST = 9
"""So many times what a look has taken is the pause after it: looks by HTTP would otherwise keep two processes busy."""


class WaitedError(MillraceError, TimeoutError):
    """A condition did not come true in time."""


class UnprovenError(MillraceError, RuntimeError):
    """The proof cannot be made."""


def wait_until(condition: Callable[[], T], what: str, within_s: float = PATIENCE_S) -> T:
    """Wait for a condition and return its answer. WaitedError, naming `what` was waited for, when time is up."""
    ends_at = time.monotonic() + within_s
    looked_at = time.monotonic()
    while not (answer := condition()):
        if (now := time.monotonic()) >= ends_at:
            raise WaitedError(f"waited {within_s:g} s for {what}")
        time.sleep(min(max(_POLL_S, _REST * (now - looked_at)), _LONGEST_S))
        looked_at = time.monotonic()
    return answer


class TrainerFolder(Protocol):
    """Where a trainer lives."""

    @property
    def path(self) -> Path:
        """The folder for its logs."""
        ...

    @property
    def cwd(self) -> Path:
        """The folder that it runs in."""
        ...

    @property
    def config(self) -> Path:
        """Its config file."""
        ...

    @property
    def port(self) -> int:
        """The port of its HTTP interface, on loopback."""
        ...


class TrainerProcess(Protocol):
    """The part of `SupervisedProcess` that a trainer's owner uses."""

    @property
    def pid(self) -> int:
        """The process id."""
        ...

    @property
    def exit_code(self) -> int | None:
        """The exit code, minus the number of the signal that ended it; None while the process runs."""
        ...

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        ...

    def terminate(self) -> None:
        """Send SIGTERM; a process that has ended is left as it is."""
        ...

    def kill(self) -> None:
        """Send SIGKILL and wait until the process is gone."""
        ...


Launch = Callable[[Sequence[str], Path, Mapping[str, str], Path], TrainerProcess]
"""Starts `millrace` with these arguments, in this folder and environment, its output written to this file."""


def start_python(arguments: Sequence[str], cwd: Path, environment: Mapping[str, str], log: Path) -> TrainerProcess:
    """Start a Python of its own, as users do."""
    return SupervisedProcess(millrace_command(arguments), log, cwd=cwd, environment=environment)


class Run:
    """One process. A context manager: a process that still runs at the end is killed."""

    def __init__(
        self, home: TrainerFolder, *arguments: str, failpoints: str = "", launch: Launch = start_python
    ) -> None:
        self.first_call_s: float | None = None
        """Seconds from the start to the first call; None until it was seen."""
        self._home = home
        self._log = home.path / f"run-{len(list(home.path.glob('run-*.log')))}.log"
        armed = failpoints if _FIRST_CALL in failpoints else ", ".join(filter(None, (failpoints, _BEACON)))
        scratch = home.path / "scratch"  # a killed TensorFlow leaves its temporary files here
        scratch.mkdir(exist_ok=True)
        environment = python_environment() | {VARIABLE: armed, "TMPDIR": str(scratch)}
        self.began = time.monotonic()
        self._process = launch(["run", "-c", str(home.config), *arguments], home.cwd, environment, self._log)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def age_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.alive

    @property
    def ended_with(self) -> int | None:
        """The exit code, minus a signal's number; None while the process runs."""
        return self._process.exit_code

    def takes(self, number: signal.Signals) -> bool:
        """Return whether the process has a handler for a signal, as Linux reports it."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
        return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process is gone; one that has ended is left as it is."""
        self._process.kill()

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def exit_code(self, within_s: float = PATIENCE_S) -> int:
        """Wait for the end and return the exit code, minus a signal's number. WaitedError where it takes longer."""
        try:
            wait_until(self._has_ended, "its end", within_s)
        except WaitedError:
            raise WaitedError(f"it still runs after {within_s:g} s:\n{self.tail()}") from None
        code = self._process.exit_code
        assert code is not None
        return code

    def _has_ended(self) -> bool:
        """Return whether the process has ended; also notes its first call."""
        self.has_called()
        return not self.alive

    def finish(self, within_s: float = PATIENCE_S) -> None:
        """Wait for the end, which must be a good one. WaitedError where it takes longer."""
        code = self.exit_code(within_s)
        if code != 0:
            raise UnprovenError(f"a trainer that was to end well ended with {code}:\n{self.tail()}")

    def log(self) -> str:
        """Return the whole log."""
        return self._log.read_text(errors="replace")

    def tail(self) -> str:
        """Return the end of the log, for error messages."""
        return "\n".join(self.log().splitlines()[-_TAIL:])

    def said(self, text: str) -> int:
        """Return how often the log contains this text."""
        return self.log().count(text)

    def hits(self, point: str) -> int:
        """Return how often a failpoint has acted."""
        return self.said(f"failpoint {point}: ")

    def wait_for(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for a condition. WaitedError where the process ends before."""
        found = wait_until(lambda: condition() or (not self.alive and _ENDED), what)
        if found is _ENDED and not condition():
            raise WaitedError(f"it ended ({self._process.exit_code}) before {what}:\n{self.tail()}")

    def wait_for_line(self, text: str) -> None:
        """Wait until the log contains this text."""
        self.wait_for(lambda: self.said(text), f"it said {text!r}")

    def has_called(self) -> bool:
        """Return whether the first call is settled; notes when that was seen."""
        if self.first_call_s is None and self.hits(_FIRST_CALL):
            self.first_call_s = self.age_s
        return self.first_call_s is not None

    def wait_for_first_call(self) -> float:
        """Wait until the first call is settled; return the seconds since the start."""
        self.wait_for(self.has_called, "its first call was settled")
        assert self.first_call_s is not None
        return self.first_call_s

    def went_on_from(self) -> int | None:
        """Return the checkpoint that the process has resumed from or begun with; None where it has not come to that."""
        match = re.search(r"(?:resumed from|began at) checkpoint (\d+)", self.log())
        return None if match is None else int(match[1])

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Send a request; return the status and the answer. OSError or HTTPException where none comes."""
        connection = http.client.HTTPConnection("127.0.0.1", self._home.port, timeout=_ANSWER_S)
        with contextlib.closing(connection):
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"content-type": "application/json"} if text else {})
            response = connection.getresponse()
            return response.status, json.loads(response.read())

    def status(self) -> dict[str, Any]:
        """Return the trainer's status; an empty one where it does not answer."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            code, answer = self.ask("GET", "/status")
            return dict(answer) if code == HTTPStatus.OK else {}
        return {}

    def ready(self) -> bool:
        """Return whether the trainer takes commands."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.ask("GET", "/readyz")[0] == HTTPStatus.OK
        return False

    def settled(self) -> int | None:
        """Return how many offsets are settled since the history began; None where the trainer does not answer."""
        offsets = self.status().get("records", {}).get("offsets")
        return None if offsets is None else int(offsets)

    def state(self) -> str | None:
        """Return the trainer's phase; None where it does not answer."""
        state = self.status().get("state")
        return None if state is None else str(state)
