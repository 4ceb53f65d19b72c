"""Labels that come later through kills: each record learns what a plain join of both topics says, to the bit."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.campaigns import group_joined
from tests.faults.campaigns.joined import GATE_LENGTH, compare
from tests.faults.harness.plain_join import ABSENT, LABELLED, LATE, REFUSED, SKIPPED, TOO_OLD, UNUSED, USED

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(900), pytest.mark.row(43)]
KILLS = 2
OUTCOMES, FATES = (LABELLED, ABSENT, TOO_OLD), (USED, LATE, UNUSED, REFUSED, SKIPPED)


@pytest.mark.row(34)
@pytest.mark.parametrize("masked", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_labels_that_come_later_are_joined_once_through_kills(
    broker: str, tmp_path: Path, record_property: Callable[[str, object], None], masked: bool
) -> None:
    seed = int(time.time())
    print(f"seed {seed}")  # noqa: T201 - by it a failed run is repeated
    figures = compare(broker, tmp_path, kills=KILLS, seed=seed, cold=False, masked=masked, length=GATE_LENGTH)
    record_property("joined", figures.summary())
    assert figures.kills == KILLS
    print(json.dumps(figures.summary(), indent=1))  # noqa: T201 - what a failure is found by
    assert figures.labelled > 400
    missing = [name for name in (*OUTCOMES, *FATES) if not figures.outcomes[name]]
    assert missing == [], "there is something of everything"
    assert figures.jumps > 0, "a partition of labels was silent"
    assert (figures.wrong_labels, figures.false_negatives, figures.unaccounted) == (0, 0, 0)
    assert figures.same_evidence, "both have learnt each record once"
    assert figures.max_weight_difference == 0
    assert figures.rebuilt


@pytest.mark.row(31)
@pytest.mark.parametrize("co_partitioned", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_a_group_joins_labels_that_come_later_once_through_kills(
    broker: str, tmp_path: Path, record_property: Callable[[str, object], None], co_partitioned: bool
) -> None:
    seed = int(time.time())
    print(f"seed {seed}")  # noqa: T201 - by it a failed run is repeated
    figures = group_joined.wage(
        broker, tmp_path, kills=KILLS, seed=seed, co_partitioned=co_partitioned, length=GATE_LENGTH, cold_again=False
    )
    record_property("joined_group", figures.summary())
    print(json.dumps(figures.summary(), indent=1))  # noqa: T201 - what a failure is found by
    assert figures.kills >= KILLS
    assert figures.labelled > 200
    missing = [name for name in (*OUTCOMES, *FATES) if name != SKIPPED and not figures.outcomes[name]]
    assert missing == [], "there is something of everything"
    assert figures.jumps > 0, "a partition of labels was silent"
    assert (figures.lost, figures.learnt_twice) == (0, 0)
    assert (figures.wrong_labels, figures.false_negatives, figures.unaccounted) == (0, 0, 0)
    assert figures.same_evidence, "the witness has seen each record once"
