"""`millrace local group` as a user types it: real trainers, a real broker, and a worker that is killed."""

import os
import signal
from pathlib import Path

import pytest

from tests.faults.conftest import MakeStream
from tests.faults.harness.local_group import LocalGroup

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(600), pytest.mark.row(31)]


def test_one_command_runs_a_group_that_survives_the_kill_of_a_worker(stream: MakeStream, tmp_path: Path) -> None:
    topic = stream(4)
    topic.write(500)
    with LocalGroup(tmp_path, topic, "--workers", "2") as group:
        group.wait_until(lambda: group.settled() > 1000, "the group learns")
        assert [one["worker"] for one in group.started()] == ["chief", "worker 1"]
        os.kill(group.started()[1]["pid"], signal.SIGKILL)
        topic.write(500)
        group.assert_learnt_once()
        assert [one["worker"] for one in group.started()] == ["chief", "worker 1", "worker 1"]
        assert "worker 1 | " in group.tails()
        assert not (group.project.path / "checkpoints" / "worker-1").exists()
        pids = [one["pid"] for one in group.started()]
        group.process.send_signal(signal.SIGINT)
        assert group.process.wait(60) == 0, group.tails()
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
        group.assert_learnt_once()


@pytest.mark.nightly  # in the gate other processes stand in for the trainers: the command ends with its chief
def test_a_local_group_ends_by_itself_once_all_is_learnt(stream: MakeStream, tmp_path: Path) -> None:
    topic = stream(3)
    topic.write(500)
    with LocalGroup(tmp_path, topic, "--workers", "2", "--until", "now") as group:
        assert group.process.wait(180) == 0, group.tails()
        group.assert_learnt_once()
        assert len(group.started()) == 2
