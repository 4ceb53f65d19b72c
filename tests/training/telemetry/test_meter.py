"""The meter: rates, freshness and waiting, over windows of the trainer's clock."""

import pytest

from millrace.training.telemetry.meter import Meter
from tests.training.trainer_rig import Clock


@pytest.mark.parametrize("fraction", [0.0, 0.25, 0.5, 0.999])
@pytest.mark.parametrize("window", ["10s", "1m", "5m"])
def test_a_steady_rate_is_that_rate_over_every_window_at_any_moment(window: str, fraction: float) -> None:
    clock = Clock(50.0)
    meter = Meter(clock)
    for _ in range(4000):
        clock.now += 0.1
        meter.called(0.05, learnt=100, batches=1, freshness_s=None)
    clock.now += 0.1 * fraction
    assert meter.snapshot().records_per_s[window] == pytest.approx(1000, rel=0.03)


def test_in_a_run_shorter_than_the_window_the_rate_covers_the_run() -> None:
    clock = Clock(50.5)
    meter = Meter(clock)
    clock.now += 2
    meter.called(0.1, learnt=100, batches=1, freshness_s=None)
    assert meter.snapshot().records_per_s == {"10s": 50, "1m": 50, "5m": 50}


def test_what_is_older_than_the_window_is_forgotten_and_the_total_is_not() -> None:
    clock = Clock()
    meter = Meter(clock)
    meter.called(0.1, learnt=100, batches=1, freshness_s=1.0)
    clock.now += 11
    assert meter.snapshot().records_per_s["10s"] == 0
    assert meter.snapshot().records_per_s["1m"] > 0
    clock.now += 1000
    meter.waited(1.0)
    snapshot = meter.snapshot()
    assert set(snapshot.records_per_s.values()) == {0}
    assert snapshot.freshness_s == {}
    assert (snapshot.learnt, snapshot.calls) == (100, 1)


def test_the_portions_of_the_last_minute_add_up_to_one() -> None:
    clock = Clock()
    meter = Meter(clock)
    meter.waited(100.0)
    clock.now += 61
    meter.waited(1.0)
    meter.called(2.0, learnt=5, batches=1, freshness_s=None)
    clock.now += 1
    meter.saved(1.0)
    meter.waited_for_workers(4.0)
    assert meter.snapshot().waiting == {"blocks": 0.125, "workers": 0.5, "compute": 0.25, "saving": 0.125}


def test_a_meter_without_any_work_reports_zeros() -> None:
    snapshot = Meter(Clock()).snapshot()
    assert set(snapshot.waiting.values()) == {0}
    assert set(snapshot.records_per_s.values()) == {0}


def test_freshness_is_reported_as_median_99th_percentile_and_maximum() -> None:
    meter = Meter(Clock())
    for age in range(1, 102):
        meter.called(0.0, learnt=1, batches=1, freshness_s=float(age))
    assert meter.snapshot().freshness_s == {"p50": 51.0, "p99": 100.0, "max": 101.0}


def test_a_record_with_a_timestamp_in_the_future_has_freshness_0() -> None:
    meter = Meter(Clock())
    meter.called(0.1, learnt=1, batches=1, freshness_s=-90.0)
    snapshot = meter.snapshot()
    assert snapshot.freshness_s == {"p50": 0.0, "p99": 0.0, "max": 0.0}
    assert (snapshot.freshness_counts[0], snapshot.freshness_sum_s) == (1, 0.0)
