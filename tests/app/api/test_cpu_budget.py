"""The CPU budget of the reads: the HTTP side uses its share of a core at any load."""

import asyncio

import pytest

from millrace.app.api.cpu_budget import MAX_WAITING, REFUSED_AFTER_S, UNLIMITED, CpuBudget, CpuBudgetOptions
from millrace.app.api.problem_documents import ProblemError


class Thread:
    """A loop's thread with a simulated clock; every answer costs it CPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.cpu = 0.0
        self.budget = CpuBudget(CpuBudgetOptions(share=0.1, burst_s=0.5), lambda: self.now, lambda: self.cpu)
        monkeypatch.setattr(asyncio, "sleep", self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def answers(self, seconds: float, cost_s: float, path: str = "/status") -> int:
        """Return how many requests are answered within the seconds while some request always waits."""
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


def test_a_page_and_all_its_requests_are_answered_at_once(thread: Thread) -> None:
    assert thread.answers(0.4, 0.004) == 100


def test_unused_budget_does_not_accumulate(thread: Thread) -> None:
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


def test_reads_recover_soon_after_a_flood_of_probes(thread: Thread) -> None:
    """After ten minutes of probes that used a whole core, a page loads normally five seconds later."""
    thread.answers(1, 0.005)
    thread.answers(600, 0.005, "/livez")
    thread.answers(5, 0.005)
    thread.now += 10
    assert thread.answers(0.4, 0.004) == 100


def test_the_time_of_other_threads_is_charged_too(thread: Thread) -> None:
    thread.answers(0.1, 0.004)
    thread.budget.charge(3.0)
    assert thread.answers(1, 0.004) <= 5


def test_a_full_queue_refuses_more_but_not_sooner_than_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
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
