"""How much of a core the HTTP side takes, whoever asks how often."""

import asyncio

import pytest

from app.api.cpu_budget import MAX_WAITING, REFUSED_AFTER_S, UNLIMITED, CpuBudget, CpuBudgetOptions
from app.api.problem_documents import ProblemError


class Thread:
    """A loop's thread whose time goes by as it is told; every answer costs it CPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.cpu = 0.0
        self.budget = CpuBudget(CpuBudgetOptions(share=0.1, burst_s=0.5), lambda: self.now, lambda: self.cpu)
        monkeypatch.setattr(asyncio, "sleep", self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def answers(self, seconds: float, cost_s: float, path: str = "/status") -> int:
        """How many come within so many seconds, when there is always somebody who asks."""
        return asyncio.run(self._answers(self.now + seconds, cost_s, path))

    async def _answers(self, until: float, cost_s: float, path: str) -> int:
        count = 0
        while self.now < until:
            await self.budget.wait_turn(path)
            self.cpu += cost_s
            self.now += cost_s
            count += 1
        return count


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> Thread:
    return Thread(monkeypatch)


def test_a_flood_takes_its_share_of_a_core_and_no_more(thread: Thread) -> None:
    thread.answers(10, 0.005)
    assert thread.cpu <= 0.5 + 10 * 0.1 + 0.01
    assert thread.cpu >= 10 * 0.1


def test_a_page_and_all_that_it_asks_for_is_answered_at_once(thread: Thread) -> None:
    assert thread.answers(0.4, 0.004) == 100


def test_what_was_not_taken_does_not_pile_up(thread: Thread) -> None:
    thread.now += 3600
    spent = thread.cpu
    thread.answers(1, 0.005)
    assert thread.cpu - spent <= 0.5 + 1 * 0.1 + 0.01


@pytest.mark.parametrize("path", sorted(UNLIMITED))
def test_probes_never_wait(thread: Thread, path: str) -> None:
    thread.answers(5, 0.005)
    assert thread.answers(1, 0.005, path) >= 200


def test_a_thread_that_is_busy_with_other_things_still_answers_now_and_then(thread: Thread) -> None:
    thread.answers(5, 0.005)
    thread.cpu += 1000
    assert thread.answers(10, 0.005) >= 30


def test_who_asks_after_a_flood_of_probes_does_not_pay_for_it_for_long(thread: Thread) -> None:
    """Ten minutes of probes that took all of a core; five seconds later a page loads as ever."""
    thread.answers(1, 0.005)
    thread.answers(600, 0.005, "/livez")
    thread.answers(5, 0.005)
    thread.now += 10
    assert thread.answers(0.4, 0.004) == 100


def test_what_other_threads_took_is_waited_for_too(thread: Thread) -> None:
    thread.answers(0.1, 0.004)
    thread.budget.charge(3.0)
    assert thread.answers(1, 0.004) <= 5


def test_a_line_that_is_full_refuses_more_but_not_sooner_than_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    turn_of_the_loop = asyncio.sleep

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if seconds != REFUSED_AFTER_S:
            await asyncio.Event().wait()

    async def crowd() -> int:
        budget = CpuBudget(CpuBudgetOptions(burst_s=0.0), spent=lambda: 0.0)
        line = [asyncio.create_task(budget.wait_turn("/status")) for _ in range(MAX_WAITING)]
        await turn_of_the_loop(0)
        with pytest.raises(ProblemError) as refusal:
            await budget.wait_turn("/status")
        for waiting in line:
            waiting.cancel()
        await asyncio.gather(*line, return_exceptions=True)
        await asyncio.wait_for(budget.wait_turn("/livez"), 1.0)
        return refusal.value.status

    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert asyncio.run(crowd()) == 503
    assert slept[-1] == REFUSED_AFTER_S
