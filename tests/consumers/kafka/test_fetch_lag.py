"""How far behind a reader is."""

import numpy as np
import pytest

from millrace.consumers.kafka.statistics import SourceMeter, lag_of, partition_lag
from millrace.consumers.records import Chunk, Partition

A, B = Partition("t", 0), Partition("t", 1)


def test_lag_adds_up_over_partitions_and_its_seconds_are_those_of_the_worst() -> None:
    lag = lag_of({A: 10, B: 90}, {A: 40, B: 100}, {A: 1_000, B: 9_000}, now_s=10.0)
    assert (lag.records, lag.seconds) == (40, 9.0)
    assert (lag.partitions[B].records, lag.partitions[B].seconds) == (10, 1.0)


def test_nothing_left_to_read_is_no_lag_however_old_the_last_record_is() -> None:
    lag = partition_lag(position=5, end=5, fresh_ms=0, now_ms=10**12)
    assert (lag.records, lag.seconds) == (0, 0.0)


def test_an_unknown_end_gives_no_lag_in_seconds() -> None:
    lag = lag_of({A: 5}, {}, {}, now_s=1.0)
    assert (lag.records, lag.seconds, lag.partitions[A].end) == (0, None, None)


def test_a_position_past_a_stale_end_is_not_negative_lag() -> None:
    assert partition_lag(position=7, end=5, fresh_ms=None, now_ms=0).records == 0


@pytest.mark.parametrize("ahead_ms", [60_001, 10**15])
def test_a_record_time_in_the_future_makes_the_lag_in_seconds_unknown(ahead_ms: int) -> None:
    assert partition_lag(position=5, end=9, fresh_ms=10**12 + ahead_ms, now_ms=10**12).seconds is None
    assert partition_lag(position=9, end=9, fresh_ms=10**12 + ahead_ms, now_ms=10**12).seconds == 0.0
    assert partition_lag(position=5, end=9, fresh_ms=10**12 + 60_000, now_ms=10**12).seconds == 0.0


def chunk(start: int, timestamp_ms: int) -> Chunk:
    """One record of A."""
    return Chunk(
        partition=A,
        incarnation=1,
        start=start,
        end=start + 1,
        offsets=np.array([start]),
        timestamps=np.array([timestamp_ms]),
        keys=[None],
        values=[b""],
        headers=[()],
        nbytes=0,
        fetched_at=0.0,
    )


def test_a_record_time_in_the_future_is_replaced_by_the_next_one() -> None:
    meter = SourceMeter(clock=lambda: 1e9)
    meter.begin(1, {A: 0})
    meter.ends({A: 9})
    seconds = []
    for start, ago_ms in enumerate([5_000, -(10**15), -(10**14), 8_000, 9_000]):
        meter.fetched(chunk(start, 10**12 - ago_ms))
        seconds.append(meter.snapshot(0.0).lag.seconds)
    assert seconds == [5.0, None, None, 8.0, 8.0]
