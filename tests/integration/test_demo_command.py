"""`millrace demo` is killed, leaves nothing running, goes on where it was, and ends by Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

import pytest

from millrace.app.settings.environment import of_others
from millrace.app.tools.demo.drifting_stream import RECORDS_PER_S
from millrace.app.tools.local_broker.broker import free_port
from tests.conftest import WaitFor

ROOT = Path(__file__).parents[2]
PATIENCE_S = 240.0
FAR_ENOUGH_S = 30.0
"""The second of the stream that ends the test: before its first drift, which `make demo-check` waits for."""


@contextmanager
def demo(folder: Path, said: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a demo in a process of its own; kill what is left of it."""
    command = [
        sys.executable,
        "-c",
        "from millrace.app.cli import main; main()",
        "demo",
        "--plain",
        "--folder",
        str(folder),
    ]
    with said.open("wb") as log:
        process = subprocess.Popen(
            [*command, *arguments], stdout=log, stderr=log, env=of_others() | {"PYTHONPATH": str(ROOT)}
        )
    with process:
        try:
            yield process
        finally:
            process.kill()


def pids(folder: Path) -> list[int]:
    """Return the processes that it has started: broker, trainer and judge."""
    files = folder / "broker" / "broker.json", folder / "trainer.pid", folder / "judge.pid"
    return [int(json.loads(file.read_text())["pid"]) for file in files]


def running(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def watched(process: subprocess.Popen[bytes], said: Path) -> bool:
    """Return whether it shows a checkpoint that has learnt something."""
    assert process.poll() is None, said.read_text()
    return "  Checkpoint 2, " in said.read_text()


def reached_s(port: int) -> float:
    """Return which second of the stream the trainer has learnt; 0 while it does not answer."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/status", timeout=5) as answer:
            return float(json.load(answer)["records"]["offsets"]) / RECORDS_PER_S
    except (OSError, HTTPException):
        return 0.0


def went_on(process: subprocess.Popen[bytes], said: Path, port: int) -> bool:
    """Return whether it has said what the checkpoint held, and learns on."""
    assert process.poll() is None, said.read_text()
    return "lost 0, learnt twice 0" in said.read_text() and reached_s(port) > FAR_ENOUGH_S


@pytest.mark.nightly  # in the gate trainers of other topics are killed, and an installed demo learns
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_demo_loses_nothing_and_repeats_nothing(tmp_path: Path, wait_for: WaitFor) -> None:
    folder, said = tmp_path / "demo", tmp_path / "first.log"
    with demo(folder, said) as process:
        wait_for(lambda: watched(process, said), PATIENCE_S)
        started = pids(folder)
        assert all(map(running, started))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        wait_for(lambda: not any(map(running, started)), 30)

    again, port = tmp_path / "second.log", free_port()
    with demo(folder, again, "--check", "--port", str(port)) as process:
        wait_for(lambda: went_on(process, again, port), 2 * PATIENCE_S)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, again.read_text()
        assert not any(map(running, pids(folder)))

    report = json.loads((folder / "report.json").read_text())
    resumed, last = report["resumed_from"], report["witness"]
    assert resumed["checkpoint"] >= 2
    assert resumed["learnt"] > 0
    assert last["learnt"] >= resumed["learnt"]
    assert {one[key] for one in (resumed, last) for key in ("lost", "learnt_twice")} == {0}
    assert report["broken"] == []
