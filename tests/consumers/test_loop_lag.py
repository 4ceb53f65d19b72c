"""A loop's lag is how long a timer would have had to wait, however long the loop was blocked."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from millrace.consumers.loop_thread import LoopLag


class FakeLoop:
    """A loop whose clock the test moves. Its timers run as late as the test moves the clock past them."""

    def __init__(self) -> None:
        self.now = 100.0
        self._timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[..., None], *args: Any) -> None:
        self._timers.append((when, lambda: callback(*args)))

    def pass_time(self, seconds: float) -> int:
        self.now += seconds
        due = [timer for timer in self._timers if timer[0] <= self.now]
        self._timers = [timer for timer in self._timers if timer[0] > self.now]
        for _, run in due:
            run()
        return len(due)


def watched() -> tuple[LoopLag, FakeLoop]:
    lag, loop = LoopLag(), FakeLoop()
    lag.watch(cast("asyncio.AbstractEventLoop", loop))
    return lag, loop


def test_a_loop_that_is_on_time_has_no_lag() -> None:
    lag, loop = watched()
    assert lag.p99_s() == 0.0
    for _ in range(1000):
        loop.pass_time(0.05)
    assert lag.p99_s() < 1e-6


def test_a_long_absence_counts_for_as_long_as_it_lasted() -> None:
    lag, loop = watched()
    for _ in range(560):
        loop.pass_time(0.05)
    loop.pass_time(0.5)
    assert 0.1 < lag.p99_s() <= 0.5


def test_what_is_older_than_half_a_minute_is_forgotten() -> None:
    lag, loop = watched()
    loop.pass_time(3.0)
    assert lag.p99_s() > 2.0
    for _ in range(600):
        loop.pass_time(0.05)
    assert lag.p99_s() < 1e-6


def test_a_process_that_was_stopped_for_a_day_continues_to_measure_at_once() -> None:
    lag, loop = watched()
    loop.pass_time(86_400.0)
    assert lag.p99_s() <= 30.0
    assert loop.pass_time(0.05) == 1
