"""When a save is due, and which checkpoints are kept."""

from datetime import UTC, datetime, timedelta

import pytest

from training.checkpoints.manifest import Manifest, SaveReason
from training.checkpoints.policies import (
    EverySeconds,
    EverySteps,
    KeepAny,
    KeepBest,
    KeepHourly,
    KeepLast,
    KeepPolicy,
    Never,
    Pinned,
    SaveContext,
    SavePolicy,
)

BEGAN = datetime(2026, 3, 1, 22, 30, tzinfo=UTC)


def manifest(number: int, auc: float | None = None, minutes: int = 0) -> Manifest:
    return Manifest(
        number=number,
        parent=number - 1 if number else None,
        ancestors=(),
        term=1,
        incarnation=1,
        step=number,
        reason=SaveReason.INTERVAL,
        ordered_by=None,
        note=None,
        created_at=(BEGAN + timedelta(minutes=minutes)).isoformat(),
        files={},
        positions={},
        provenance={},
        metrics={} if auc is None else {"auc": auc},
        variables=None,
    )


@pytest.mark.parametrize(
    ("policy", "due"),
    [
        (EverySeconds(60), SaveReason.INTERVAL),
        (EverySeconds(61), None),
        (EverySteps(5), SaveReason.STEPS),
        (EverySteps(6), None),
        (Never(), None),
    ],
)
def test_a_save_is_due_when_its_policy_says_so(policy: SavePolicy, due: SaveReason | None) -> None:
    assert policy.due(SaveContext(now=160, last_saved_at=100, step=15, last_saved_step=10)) is due


MANIFESTS = [
    manifest(0, None, 0),
    manifest(1, 0.5, 20),
    manifest(2, 0.9, 35),
    manifest(4, 0.7, 80),
    manifest(7, 0.9, 95),
    manifest(8, 0.1, 300),
]


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (KeepLast(2), {7, 8}),
        (KeepLast(0), set()),
        (KeepLast(99), {0, 1, 2, 4, 7, 8}),
        (KeepBest(1, "auc"), {7}),
        (KeepBest(2, "auc", higher=False), {8, 1}),
        (KeepBest(9, "loss"), set()),
        (KeepHourly(2), {7, 8}),
        (KeepHourly(3), {4, 7, 8}),
        (Pinned(frozenset({0, 3})), {0}),
        (KeepAny([KeepLast(1), KeepBest(1, "auc"), Pinned(frozenset({1}))]), {8, 7, 1}),
        (KeepAny([]), set()),
    ],
)
def test_what_a_policy_keeps(policy: KeepPolicy, kept: set[int]) -> None:
    assert policy.keep(MANIFESTS) == kept
    assert policy.keep([]) == set()
