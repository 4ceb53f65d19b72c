"""The checkpoints are gone, as after a wrong mount: the commits show it, and the policy says what happens.

What a start does then, `validate` has told before.
"""

import json
import os
import shutil

import pytest

from tests.faults.conftest import MakeProject, MakeStream
from tests.faults.harness.fork_server import run_forked
from tests.faults.harness.process import Run
from tests.faults.harness.project import Project
from tests.faults.harness.shelf import Shelf

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(900)]


def test_a_start_whose_checkpoints_are_gone_is_refused_or_says_what_it_learns_again(
    stream: MakeStream, project: MakeProject
) -> None:
    topic = stream()
    topic.write(500)
    first = project(topic)
    with Run(first, "--until", "now") as run:
        run.finish()
        assert "has learnt before" not in run.log()
    shutil.rmtree(first.path / "checkpoints")

    refusing = project(topic, "refusing", checkpoints={"on_missing": "fail"})
    exit_code, outcome, said = _foretold(refusing)
    assert (exit_code, outcome) == (4, "fail")
    assert "so this name has learnt before: mount its volume" in said
    with Run(refusing) as run:
        assert run.exit_code() == 4, run.tail()
        assert "checkpoints.on_missing: fail" in run.log().splitlines()[-1]
    assert Shelf(refusing.folder).numbers() == []

    exit_code, outcome, said = _foretold(first)
    assert (exit_code, outcome) == (0, "warn")
    assert "500 offsets are learnt once more" in said
    with Run(first) as run:
        run.wait_for(lambda: run.settled() == 500, "all was learnt again")
        assert "500 offsets are learnt once more" in run.log()
        (problem,) = run.status()["problems"]
        assert problem["problem"] == "history_missing"
        run.terminate()
        assert run.exit_code() == 0, run.tail()
    with Run(first, "--until", "now") as run:
        run.finish()
        assert "has learnt before" not in run.log(), "its checkpoints are there again"


def _foretold(project: Project) -> tuple[int, str, str]:
    done = run_forked(["validate", "-c", str(project.config), "--json"], cwd=project.cwd, env=os.environ)
    (check,) = [check for check in json.loads(done.stdout)["checks"] if check["name"] == "checkpoint"]
    return done.returncode, check["outcome"], check["detail"]
