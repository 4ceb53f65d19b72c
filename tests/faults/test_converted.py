"""The fork server has converted what a start of a trainer would convert: starts of forks stay cheap."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tensorflow.python.autograph.impl import api

from app.service.model_setup import build_learner, prove
from app.settings import load
from tests.faults.harness.converted import CALLED, ROOTS
from tests.faults.harness.project import Project
from tests.faults.harness.topics import Topic

pytestmark = pytest.mark.tensorflow
PACKAGES = ("training", "pipelines")


def test_the_fork_server_has_converted_what_a_start_of_a_trainer_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[tuple[str, bool]] = set()
    transform = api._TRANSPILER.transform_function

    def noted(function: Any, context: Any) -> Any:
        if function.__module__.startswith(PACKAGES) and "<locals>" not in function.__qualname__:
            seen.add((function.__qualname__, context.options.user_requested))
        return transform(function, context)

    monkeypatch.setattr(api._TRANSPILER, "transform_function", noted)
    topic = cast(Topic, SimpleNamespace(name="none", bootstrap="127.0.0.1:1"))
    settings = load(Project(tmp_path, topic).config, {}).settings
    prove(build_learner(settings), settings)
    listed = {(function.__qualname__, True) for function in ROOTS} | {(one.__qualname__, False) for one in CALLED}
    assert seen == listed
