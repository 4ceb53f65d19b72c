"""Every format with poison of some twenty kinds: each record meets the verdict that its writer has written down."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.campaigns.decoders import fuzz_formats
from tests.faults.campaigns.formats import LEARNT, account_for

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(600), pytest.mark.row(38)]
RECORDS = 12_000
"""Of each format: some of each kind of poison."""


def test_what_is_learnt_or_set_aside_is_what_was_produced_by_kind_and_reason(
    broker: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = int(time.time())
    print(f"seed {seed}")  # noqa: T201 - by it a failed run is repeated
    figures = account_for(broker, tmp_path, records=RECORDS, seed=seed)
    record_property("formats", figures.summary())
    assert figures.told == []
    assert figures.unaccounted == 0
    assert figures.records == RECORDS * len(LEARNT)


def test_any_changed_record_meets_the_same_end_among_neighbours_as_alone() -> None:
    figures = fuzz_formats(2_000, seed := int(time.time()))
    assert figures.told == [], f"seed {seed}"
    assert figures.set_aside > figures.cases // 2
