"""Row 34: a checkpoint is made again of its records alone, to the bit, whatever has happened to the run."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.faults.campaigns.exactness import EVERYTHING, MEMBERS
from tests.faults.campaigns.rebuild import rebuild_some

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(900), pytest.mark.row(34)]
KILLS = 2


@pytest.mark.nightly  # in the gate a run with a join is rebuilt
@pytest.mark.parametrize("shaped", [EVERYTHING, MEMBERS], ids=["everything", "members"])
def test_checkpoints_of_a_run_with_kills_a_rewind_and_a_skip_are_rebuilt_to_the_bit(
    broker: str,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
    bucket: str,
    shaped: Mapping[str, Mapping[str, Any]],
) -> None:
    """The archive is in S3: what is rebuilt from a folder is rebuilt from there."""
    seed = int(time.time())
    print(f"seed {seed}")  # noqa: T201 - by it a failed run is repeated
    figures = rebuild_some(broker, tmp_path, kills=KILLS, seed=seed, cold=False, shaped=shaped, place=bucket)
    record_property("rebuild", figures.summary())
    assert figures.kills == KILLS
    assert figures.told_otherwise == []
    assert figures.max_weight_difference == 0
    assert len(figures.rebuilt) == 3
