"""`millrace export` before anything is loaded: what it needs, and what it says where that is not there."""

from pathlib import Path

import pytest

from tests.app.checkpoint_history import config_in
from tests.app.cli.conftest import Typed


def test_without_a_folder_it_says_which_setting_to_write(typed: Typed, tmp_path: Path) -> None:
    done = typed("export", "-c", str(config_in(tmp_path)))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "export.path: it is not set; name the folder" in done.stderr


@pytest.mark.parametrize("which", ["newest", "-1", "1.5"])
def test_what_is_no_checkpoints_number_is_a_usage_error(typed: Typed, tmp_path: Path, which: str) -> None:
    assert typed("export", "-c", str(config_in(tmp_path)), "--", which).returncode == 2
