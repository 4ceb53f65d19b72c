"""Witness D: a model that was killed and resumed is, to the bit, the one that never was."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.faults.campaigns.exactness import EVERYTHING, GATE_EXTENT, MEMBERS, SHAPED, compare

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(900), pytest.mark.row(1)]
KILLS = 2


@pytest.mark.row(36)
@pytest.mark.parametrize(
    "shaped",
    [pytest.param(SHAPED, marks=pytest.mark.nightly), EVERYTHING],
    ids=["weights-and-noise", "windows-and-samples"],
)
def test_shaped_learning_is_bit_identical_through_kills(
    broker: str,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
    shaped: Mapping[str, Mapping[str, Any]],
) -> None:
    seed = int(time.time())
    print(f"seed {seed}")  # noqa: T201 - by it a failed run is repeated
    figures = compare(broker, tmp_path, kills=KILLS, seed=seed, cold=False, shaped=shaped, extent=GATE_EXTENT)
    record_property("shaped", figures.summary())
    assert figures.kills == KILLS
    assert figures.same_evidence
    assert figures.max_weight_difference == 0
    assert (figures.sequences > 1000, figures.wrong) == ("windows" in shaped, 0)


@pytest.mark.nightly  # in the gate members go on with the same bits in process; `make proof` kills
def test_members_that_begin_anew_are_bit_identical_through_kills(
    broker: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = int(time.time())
    print(f"seed {seed}")  # noqa: T201 - by it a failed run is repeated
    figures = compare(broker, tmp_path, kills=KILLS, seed=seed, cold=False, shaped=MEMBERS)
    record_property("members", figures.summary())
    assert figures.kills == KILLS
    assert figures.restarts > 1
    assert figures.same_evidence
    assert (figures.lost, figures.learnt_twice, figures.max_weight_difference) == (0, 0, 0)


def test_a_resumed_run_with_dropout_is_bit_identical_to_an_undisturbed_one(
    broker: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = int(time.time())
    print(f"seed {seed}")  # noqa: T201 - by it a failed run is repeated
    figures = compare(broker, tmp_path, kills=KILLS, seed=seed, cold=False, extent=GATE_EXTENT)
    record_property("deterministic", figures.summary())
    assert figures.kills == KILLS
    assert figures.same_evidence, "both have learnt every valid offset once, in as many steps"
    assert figures.max_weight_difference == 0
