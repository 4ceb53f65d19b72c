"""The supervisor of child processes: real processes, ended by their ids."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millrace.app.tools.child_process import (
    ROOT,
    SupervisedProcess,
    cpu_s_of_group,
    end_left_behind,
    python_environment,
    worker_environment,
)

WITHIN_S = 60.0
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); signal.pause()"
OBEDIENT = "import signal; print('ready', flush=True); signal.pause()"


def started(code: str, folder: Path) -> SupervisedProcess:
    """Start a process that has come as far as its first line."""
    child = SupervisedProcess([sys.executable, "-c", code], folder / "child.log", pipes=True)
    assert child.output is not None
    assert child.output.readline() == "ready\n"
    return child


@pytest.mark.parametrize(("code", "by_itself"), [(OBEDIENT, True), (STUBBORN, False)])
def test_a_process_ends_by_sigterm_or_is_killed_when_its_time_is_up(code: str, by_itself: bool, tmp_path: Path) -> None:
    child = started(code, tmp_path)
    with child._process:
        assert child.end(WITHIN_S if by_itself else 0.2) == by_itself
    assert child.exit_code == -(signal.SIGTERM if by_itself else signal.SIGKILL)


def test_ctrl_c_in_the_terminal_does_not_reach_a_child(tmp_path: Path) -> None:
    child = started(OBEDIENT, tmp_path)
    with child._process:
        assert os.getsid(child.pid) == child.pid != os.getsid(0)
        child.kill()


def test_the_last_words_are_a_message_the_exit_code_and_the_log(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    child = SupervisedProcess([sys.executable, "-c", "print('why'); print('   at a place'); exit(3)"], log)
    assert child.wait(WITHIN_S)
    assert child.last_words() == f"why (exit code 3; full log: {log})"
    assert child.last_words(log_stays=False) == "why (exit code 3)"


@pytest.mark.parametrize("environment", [python_environment, lambda: worker_environment({})])
def test_a_child_finds_what_the_users_path_names(
    environment: Callable[[], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    assert environment()["PYTHONPATH"] == f"{ROOT}{os.pathsep}/theirs"
    monkeypatch.delenv("PYTHONPATH")
    assert environment()["PYTHONPATH"] == str(ROOT)


@pytest.fixture
def left() -> Iterator[subprocess.Popen[bytes]]:
    """A process that nobody supervises, as after a kill of its parent."""
    command = [sys.executable, "-c", "import sys; print('ready', flush=True); sys.stdin.read()", "its-marker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_a_process_left_behind_is_ended(left: subprocess.Popen[bytes]) -> None:
    end_left_behind(left.pid, "its-marker", WITHIN_S)
    assert left.wait(WITHIN_S) == -signal.SIGTERM


def test_a_process_with_a_reused_id_is_left_alone(left: subprocess.Popen[bytes]) -> None:
    end_left_behind(left.pid, "another-marker", WITHIN_S)
    assert left.poll() is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_the_cpu_time_of_a_group_is_read_beside_a_process_whose_name_is_no_text() -> None:
    code = (
        "import time; open('/proc/self/comm', 'wb').write(b'\\xff) 1'); print(sum(range(10**7)), flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert cpu_s_of_group(child.pid) > 0
        assert cpu_s_of_group(-1) == 0
        child.communicate(b"\n")
