"""Starts a child process, watches it, lowers its priority and ends it: for the broker, the demo, `prove` and exports.

The child stands apart from the terminal's session, so that Ctrl-C reaches the parent only, which ends its children in
order. On Linux it is killed when the *thread* that started it ends, so start it on a thread that outlives it. On other
systems a killed parent leaves it running: the next start calls `end_left_behind`. All of this runs on the caller's
thread.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import millrace
from millrace.app.settings.environment import of_others, with_own
from millrace.app.tools.child_process.die_with_parent import dying_with_parent

_POLL_S = 0.05
_KILLED_WITHIN_S = 180.0
_TAIL_BYTES = 4000

ROOT = Path(millrace.__file__).parents[1]

NICE = 19
"""The lowest: beside a trainer that leaves no core idle the process still has a seventieth of one."""


class SupervisedProcess:
    """A running child, or one that has ended."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        dies_with_parent: bool = True,
        pipes: bool = False,
    ) -> None:
        """Start the command and append its output and errors to `log`.

        With `pipes`, stdin and stdout are connected to the parent by lines of text, and only stderr goes to the log.
        `environment` None means this process's own.
        """
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own commands
                dying_with_parent(command) if dies_with_parent else command,
                cwd=cwd,
                env=environment,
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else output,
                stderr=output,
                text=True,
                start_new_session=True,
            )
        self.output = self._process.stdout

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code, minus the number of the signal that ended it; None while the process runs."""
        return self._process.poll()

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self.exit_code is None

    def send_line(self, line: str) -> None:
        """Write a line to the child's stdin. A child that has closed it is ending, which `exit_code` will show."""
        stdin = self._process.stdin
        assert stdin is not None, "a process without pipes takes no lines"
        if stdin.closed:
            return
        try:
            stdin.write(f"{line}\n")
            stdin.flush()
        except BrokenPipeError:
            with suppress(BrokenPipeError):  # close() tries to flush the rest of the line
                stdin.close()

    def wait(self, within_s: float) -> bool:
        """Wait for the end for at most `within_s` seconds; return whether the process has ended."""
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def terminate(self) -> None:
        """Send SIGTERM; a process that has ended is left as it is."""
        self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL and wait until the process is gone. TimeoutExpired where the system does not end it."""
        self._process.kill()
        self._process.wait(_KILLED_WITHIN_S)

    def end(self, within_s: float) -> bool:
        """Send SIGTERM, then SIGKILL after `within_s` seconds; return whether SIGTERM was enough."""
        self.terminate()
        ended = self.wait(within_s)
        if not ended:
            self.kill()
        return ended

    def last_words(self, *, log_stays: bool = True) -> str:
        """Return the last message in the log, the exit code if the process has ended, and where the log is."""
        lines = self._log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").splitlines()
        messages = (line for line in reversed(lines) if line.strip() and not line.startswith(("\t", " ")))
        facts = [] if self.alive else [f"exit code {self.exit_code}"]
        facts += [f"full log: {self._log}"] if log_stays else []
        return f"{next(messages, 'no output').strip()} ({'; '.join(facts)})"


def end_left_behind(pid: int, marker: str, within_s: float = 0.0) -> None:
    """End a process that a killed parent left running: SIGTERM, then SIGKILL after `within_s` seconds.

    The process is recognized by the text `marker` in its command line, because systems use process ids again.
    """

    def gone() -> bool:
        return marker not in _command_of(pid)

    if pid <= 0 or gone():
        return
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        if not holds_within(gone, within_s):
            os.kill(pid, signal.SIGKILL)
            holds_within(gone, _KILLED_WITHIN_S)


def holds_within(condition: Callable[[], bool], within_s: float) -> bool:
    """Wait for a condition for at most `within_s` seconds; return whether it came true."""
    ends_at = time.monotonic() + within_s
    while not condition():
        if time.monotonic() >= ends_at:
            return False
        time.sleep(_POLL_S)
    return True


def _command_of(pid: int) -> str:
    """Return the command line of a process; empty where there is no such process, or only a zombie."""
    if Path("/proc/self").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            return ""
    command = ["/bin/ps", "-ww", "-o", "command=", "-p", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603 - as above


def millrace_command(arguments: Sequence[str]) -> list[str]:
    """Return the command that runs `millrace` with these arguments; its output is unbuffered."""
    return [sys.executable, "-u", "-c", "from millrace.app.cli import main; main()", *arguments]


def module_command(module: str, arguments: Sequence[str]) -> list[str]:
    """Return the command that runs one of our modules with these arguments."""
    return [sys.executable, "-m", module, *arguments]


def python_environment() -> dict[str, str]:
    """Return this process's environment without millrace's own settings, with our packages on the path."""
    return _finding_us(of_others()) | {"TF_CPP_MIN_LOG_LEVEL": "2"}


def worker_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment, millrace's own settings included, with these variables over it."""
    return _finding_us(with_own(variables))


def _finding_us(environment: dict[str, str]) -> dict[str, str]:
    """Return an environment with our packages on the path, before those of the user, whose model may import them."""
    path = os.pathsep.join(filter(None, (str(ROOT), environment.get("PYTHONPATH"))))
    return environment | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def give_way(pid: int = 0) -> None:
    """Have this process, or a child that has just begun, give way to the others of its session.

    Where Linux groups processes by session, the session has a number of its own (`/proc/self/autogroup`). It is left
    alone: it is that of the terminal, or of the trainer, too.
    """
    with suppress(ProcessLookupError):  # the child has ended
        os.setpriority(os.PRIO_PROCESS, pid, NICE)


def run_when_idle(pid: int) -> bool:
    """Have a child that has just begun run only while a core is idle; return whether this system can do so.

    It gives a core back at once, which a process of low priority does only at the end of its slice of time. Without
    privileges there is no way back: a process that starves so has to be ended and started again.
    """
    if not hasattr(os, "SCHED_IDLE"):
        return False
    try:
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
    except OSError:  # the child has ended, or the sandbox forbids the call
        return False
    return True


def cpu_s_of_group(group: int) -> float:
    """Return the CPU time of all processes of a group that live, those that they have waited for included."""
    ticks = 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            _, _, of_group, *rest = file.read_bytes().rpartition(b")")[2].split()  # a name may be no text
            ticks += sum(map(int, rest[8:12])) if int(of_group) == group else 0
    return ticks / os.sysconf("SC_CLK_TCK")
