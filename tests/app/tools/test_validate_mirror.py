"""`millrace validate`, on the mirror of the checkpoints: whether it can be written to, and what it has."""

import shutil
from pathlib import Path

from millrace.app.settings import load
from millrace.app.tools.validate.check import CheckOutcome, CheckResult
from millrace.app.tools.validate.checkpoint_check import folder_checks
from millrace.training.checkpoints.mirror.mirror import Mirror
from millrace.training.checkpoints.mirror.target import target_at
from tests.app.checkpoint_history import config_in, folder_in, publish_history


def mirror_check(folder: Path, place: Path | str) -> CheckResult:
    """Return what is said of a mirror at this place."""
    settings = load(config_in(folder), {"MILLRACE_CHECKPOINTS__MIRROR": str(place)}).settings
    return next(check for check in folder_checks(settings, None, None) if check.name == "mirror")


def test_a_mirror_that_can_be_written_to_is_left_as_it_was(tmp_path: Path) -> None:
    folder, place = folder_in(tmp_path), tmp_path / "mirror"
    publish_history(folder, steps=2)
    target = target_at(place, folder.root.name)
    found = mirror_check(tmp_path, place)
    assert (found.outcome, found.detail) == (
        CheckOutcome.OK,
        f"{place / folder.root.name} can be written to, and has no checkpoint yet",
    )
    Mirror(target).put(folder, 1, 1)
    before = sorted(place.rglob("*"))
    assert mirror_check(tmp_path, place).detail.endswith("has checkpoints up to 1")
    assert sorted(place.rglob("*")) == before


def test_an_empty_folder_resumes_from_the_mirror(tmp_path: Path) -> None:
    folder, place = folder_in(tmp_path), tmp_path / "mirror"
    publish_history(folder, steps=2)
    Mirror(target_at(place, folder.root.name)).put(folder, 1, 1)
    shutil.rmtree(folder.root)
    settings = load(config_in(tmp_path), {"MILLRACE_CHECKPOINTS__MIRROR": str(place)}).settings
    found = next(check for check in folder_checks(settings, None, None) if check.name == "checkpoint")
    assert (found.outcome, found.detail) == (
        CheckOutcome.OK,
        "none here: a start takes those of the mirror, and resumes from 1",
    )


def test_a_mirror_that_cannot_be_written_to_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    publish_history(folder_in(tmp_path), steps=1)
    (tmp_path / "mirror").write_text("this is a file")
    found = mirror_check(tmp_path, tmp_path / "mirror")
    assert found.outcome is CheckOutcome.FAIL
    assert found.detail.startswith("checkpoints.mirror: ")
    assert found.detail.endswith("name another one, or permit this user to write")
