"""How far behind somebody is."""

from consumers.lag import lag_of, partition_lag
from consumers.records import Partition

A, B = Partition("t", 0), Partition("t", 1)


def test_lag_adds_up_over_partitions_and_its_seconds_are_the_worst() -> None:
    lag = lag_of({A: 10, B: 90}, {A: 40, B: 100}, {A: 1_000, B: 9_000}, now_s=10.0)
    assert (lag.records, lag.seconds) == (40, 9.0)
    assert (lag.partitions[B].records, lag.partitions[B].seconds) == (10, 1.0)


def test_nothing_more_to_read_is_no_lag_however_old_the_last_record() -> None:
    lag = partition_lag(position=5, end=5, fresh_ms=0, now_ms=10**12)
    assert (lag.records, lag.seconds) == (0, 0.0)


def test_an_end_that_is_not_known_gives_no_seconds_of_its_own() -> None:
    lag = lag_of({A: 5}, {}, {}, now_s=1.0)
    assert (lag.records, lag.seconds, lag.partitions[A].end) == (0, None, None)


def test_a_position_past_a_stale_end_is_not_negative_lag() -> None:
    assert partition_lag(position=7, end=5, fresh_ms=None, now_ms=0).records == 0
