"""Row 47: trainer and server are killed; a row that is served is the row that training made of the same offset."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.campaigns.served import prove_rows
from tests.faults.harness.fork_server import fork_trainer

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(900), pytest.mark.row(47)]
ROWS, KILLS = 1_000, 2
"""The server is killed, then the trainer."""


def test_a_row_at_serving_is_the_row_of_training_bit_for_bit_through_kills(
    broker: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = int(time.time())
    print(f"seed {seed}")  # noqa: T201 - by it a failed run is repeated
    figures = prove_rows(
        broker, tmp_path, rows=ROWS, kills=KILLS, seed=seed, on_strike=print, every="3s", launch=fork_trainer
    )
    record_property("served", figures.summary())
    assert (figures.served_rows_wrong, figures.not_learnt, figures.refused) == (0, 0, 0)
    assert figures.served_rows >= ROWS
    assert figures.served_kills == KILLS
