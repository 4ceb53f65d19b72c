"""A record that kills the process: after three starts that got nowhere the next is paused, and names it."""

import re
import shlex
import signal
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import pytest
from typer.testing import CliRunner

from millrace.app.cli.command_list import application
from millrace.training.ledger.offset_checksum import Evidence
from tests.faults.conftest import MakeProject, MakeStream
from tests.faults.harness.doom import ABORTS, Doom, hazardous
from tests.faults.harness.process import Run
from tests.faults.harness.project import Project
from tests.faults.harness.records import ExpectedPosition
from tests.faults.harness.shelf import Shelf

pytestmark = [pytest.mark.row(21), pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(900)]
PARTITIONS, RECORDS = 2, 600
DEADLY = ExpectedPosition(1, 300)
STARTS = 3


def _problem(run: Run) -> Mapping[str, Any]:
    (problem,) = run.status()["problems"]
    return dict(problem)


def _fixes(run: Run) -> str:
    return " ".join(problem["fix"] for problem in run.status().get("problems", []))


def _carry_out(fix: str, made: Project) -> dict[int, range]:
    """Run the command that the problem gives; what it passes over."""
    found = re.search("`millrace (.+)`", fix)
    assert found is not None, fix
    arguments = [str(made.config) if word == "CONFIG" else word for word in shlex.split(found[1])]
    done = CliRunner().invoke(application, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    skips = re.findall(r":(\d+):(\d+)-(\d+)", fix)
    return {int(partition): range(int(first), int(last) + 1) for partition, first, last in skips}


def test_a_record_that_kills_the_process_is_named_by_a_paused_start_and_skipped(
    stream: MakeStream, project: MakeProject
) -> None:
    topic = stream(PARTITIONS)
    topic.write(RECORDS, Doom(place=DEADLY, curse=ABORTS))
    made = hazardous(project, topic, checkpoints={"every": "1h"})
    for _ in range(STARTS):
        with Run(made) as run:
            assert run.exit_code() == -signal.SIGABRT, run.tail()

    with Run(made, "--until", "now") as run:
        run.wait_for(lambda: run.state() == "paused", "it was paused")
        run.wait_for(lambda: run.status()["stream"]["partitions"]["assigned"] == PARTITIONS, "it was at work")
        assert run.ask("GET", "/livez")[0] == HTTPStatus.OK
        status, unready = run.ask("GET", "/readyz")
        assert status == HTTPStatus.SERVICE_UNAVAILABLE
        problem = _problem(run)
        assert problem["problem"] == "crash_loop"
        assert problem["what"].startswith(f"Paused: {STARTS} starts in a row died in a call")
        assert unready["reasons"] == [problem["what"].replace("Paused", "paused").rstrip(".")]
        skipped = _carry_out(problem["fix"], made)
        assert DEADLY.offset in skipped[DEADLY.partition]
        run.wait_for(lambda: "was ordered since" in _fixes(run), "it was paused again, and knew of the order")
        assert run.ask("POST", "/resume")[0] == HTTPStatus.OK
        run.finish()

    end = Shelf(made.folder).newest()
    assert end is not None
    for partition in range(PARTITIONS):
        passed = skipped.get(partition, range(0))
        assert end.seen[partition] == Evidence.of(offset for offset in range(RECORDS) if offset not in passed)
        account = end.ledger[partition]
        assert account.balanced
        assert (account.position, sum(account.skipped.values())) == (RECORDS, len(passed))
    assert made.folder.started_terms() == [], "who ends well leaves nothing to be judged by"
