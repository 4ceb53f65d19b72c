"""Row 40: an exporter and its trainer are killed; whoever reads the folder of exports sees whole versions only."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.campaigns.exports import wage

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(900), pytest.mark.row(40)]
KILLS = 2
FORMATS = ("saved_model",)
"""One of several files; the campaign of the proof has others beside it."""


def test_no_half_version_is_ever_seen_whoever_is_killed_while_exporting(
    broker: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = int(time.time())
    print(f"seed {seed}")  # noqa: T201 - by it a failed run is repeated
    figures = wage(broker, tmp_path, kills=KILLS, seed=seed, on_strike=print, formats=FORMATS)
    record_property("exports", figures.summary())
    assert (figures.kills, figures.half_versions, figures.disagreeing, figures.left_over) == (KILLS, 0, 0, 0)
    assert figures.versions > 0
