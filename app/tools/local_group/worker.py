"""One worker of a local group: a `millrace run` whose log is passed on, started again after it has ended."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from millrace.app.tools.child_process.supervisor import SupervisedProcess

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_WELL_S = 60.0
"""A worker that has run for so long is started again after the first pause."""


class Worker:
    """One worker, on the thread that runs the group. `command` is a whole command line."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path, write: Callable[[str], None]
    ) -> None:
        self.name = name
        self._command, self._environment, self._log, self._write = command, environment, log, write
        self._read = 0
        self._process: SupervisedProcess | None = None
        self._began = 0.0
        self._pause_s = _FIRST_PAUSE_S
        self._start_at: float | None = None

    @property
    def pid(self) -> int:
        """The id of its newest process."""
        assert self._process is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code of its newest process; None while it runs."""
        return None if self._process is None else self._process.exit_code

    @property
    def runs(self) -> bool:
        """Whether a process of it runs."""
        return self._process is not None and self._process.alive

    def start(self) -> None:
        """Start a process of it."""
        self._process = SupervisedProcess(self._command, self._log, environment=self._environment)
        self._began, self._start_at = time.monotonic(), None

    def start_again(self, least_pause_s: float = 0.0) -> bool:
        """Start it again once its pause, of `least_pause_s` at least, is over; return whether it was started.

        Call it again and again while it has ended. Each pause is twice as long as the one before.
        """
        now = time.monotonic()
        if self._start_at is None:
            if now - self._began > _WELL_S:
                self._pause_s = _FIRST_PAUSE_S
            pause_s = max(self._pause_s, least_pause_s)
            self._start_at, self._pause_s = now + pause_s, min(_LONGEST_PAUSE_S, 2 * self._pause_s)
            self._write(f"{self.name} ended with {self.exit_code}; it starts again after {pause_s:g} s")
        if now < self._start_at:
            return False
        self.start()
        return True

    def pass_on(self) -> None:
        """Write the lines of its log that are new, its name before each; one that is not complete yet waits."""
        with self._log.open("rb") as log:
            log.seek(self._read)
            raw = log.read()
        complete = len(raw) if self.exit_code is not None else raw.rfind(b"\n") + 1
        self._read += complete
        for line in raw[:complete].decode(errors="replace").splitlines():
            self._write(f"{self.name:<8} | {line}")

    def terminate(self) -> None:
        """Send SIGTERM, if it runs."""
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL, if it runs, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
