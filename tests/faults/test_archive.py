"""Row 32: the archiver, killed while records arrive; each offset is in one shard, as it was produced."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.campaigns.archive_kills import RECORDS_A_KILL, wage

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(600), pytest.mark.row(32)]
CI_KILLS = 3
"""One of them at a failpoint."""
S3_KILLS = 6
"""Two of them at failpoints."""


def test_whenever_an_archiver_is_killed_each_offset_is_in_one_shard(
    broker: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = int(time.time())
    print(f"seed {seed}")  # noqa: T201 - by it a failed run is repeated
    figures = wage(broker, tmp_path, kills=CI_KILLS, seed=seed, on_strike=print)
    record_property("archive", figures.summary())
    assert (figures.kills, figures.records) == (CI_KILLS, CI_KILLS * RECORDS_A_KILL)
    assert (figures.missing, figures.twice, figures.changed) == (0, 0, 0)
    assert (figures.damaged, figures.left_over) == (0, 0)


@pytest.mark.nightly  # in the gate one is killed that writes to a folder
def test_whenever_an_archiver_to_s3_is_killed_each_offset_is_in_one_shard(
    broker: str, bucket: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = int(time.time())
    print(f"seed {seed}")  # noqa: T201 - by it a failed run is repeated
    figures = wage(broker, tmp_path, kills=S3_KILLS, seed=seed, on_strike=print, place=bucket)
    record_property("archive in s3", figures.summary())
    assert (figures.kills, figures.records) == (S3_KILLS, S3_KILLS * RECORDS_A_KILL)
    assert (figures.missing, figures.twice, figures.changed) == (0, 0, 0)
    assert (figures.damaged, figures.left_over) == (0, 0)
