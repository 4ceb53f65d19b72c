"""Killed around a commit: what is committed is what was durable before, and the next start catches up."""

import signal

import pytest

from tests.faults.conftest import MakeProject, MakeStream
from tests.faults.harness.kafka import committed
from tests.faults.harness.process import Run
from tests.faults.harness.shelf import Shelf

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(900), pytest.mark.row(2)]
PARTITIONS = 2


@pytest.mark.law
def test_a_kill_around_a_commit_leaves_the_offsets_of_a_durable_checkpoint(
    stream: MakeStream, project: MakeProject
) -> None:
    topic = stream(PARTITIONS)
    made = project(topic)
    shelf = Shelf(made.folder)
    topic.write(300)
    topic.flow(500)

    def offsets() -> dict[int, int | None]:
        return committed(topic.bootstrap, made.group, topic.name, PARTITIONS)

    with Run(made, failpoints="commit.before=kill:after=2") as run:
        assert run.exit_code() == -signal.SIGKILL, run.tail()
        assert run.hits("commit.before") == 1
    *_, before, durable = shelf.numbers()
    assert shelf.contents().bad == ()
    assert offsets() == shelf.statement(before).positions, "durable, and nobody was told yet"

    with Run(made, failpoints="commit.after=kill") as run:
        assert run.exit_code() == -signal.SIGKILL, run.tail()
        assert run.went_on_from() == durable
    newest = shelf.newest()
    assert newest is not None
    assert newest.number > durable
    assert offsets() == newest.positions

    topic.still()
    with Run(made, "--until", "now") as run:
        run.finish()
        assert run.went_on_from() == newest.number
    end = shelf.newest()
    assert end is not None
    assert end.seen == {partition: topic.evidence(partition) for partition in range(PARTITIONS)}
    assert offsets() == end.positions
