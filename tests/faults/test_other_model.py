"""A checkpoint of another model, and one that was learnt with other hyperparameters: row 19 of the matrix."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults.conftest import MakeProject, MakeStream
from tests.faults.harness.process import Run
from tests.faults.harness.project import Project
from tests.faults.harness.shelf import Shelf, Statement

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(900), pytest.mark.row(19)]
RECORDS = 300
RATE = "optimizer/optimizer/learning_rate"


def _edit(project: Project, was: str, is_now: str) -> None:
    """Deploy another model.py."""
    path = project.path / "model.py"
    text = path.read_text()
    assert was in text
    path.write_text(text.replace(was, is_now))


def _set(project: Project, section: str, **settings: Any) -> None:
    """Deploy other settings."""
    config = json.loads(project.config.read_text())
    config.setdefault(section, {}).update(settings)
    project.config.write_text(json.dumps(config))


def _contents(folder: Path) -> Mapping[str, str]:
    """Return every file of the checkpoints, by its hash."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _newest(shelf: Shelf) -> Statement:
    newest = shelf.newest()
    assert newest is not None
    return newest


def test_another_model_is_refused_untouched_and_a_changed_rate_follows_the_policy(
    stream: MakeStream, project: MakeProject
) -> None:
    topic = stream()
    topic.write(RECORDS)
    made = project(topic)
    shelf = Shelf(made.folder)
    with Run(made, "--until", "now") as run:
        run.finish()
    assert _newest(shelf).arrays[RATE] == np.float32(1e-2)

    _another_model_is_refused(made)

    _edit(made, "Adam(1e-2)", "Adam(1e-5)")
    topic.write(RECORDS)
    with Run(made) as run:
        run.wait_for(lambda: run.settled() == 2 * RECORDS, "all was learnt")
        training = run.status()["training"]
        assert training["learning_rate"] == 1e-5
        changed = {change.pop("name"): change for change in training["hyperparameters_changed"]}
        assert changed.keys() == {"optimizer.learning_rate", "model.sha256"}
        rate = changed["optimizer.learning_rate"]
        assert rate == {"then": float(np.float32(1e-2)), "now": float(np.float32(1e-5)), "used": "build"}
        run.terminate()
        run.finish()
        assert run.said("learning_rate: 0.01 in the checkpoint, 1e-05 in model and settings; 1e-05 is used") == 1
    assert _newest(shelf).arrays[RATE] == np.float32(1e-5)

    _edit(made, "Adam(1e-5)", "Adam(0.5)")
    _set(made, "training", on_hyperparameter_change="checkpoint")
    topic.write(RECORDS)
    with Run(made, "--until", "now") as run:
        run.finish()
        assert run.said("learning_rate: 1e-05 in the checkpoint, 0.5 in model and settings; 1e-05 is used") == 1
    newest = _newest(shelf)
    assert newest.arrays[RATE] == np.float32(1e-5)
    assert newest.seen == {0: topic.evidence(0)}, "what was refused has changed nothing for those that came after"


def _another_model_is_refused(made: Project) -> None:
    """Check that it is refused with names and shapes, and that nothing is touched."""
    before = _contents(made.folder.checkpoints)
    _edit(made, "Dense(16, activation", 'Dense(24, name="wider", activation')
    with Run(made, "--until", "now") as run:
        assert run.exit_code() == 2, run.tail()
        for text in (
            "millrace: error: the checkpoint holds another model (model): ",
            "wider/kernel is new",
            "dense_1/kernel is gone",
            "dense/kernel is [24, 1] here and [4, 16] there",
            "give the new model a name of its own",
        ):
            assert run.said(text) == 1, run.tail()
        assert run.said("Traceback") == 0, run.tail()
    assert _contents(made.folder.checkpoints) == before
    _edit(made, 'Dense(24, name="wider", activation', "Dense(16, activation")
