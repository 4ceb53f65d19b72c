"""An ordinary stream through kills: filtered, scaled by running figures, remembered by class, beside a golden set."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.campaigns.exactness import GATE_EXTENT
from tests.faults.campaigns.ordinary import compare

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(900), pytest.mark.row(42)]
KILLS = 2


def test_an_ordinary_stream_is_learnt_to_the_same_bits_through_kills(
    broker: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = int(time.time())
    print(f"seed {seed}")  # noqa: T201 - by it a failed run is repeated
    figures = compare(broker, tmp_path, kills=KILLS, seed=seed, cold=False, extent=GATE_EXTENT)
    record_property("ordinary", figures.summary())
    assert figures.kills == KILLS
    assert figures.same_evidence, "both have learnt each record that matches once, and filtered each other one"
    assert figures.max_weight_difference == 0
