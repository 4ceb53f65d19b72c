"""A trainer on a volume that its own checkpoints fill: it learns on, restarts, and obeys `keep`, although killed."""

import pytest

from tests.faults.conftest import MakeProject, MakeStream
from tests.faults.harness.process import Run
from tests.faults.harness.project import Project
from tests.faults.harness.shelf import Shelf
from tests.training.checkpoints.small_volume import small_volume

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(900), pytest.mark.row(29)]
VOLUME = 16_000_000


def test_a_trainer_whose_checkpoints_fill_the_volume_learns_on_and_restarts(
    stream: MakeStream, project: MakeProject
) -> None:
    topic = stream()
    made = project(topic, checkpoints={"every": "5 steps", "keep": {"last": 1}})
    _enlarge(made)
    with small_volume(made.path / "checkpoints", VOLUME):
        topic.flow(500)
        with Run(made, failpoints="save.after_data=kill:after=6") as run:
            run.wait_for(lambda: not run.alive, "it was killed in a save, with four checkpoints on the volume")
            assert run.hits("save.after_data") == 1
        with Run(made) as run:
            run.wait_for(lambda: run.said(" is durable: ") > 6, "it saved again and again")
            topic.still()
            run.wait_for(lambda: run.settled() == topic.records, "all was settled")
            run.terminate()
            assert run.exit_code() == 0, run.tail()
            assert "a checkpoint failed" not in run.log()
        shelf = Shelf(made.folder)
        end = shelf.newest()
        assert end is not None
        assert end.manifest.size > 3_500_000
        assert shelf.numbers() == [0, end.number - 1, end.number]
        assert shelf.contents().torn == 0
        assert end.seen == {0: topic.evidence(0)}


def _enlarge(made: Project) -> None:
    """Give the model a state of 3.6 MB."""
    model = made.path / "model.py"
    source = model.read_text()
    assert "Dense(16," in source
    model.write_text(source.replace("Dense(16,", "Dense(50_000,"))
