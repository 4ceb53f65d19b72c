"""A process that begins again in its own place: real processes, that show with what they were started."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PROGRAM = """\
import os, sys
from millrace.app.service.beginning_again import Again, begin_again
from millrace.app.service.process import Signals

signals = Signals()
signals.install()
signals.begin()
print(os.getpid(), *sys.argv[1:], flush=True)
if os.environ.get("MILLRACE_TIMES_BEGUN_AGAIN", "0") != "{until}":
    begin_again(Again(saved=False, resumes={resumes}, suspects="[]", paused={paused}), signals.asked)
    print("asked to stop", flush=True)
"""
ROOT = Path(__file__).parents[3]
WITHIN_S = 60.0


def started(
    folder: Path, *more: str, until: int, resumes: bool = False, times: int = 0, paused: bool = False
) -> subprocess.Popen[str]:
    program = folder / "program.py"
    program.write_text(PROGRAM.format(resumes=resumes, until=until, paused=paused))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MILLRACE_TIMES_BEGUN_AGAIN": str(times)}
    command = [sys.executable, str(program), "run", "--start-over", "--until", "now", *more]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def test_what_was_started_over_is_resumed_from_number_0_on(tmp_path: Path) -> None:
    for resumes, second in ((True, "run --until now"), (False, "run --start-over --until now")):
        with started(tmp_path, resumes=resumes, until=1) as process:
            said, _ = process.communicate(timeout=WITHIN_S)
        assert said.splitlines() == [f"{process.pid} run --start-over --until now", f"{process.pid} {second}"]


def test_it_comes_up_paused_where_it_was_paused_and_not_where_it_was_only_started_so(tmp_path: Path) -> None:
    for began, paused, second in (
        ((), True, " --paused"),
        (("--paused",), False, ""),
        (("--paused",), True, " --paused"),
    ):
        with started(tmp_path, *began, until=1, paused=paused) as process:
            said, _ = process.communicate(timeout=WITHIN_S)
        assert said.splitlines()[1] == f"{process.pid} run --start-over --until now{second}"


def test_a_stop_in_the_pause_before_it_begins_again_ends_it(tmp_path: Path) -> None:
    with started(tmp_path, until=99, times=6) as process:
        assert process.stdout is not None
        process.stdout.readline()
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=WITHIN_S)[0] == "asked to stop\n"
        assert time.monotonic() - began < 15, "the pause is one of 30 s"
        assert process.returncode == 0
