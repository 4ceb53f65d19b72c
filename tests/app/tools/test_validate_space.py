"""`millrace validate`, on the room for checkpoints: what a start needs, and what `checkpoints.keep` asks for."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millrace.app.settings import load
from millrace.app.tools.validate.check import CheckOutcome, CheckResult
from millrace.app.tools.validate.checkpoint_check import folder_checks
from tests.app.checkpoint_history import config_in, folder_in, publish_history

KEPT = 20
"""What the config of the history keeps; beside them there are the beginning, and the one that is being written."""


def space(folder: Path, state_bytes: int) -> CheckResult:
    """Return the check of a model whose state has this size."""
    learner = cast("Any", SimpleNamespace(state_bytes=state_bytes))
    checks = folder_checks(load(config_in(folder)).settings, learner, None)
    return next(check for check in checks if check.name == "space")


@pytest.fixture(params=[False, True], ids=["first start", "with checkpoints"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param:
        publish_history(folder_in(tmp_path), steps=2)
    return tmp_path


def test_a_small_model_has_room(folder: Path) -> None:
    assert space(folder, 1000).outcome is CheckOutcome.OK


def test_without_room_for_one_checkpoint_a_start_is_refused(folder: Path) -> None:
    found = space(folder, 10**18)
    assert found.outcome is CheckOutcome.FAIL
    assert "free" in found.detail


def test_too_little_room_for_all_that_keep_asks_for_is_a_warning(tmp_path: Path) -> None:
    publish_history(folder_in(tmp_path), steps=2)
    found = space(tmp_path, shutil.disk_usage(tmp_path).free // (KEPT // 2))
    assert found.outcome is CheckOutcome.WARN
    assert f"checkpoints.keep asks for up to {KEPT + 2} checkpoints" in found.detail
    assert "keep fewer, or make the volume larger" in found.detail
