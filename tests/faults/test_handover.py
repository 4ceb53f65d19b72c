"""Row 33: what Kafka no longer has is learnt from the archive, as if Kafka had it, to the bit, through kills."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.campaigns.handover import hand_over

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(900), pytest.mark.row(33)]
KILLS = 3


@pytest.mark.nightly  # in the gate sequences go on over the end of an archive; `make proof` hands over with kills
def test_a_hand_over_from_archive_to_kafka_ends_with_the_bits_of_kafka_alone(
    broker: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = int(time.time())
    print(f"seed {seed}")  # noqa: T201 - by it a failed run is repeated
    figures = hand_over(broker, tmp_path, kills=KILLS, seed=seed, cold=False)
    record_property("handover", figures.summary())
    assert figures.kills == KILLS
    assert figures.same_evidence, "both have learnt every valid offset once, in as many steps"
    assert figures.max_weight_difference == 0
