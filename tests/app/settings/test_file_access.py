"""Which files of secrets every user of the machine can read."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from millrace.app.settings.secret_files import exposure


def test_a_file_that_others_can_read_is_named_with_the_command_that_mends_it(token: Path) -> None:
    assert exposure(token) == f"every user of this machine can read {token}; make it private: chmod 600 {token}"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o440, 0o400])
def test_a_file_of_the_owner_or_a_group_is_private(token: Path, mode: int) -> None:
    token.chmod(mode)
    assert exposure(token) is None


def test_a_file_below_a_folder_that_shuts_others_out_is_private(token: Path) -> None:
    token.parent.chmod(0o700)
    assert exposure(token) is None


def test_the_file_behind_a_link_is_what_counts(token: Path, tmp_path: Path) -> None:
    link = tmp_path / "ops"
    link.symlink_to(token)
    assert exposure(link) is not None
    token.chmod(0o440)
    assert exposure(link) is None


def test_a_file_on_a_read_only_mount_is_private(token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(path: Path) -> SimpleNamespace:
        return SimpleNamespace(f_flag=statvfs(path).f_flag | os.ST_RDONLY)

    statvfs = os.statvfs
    assert exposure(token) is not None
    monkeypatch.setattr(os, "statvfs", read_only)  # mounting takes rights that tests may lack
    assert exposure(token) is None


def test_a_file_that_is_not_there_is_left_to_its_reader(tmp_path: Path) -> None:
    assert exposure(tmp_path / "nobody") is None
