"""The demo's children: the trainer and the judge, each a process that dies with this one.

On Linux the system sees to that, where the thread that started them ends; start them on the main one. Elsewhere a start
ends what the last one has left behind. They stand apart from the terminal, so that Ctrl-C reaches the demo alone, which
ends them in order.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from app.settings.environment import of_others
from app.tools.local_broker.die_with_parent import dying_with_us
from app.tools.local_broker.java import left_behind

_ROOT = Path(__file__).parents[3]
_COMMAND_LINE = "from app.cli import main; main()"
_TAIL_BYTES = 4000


class Child:
    """One process of ours, whose errors and output go to a file."""

    def __init__(self, arguments: Sequence[str], log: Path, *, talks: bool = False) -> None:
        """Start it. One that talks is written to, and read from, by lines; its log is what it says on stderr."""
        self._log = log
        pipe = subprocess.PIPE if talks else None
        ours = {"PYTHONPATH": str(_ROOT), "PYTHONSAFEPATH": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
        with log.open("ab") as said:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                dying_with_us([sys.executable, *arguments]),
                env=of_others() | ours,
                stdin=pipe or subprocess.DEVNULL,
                stdout=pipe or said,
                stderr=said,
                text=True,
                start_new_session=True,
            )
        log.with_suffix(".pid").write_text(json.dumps({"pid": self.pid, "marker": arguments[-1]}))
        self.output = self._process.stdout

    @property
    def pid(self) -> int:
        """Its id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.poll()

    def tell(self, line: str) -> None:
        """Write it a line. One that reads no more takes none: it has ended, or soon will, which `exit_code` says."""
        to = self._process.stdin
        assert to is not None
        if to.closed:
            return
        try:
            to.write(f"{line}\n")
            to.flush()
        except BrokenPipeError:
            with contextlib.suppress(BrokenPipeError):  # what is left of the line goes nowhere
                to.close()

    def last_words(self) -> str:
        """The last line that it has said, and where the others are."""
        lines = self._log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").splitlines()
        said = next((line for line in reversed(lines) if line.strip()), "it said nothing")
        return f"{said.strip()} (all of it in {self._log})"

    def end(self, within_s: float) -> bool:
        """Ask it to end; kill it where it has not in time. Whether it ended by itself."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False
        return True


def start_trainer(config: Path, log: Path) -> Child:
    """`millrace run` with this config."""
    return Child(["-c", _COMMAND_LINE, "run", "-c", str(config)], log)


def start_judge(config: Path, log: Path) -> Child:
    """The judge of copies that learn no more."""
    return Child(["-m", "app.tools.demo.frozen_judge", str(config)], log, talks=True)


def end_left_behind(logs: Sequence[Path]) -> None:
    """End what a demo that was killed has left running, where the system did not see to it."""
    for log in logs:
        with contextlib.suppress(OSError, ValueError, KeyError):
            known = json.loads(log.with_suffix(".pid").read_text())
            process = left_behind(int(known["pid"]), str(known["marker"]))
            if process is not None:
                os.kill(process.pid, signal.SIGKILL)
