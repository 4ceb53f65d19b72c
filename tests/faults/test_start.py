"""Killed before the first save: the beginning is a checkpoint too."""

import signal

import pytest

from tests.faults.conftest import MakeProject, MakeStream
from tests.faults.harness.process import Run
from tests.faults.harness.shelf import Shelf
from training.evidence import Evidence

pytestmark = [pytest.mark.faults, pytest.mark.broker, pytest.mark.timeout(900)]
PARTITIONS = 2


def test_latest_skips_nothing_that_came_after_the_beginning_though_killed_before_any_save(
    stream: MakeStream, project: MakeProject
) -> None:
    topic = stream(PARTITIONS)
    topic.write(50)
    made = project(topic, kafka={"start": "latest"}, checkpoints={"every": "1h"})
    shelf = Shelf(made.folder)

    for point, written in (("start.after_zero", 70), ("call.settled", 30)):
        with Run(made, failpoints=f"{point}=kill") as run:
            assert run.exit_code() == -signal.SIGKILL, run.tail()
            assert run.hits(point) == 1
        assert shelf.numbers() == [0], "killed before the first save"
        topic.write(written)

    with Run(made, "--until", "now") as run:
        run.finish()
        assert run.went_on_from() == 0
    newest = shelf.newest()
    assert newest is not None
    for partition in range(PARTITIONS):
        account = newest.ledger[partition]
        assert (account.start, account.position, account.learnt) == (50, 150, 100)
        assert newest.seen[partition] == Evidence.of(range(50, 150))
