"""A loop's lag is what a probe would have had to wait, however long the loop was away."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from consumers.loop_lag import LoopLag


class Turns:
    """A loop whose time a test moves on; its timers run when they are due, as late as the test comes."""

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


def watched() -> tuple[LoopLag, Turns]:
    lag, turns = LoopLag(), Turns()
    lag.watch(cast("asyncio.AbstractEventLoop", turns))
    return lag, turns


def test_a_loop_that_is_in_time_has_no_lag() -> None:
    lag, turns = watched()
    assert lag.p99_s() == 0.0
    for _ in range(1000):
        turns.pass_time(0.05)
    assert lag.p99_s() < 1e-6


def test_a_long_absence_counts_for_as_long_as_it_lasted() -> None:
    lag, turns = watched()
    for _ in range(560):
        turns.pass_time(0.05)
    turns.pass_time(0.5)
    assert 0.1 < lag.p99_s() <= 0.5


def test_what_is_older_than_half_a_minute_is_forgotten() -> None:
    lag, turns = watched()
    turns.pass_time(3.0)
    assert lag.p99_s() > 2.0
    for _ in range(600):
        turns.pass_time(0.05)
    assert lag.p99_s() < 1e-6


def test_a_process_that_was_stopped_for_a_day_measures_on_at_once() -> None:
    lag, turns = watched()
    turns.pass_time(86_400.0)
    assert lag.p99_s() <= 30.0
    assert turns.pass_time(0.05) == 1
