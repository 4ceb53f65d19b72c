from pathlib import Path

import pytest

from millrace.training.model.setup.cores import quota, usable_cores


@pytest.mark.parametrize(
    ("limit", "cores"), [("200000 100000", 2), ("150000 100000", 2), ("50000 100000", 1), ("max 100000", None)]
)
def test_a_pods_limit_bounds_the_cores_and_is_rounded_up(tmp_path: Path, limit: str, cores: int | None) -> None:
    (tmp_path / "cpu.max").write_text(f"{limit}\n")
    assert quota(tmp_path) == cores


@pytest.mark.parametrize(("limit", "cores"), [("300000", 3), ("-1", None)])
def test_the_older_kind_of_group_is_understood_as_well(tmp_path: Path, limit: str, cores: int | None) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(f"{limit}\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert quota(tmp_path) == cores


def test_without_groups_there_is_no_limit_and_always_a_core(tmp_path: Path) -> None:
    assert quota(tmp_path) is None
    assert usable_cores() >= 1
