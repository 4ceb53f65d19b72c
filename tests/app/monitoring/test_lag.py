"""How far behind, where the producers' clocks are not ours."""

import time

import pytest

from tests.app.api_rig import P0, P1, Client, Rig

IN_MICROSECONDS = round(time.time() * 1e6) - round(time.time() * 1e3)


@pytest.mark.parametrize("ahead_ms", [120_000, IN_MICROSECONDS], ids=["two minutes", "as microseconds"])
def test_timestamps_ahead_of_now_leave_the_lag_in_seconds_unknown(api: Client, rig: Rig, ahead_ms: int) -> None:
    rig.source.meter.retention({"clicks": 3_600_000})
    rig.produce(P0, 8, ahead_ms=ahead_ms)
    rig.learn(rig.draw())
    rig.produce(P0, 5_000, ahead_ms=ahead_ms)
    rig.post()
    lag = api.seen("/lag")
    assert lag["lag_records"] == 5_000
    assert {"lag_s", "retention_s_left"} & set(lag) == set()
    assert "lag_s" not in lag["partitions"]["clicks:0"]
    assert "5,000 records behind" in api.seen("/status")["verdict"]
    rig.learn_all()
    assert api.seen("/lag")["lag_s"] == 0


def test_a_clock_that_is_a_little_ahead_is_no_reason_to_say_nothing(api: Client, rig: Rig) -> None:
    rig.produce(P0, 8, ahead_ms=20_000)
    rig.learn(rig.draw())
    rig.produce(P0, 8, ahead_ms=20_000)
    rig.post()
    lag = api.seen("/lag")
    assert (lag["lag_records"], lag["lag_s"]) == (8, 0)


def test_one_record_of_the_future_is_forgotten_with_the_next(api: Client, rig: Rig) -> None:
    rig.produce(P0, 8, ahead_ms=IN_MICROSECONDS)
    rig.learn_all()
    rig.produce(P0, 8, ahead_ms=-600_000)
    rig.learn_all()
    rig.produce(P1, 8)
    rig.post()
    assert 599 < api.seen("/lag")["lag_s"] < 700
