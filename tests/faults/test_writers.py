"""Others want what is ours: a stranger in the group, a second trainer, a zombie. One learns; nothing is lost."""

import re

import pytest

from millrace.training.errors import FolderBusyError, PassedError
from tests.faults.conftest import MakeProject, MakeStream
from tests.faults.harness.account import assert_learnt_once
from tests.faults.harness.disturbances import disturbed
from tests.faults.harness.kafka import committed
from tests.faults.harness.process import Run
from tests.faults.harness.shared import SharedTrainer
from tests.faults.harness.shelf import Shelf
from tests.faults.harness.station import Station
from tests.faults.harness.strangers import StrangerInGroup, ZombieTrainer
from tests.faults.harness.topics import Topic

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(900)]

VISITS = 3
ZOMBIE_S = 20.0


def _refused(run: Run) -> int:
    return int(run.ask("GET", "/lag")[1]["commits"]["refused"].get("CommitFailedError", 0))


@pytest.mark.row(9)
def test_a_stranger_who_joins_and_leaves_our_group_does_not_affect_the_learning(
    station: Station, straight: SharedTrainer
) -> None:
    run, topic, group = straight.run, straight.topic, straight.project.group
    topic.flow(1000)
    with disturbed(StrangerInGroup(station.straight, group, topic.name)) as stranger:
        run.wait_for(lambda: stranger.hits >= VISITS and _refused(run) >= VISITS, "commits were refused")
        problems = [problem["what"] for problem in run.status()["problems"]]
        assert any(f"other consumers are in the group {group}" in what for what in problems), problems
        goal = (run.settled() or 0) + 1000
        run.wait_for(lambda: (run.settled() or 0) >= goal, "it learnt in the midst of it")
    topic.still()
    statement = assert_learnt_once(run, topic)
    run.wait_for(
        lambda: committed(station.straight, group, topic.name, topic.partitions) == statement.positions,
        "its commits went through again",
    )


@pytest.mark.row(11)
def test_a_second_trainer_on_a_folder_is_refused_in_one_line_and_the_first_goes_on(
    straight: SharedTrainer, project: MakeProject
) -> None:
    first, topic = straight.run, straight.topic
    second = project(topic, "second", checkpoints={"path": str(straight.project.path / "checkpoints")})
    with Run(second) as run:
        assert run.exit_code() == FolderBusyError.exit_code, run.tail()
        errors = [line for line in run.log().splitlines() if line.startswith("millrace: ")]
        assert len(errors) == 1, run.tail()
        assert re.search(rf"held by millrace run \S+ \(process {first.pid} on .*: stop that trainer first", errors[0])
        assert "Traceback" not in run.log()
    topic.write(100)
    assert_learnt_once(first, topic)


@pytest.mark.row(10)
def test_what_a_zombie_publishes_is_never_loaded_and_it_ends_by_itself(
    stream: MakeStream, project: MakeProject
) -> None:
    topic: Topic = stream(2)
    own = project(topic, "own")
    heirs = project(topic, "heir", checkpoints={"path": str(own.path / "checkpoints")})
    shelf = Shelf(own.folder)
    topic.write(500)
    with Run(own, failpoints="save.after_manifest=stop:after=1") as zombie:
        zombie.wait_for(lambda: zombie.hits("save.after_manifest"), "it stood still in the middle of a save")
        with Run(heirs) as heir:
            with disturbed(ZombieTrainer(zombie)):
                passed_after = max(shelf.numbers())
                topic.write(500)
                assert_learnt_once(heir, topic, shelf)
                assert heir.went_on_from() == passed_after
            assert zombie.exit_code(ZOMBIE_S) == PassedError.exit_code, zombie.tail()
            assert "took over" in zombie.tail()
            topic.write(500)
            newest = assert_learnt_once(heir, topic, shelf)
            later = [number for number in shelf.contents().good if number > passed_after]
            assert {shelf.statement(number).manifest.term for number in later} == {newest.manifest.term}
            heir.wait_for(
                lambda: committed(topic.bootstrap, own.group, topic.name, topic.partitions) == newest.positions,
                "what the heir has learnt was committed",
            )
