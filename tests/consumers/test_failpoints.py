"""A failpoint does nothing unless it is armed, and then exactly what was asked for."""

import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.consumers import failpoints
from millrace.consumers.errors import ConfigError
from millrace.consumers.failpoints import NAMES, VARIABLE, FailpointError, arm, failpoint

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    arm("")
    yield
    arm("")


def test_a_point_that_is_not_armed_does_nothing() -> None:
    for name in NAMES:
        failpoint(name)
    arm("save.after_data=raise")
    failpoint("save.before_data")


def test_raise_acts_at_every_hit_after_those_it_ignores() -> None:
    arm("save.after_data=raise:after=2")
    failpoint("save.after_data")
    failpoint("save.after_data")
    for _ in range(2):
        with pytest.raises(FailpointError, match="after_data"):
            failpoint("save.after_data")


def test_once_acts_a_single_time_and_leaves_one_line_on_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    arm("save.before_prune=full:once, commit.after=sleep:0")
    with pytest.raises(OSError, match="space") as caught:
        failpoint("save.before_prune")
    failpoint("save.before_prune")
    failpoint("commit.after")
    assert caught.value.errno == errno.ENOSPC
    lines = capfd.readouterr().err.splitlines()
    assert [line for line in lines if "save.before_prune" in line] == ["failpoint save.before_prune: full"]


@pytest.mark.parametrize(
    "text", ["save.nowhere=kill", "save.after_data", "save.after_data=explode", "commit.after=sleep"]
)
def test_an_impossible_failpoint_is_refused_and_quoted(text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)):
        arm(text)


@pytest.mark.parametrize("action", ["kill", "stop"])
def test_the_environment_arms_a_process_which_writes_a_line_and_dies_or_stops(action: str) -> None:
    code = (
        "from millrace.consumers.failpoints import failpoint; failpoint('commit.before'); print('ran on', flush=True)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={VARIABLE: f"commit.before={action}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    assert child.stderr.readline() == f"failpoint commit.before: {action}\n"
    if action == "stop":
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        child.send_signal(signal.SIGCONT)
    out, _ = child.communicate(timeout=30)
    assert (child.returncode, out) == ((-signal.SIGKILL, "") if action == "kill" else (0, "ran on\n"))


def test_every_failpoint_in_the_code_is_in_the_list() -> None:
    sources = [path for stage in ("consumers", "pipelines", "training", "app") for path in (ROOT / stage).rglob("*.py")]
    used = {name for path in sources for name in re.findall(r'\bfailpoint\("([^"]+)"\)', path.read_text())}
    assert used
    assert used <= failpoints.NAMES.keys()
