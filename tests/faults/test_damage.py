"""Damaged checkpoints, by a real start: it goes back along the parents, and begins anew only when told to."""

import pytest

from tests.faults.conftest import MakeProject, MakeStream
from tests.faults.harness.process import Run
from tests.faults.harness.project import Project
from tests.faults.harness.shelf import Shelf, Statement
from tests.faults.harness.topics import Topic

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(900)]
PARTITIONS = 2
DATA_LOSS = 4


def _learn(project: Project, *arguments: str) -> Run:
    with Run(project, "--until", "now", *arguments) as run:
        run.finish()
    return run


def _damage(project: Project, number: int) -> None:
    path = project.folder.checkpoint(number) / "optimizer.safetensors"
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def _all_learnt_once(project: Project, topic: Topic) -> Statement:
    newest = Shelf(project.folder).newest()
    assert newest is not None
    assert newest.seen == {partition: topic.evidence(partition) for partition in range(PARTITIONS)}
    return newest


@pytest.mark.row(17)
@pytest.mark.law
def test_a_start_on_a_damaged_checkpoint_resumes_from_its_parent(stream: MakeStream, project: MakeProject) -> None:
    topic = stream(PARTITIONS)
    made = project(topic, checkpoints={"every": "1h"})
    for _ in range(2):
        topic.write(300)
        _learn(made)
    parent, newest = Shelf(made.folder).numbers()[-2:]
    _damage(made, newest)
    run = _learn(made)
    assert run.went_on_from() == parent
    assert _all_learnt_once(made, topic).manifest.parent == parent
    assert newest in Shelf(made.folder).numbers(), "what is damaged is left for people to look at"


@pytest.mark.row(18)
def test_a_start_on_damaged_checkpoints_alone_is_refused_until_start_over(
    stream: MakeStream, project: MakeProject
) -> None:
    topic = stream(PARTITIONS)
    topic.write(300)
    made = project(topic, checkpoints={"every": "1h"})
    _learn(made)
    numbers = Shelf(made.folder).numbers()
    for number in numbers:
        _damage(made, number)
    with Run(made, "--until", "now") as run:
        assert run.exit_code() == DATA_LOSS, run.tail()
    assert "Traceback" not in run.log()
    assert "--start-over" in run.log()
    assert Shelf(made.folder).numbers() == numbers, "a start that was refused has published nothing"

    _learn(made, "--start-over")
    assert _all_learnt_once(made, topic).number > max(numbers)
