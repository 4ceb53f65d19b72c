"""When a save is due, and which checkpoints are kept."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from millrace.training.checkpoints.manifest import Manifest, Measured, SaveReason
from millrace.training.checkpoints.policies import (
    EverySeconds,
    EverySteps,
    KeepAny,
    KeepBest,
    KeepHourly,
    KeepLast,
    KeepPolicy,
    Never,
    SaveContext,
    SavePolicy,
    best_first,
)

BEGAN = datetime(2026, 3, 1, 22, 30, tzinfo=UTC)


def manifest(
    number: int, auc: float | None = None, minutes: int = 0, *, records: int = 5000, higher: bool = True, **more: Any
) -> Manifest:
    return Manifest(
        number=number,
        parent=more.pop("parent", number - 1 if number else None),
        ancestors=more.pop("ancestors", tuple(reversed(range(number)))),
        term=1,
        incarnation=1,
        step=number,
        reason=more.pop("reason", SaveReason.INTERVAL),
        ordered_by=None,
        note=None,
        created_at=(BEGAN + timedelta(minutes=minutes)).isoformat(),
        files={},
        positions={},
        provenance={},
        metrics={} if auc is None else {"auc": auc},
        variables=None,
        measured=Measured(watched="auc", higher_is_better=higher, records=records, window_s=300.0, **more),
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
        (KeepBest(1), {7}),
        (KeepBest(3), {7, 2, 4}),
        (KeepBest(0), set()),
        (KeepHourly(2), {7, 8}),
        (KeepHourly(3), {4, 7, 8}),
        (KeepAny([KeepLast(1), KeepBest(1)]), {8, 7}),
        (KeepAny([]), set()),
    ],
)
def test_what_a_policy_keeps(policy: KeepPolicy, kept: set[int]) -> None:
    assert policy.keep(MANIFESTS, MANIFESTS[-1]) == kept
    assert policy.keep([], MANIFESTS[-1]) == set()


def best_of(*manifests: Manifest) -> list[int]:
    """Return the numbers of those that count, the best first; the last is where a start resumes."""
    return [one.number for one in best_first(manifests, manifests[-1])]


def test_where_less_is_better_the_least_value_is_the_best() -> None:
    assert best_of(manifest(0, 0.5), manifest(1, 0.2), manifest(2, 0.3, higher=False)) == [1, 2, 0]


def test_of_equal_values_the_later_is_the_better() -> None:
    assert best_of(manifest(0, 0.5), manifest(1, 0.5), manifest(2, 0.5)) == [2, 1, 0]


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_a_value_that_is_missing_or_not_finite_is_never_the_best(value: float | None) -> None:
    assert best_of(manifest(0, 0.1), manifest(1, value), manifest(2, 0.2)) == [2, 0]


def test_few_scored_records_do_not_win_by_luck() -> None:
    lucky = manifest(2, 1.0, records=40)
    assert best_of(manifest(0, 0.5), manifest(1, 0.6), lucky, manifest(3, 0.7)) == [3, 1, 0]


def test_on_a_stream_that_is_busy_by_day_the_hours_of_the_night_count_too() -> None:
    night = manifest(3, 0.9, records=20_000)
    day = [manifest(number, 0.5, records=1_000_000) for number in range(3)]
    assert best_of(*day, night, manifest(4, 0.6, records=1_000_000))[0] == 3


def test_what_a_rewind_has_abandoned_is_not_the_best() -> None:
    rewind = manifest(4, 0.5, parent=1, ancestors=(1, 0), reason=SaveReason.REWIND)
    assert best_of(manifest(0, 0.4), manifest(1, 0.5), manifest(2, 0.9), manifest(3, 0.8), rewind) == [1, 0]


def test_a_rewind_takes_the_place_of_its_target_only_where_that_is_gone() -> None:
    rewind = manifest(4, 0.5, parent=1, ancestors=(1, 0), reason=SaveReason.REWIND)
    assert best_of(manifest(0, 0.4), manifest(1, 0.5), rewind) == [1, 0]
    assert best_of(manifest(0, 0.4), rewind) == [4, 0]


def test_checkpoints_of_a_version_that_recorded_no_metrics_are_never_the_best() -> None:
    old = replace(manifest(0), measured=None)
    assert best_of(old, manifest(1, 0.5)) == [1]
    assert best_of(manifest(1, 0.5), replace(manifest(2), measured=None)) == []
