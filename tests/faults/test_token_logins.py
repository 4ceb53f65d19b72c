"""A stream through logins that end with their tokens, every few seconds."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.campaigns.token_logins import watch

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(600), pytest.mark.row(45)]


def test_a_stream_is_learnt_once_through_logins_that_end(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = int(time.time())
    print(f"seed {seed}")  # noqa: T201 - by it a failed run is repeated
    figures = watch(tmp_path, minutes=0.25, lifetime_s=4.0, records_per_s=1000.0, seed=seed, cold=False)
    figures.timed = False
    record_property("logins", figures.summary())
    assert (figures.lost, figures.learnt_twice) == (0, 0)
    assert figures.tokens > 3, "logins have ended"
