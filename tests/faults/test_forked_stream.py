"""A model that is forked goes on where its origin was in the stream: each record is learnt once, or again by order."""

import copy
import json
import os

import pytest

from tests.faults.conftest import MakeProject, MakeStream
from tests.faults.harness.fork_server import run_forked
from tests.faults.harness.process import Run
from tests.faults.harness.project import Project
from tests.faults.harness.shelf import Shelf

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(600), pytest.mark.row(41)]
BEFORE, AFTER = 400, 200
LAYER = "        hidden = keras.layers.Dropout(0.3)(hidden)\n"


def forked(old: Project, name: str, *more: str) -> Project:
    """Fork the newest checkpoint into a model with a layer more."""
    new = copy.copy(old)
    new.name, new.config = name, old.path / f"{name}.yaml"
    model = (old.path / "model.py").read_text()
    wider = model.replace(LAYER, f'{LAYER}        hidden = keras.layers.Dense(16, name="extra")(hidden)\n')
    assert wider != model
    (old.path / f"{name}.py").write_text(wider)
    settings = json.loads(old.config.read_text())
    settings |= {"name": name, "model": {"build": f"./{name}.py:build_model"}}
    new.config.write_text(json.dumps(settings))
    command = ["fork", f"{old.name}@latest", "--as", name, "-c", str(new.config), *more]
    done = run_forked(command, cwd=old.path, env=os.environ, timeout=240)
    assert done.returncode == 0, done.stderr
    return new


def sums(*ids: range) -> tuple[int, int, int]:
    """Return what the model has counted after learning these ids."""
    return sum(map(len, ids)), sum(map(sum, ids)), sum(i * i for each in ids for i in each)


def test_a_fork_learns_on_from_the_position_and_a_replay_learns_again(stream: MakeStream, project: MakeProject) -> None:
    topic = stream()
    topic.write(BEFORE)
    old = project(topic)
    with Run(old, "--until", "now") as run:
        run.finish()
    on, again = forked(old, "on"), forked(old, "again", "--from", "earliest")
    topic.write(AFTER)
    first, all_of_it = range(BEFORE), range(BEFORE + AFTER)
    for made, learnt in ((on, (all_of_it,)), (again, (first, all_of_it)), (old, (all_of_it,))):
        with Run(made, "--until", "now") as run:
            run.finish()
        last = Shelf(made.folder).newest()
        assert last is not None
        assert last.positions == {0: BEFORE + AFTER}
        assert last.ids[0] == sums(*learnt), made.name
