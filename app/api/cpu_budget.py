"""The CPU budget: how much of a core all requests together may take. Beyond that answers wait; learning does not.

A flood of requests would take a core and Python's lock from the stages that learn. So there is an allowance of CPU
time. It fills at a share of a core, up to `burst_s`, and can be overdrawn by as much. A request that finds it used up
waits its turn, first come, first served. A client that waits for each answer before it asks again is slowed down by
that. Probes never wait.

Lives on the HTTP side's loop. It counts the CPU time of the loop's thread, and what other threads report by `charge`.
If the queue is full, a request is refused, but only after a delay: otherwise refusals, which are cheap, would invite
more requests than answers do.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from millrace.app.api.problem_documents import ProblemError

UNLIMITED = frozenset({"/livez", "/readyz", "/health"})
MAX_WAITING = 100
"""About five seconds' worth of answers."""
REFUSED_AFTER_S = 5.0
_MIN_SLEEP_S = 0.005
_MAX_SLEEP_S = 0.25
"""So that a few answers a second remain, whatever else the thread has to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuBudgetOptions:
    """The size of the budget."""

    share: float = 0.1
    """Of a core, on average."""
    burst_s: float = 0.2
    """Seconds of CPU time that may be taken, or overdrawn, at once: a page with all that it asks for, some fifty
    answers."""


class CpuBudget:
    """Decides when a request may be answered."""

    def __init__(
        self,
        options: CpuBudgetOptions = CpuBudgetOptions(),
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        self._options, self._clock, self._spent = options, clock, spent
        self._allowance_s = options.burst_s
        self._last: tuple[float, float] | None = None
        self._charged_s = 0.0
        self._queue = asyncio.Lock()
        self._waiting = 0

    async def wait_turn(self, path: str) -> None:
        """Wait until the budget allows an answer. Raises ProblemError (503) if too many requests wait already."""
        if path in UNLIMITED:
            return
        if self._waiting >= MAX_WAITING:
            await asyncio.sleep(REFUSED_AFTER_S)
            raise ProblemError(
                503,
                "Too Many Questions",
                f"{MAX_WAITING} requests wait for their answers already.",
                fix="Ask again later, and less often; probes are always answered.",
                headers={"retry-after": "10"},
            )
        self._waiting += 1
        try:
            await self._wait()
        finally:
            self._waiting -= 1

    def charge(self, seconds: float) -> None:
        """Count CPU time that another thread took."""
        self._charged_s += seconds

    async def _wait(self) -> None:
        async with self._queue:
            if (overdrawn := -self._allowance()) >= 0:
                await asyncio.sleep(min(_MAX_SLEEP_S, max(_MIN_SLEEP_S, overdrawn / self._options.share)))

    def _allowance(self) -> float:
        """Return the seconds of CPU time that are left now; negative if the last answers took more than was left.

        The overdraft is bounded by `burst_s`: a client that asks after a flood of probes does not pay for the flood.
        """
        now, spent, burst_s = self._clock(), self._spent() + self._charged_s, self._options.burst_s
        if self._last is not None:
            then, spent_then = self._last
            gained = (now - then) * self._options.share - (spent - spent_then)
            self._allowance_s = max(-burst_s, min(burst_s, self._allowance_s + gained))
        self._last = now, spent
        return self._allowance_s
