"""The pace: how much of a core the HTTP side may take, whoever asks how often. Answers wait; learning does not.

A flood of questions would take its core and Python's lock from the stages that learn. So there is an allowance of CPU
time, which fills up at a share of a core to no more than a moment's worth, and is owed no more than that. A question
that finds it used up waits its turn, first come, first served, and is then answered as ever; a client that waits for
its answer before it asks again is slowed down by that. Probes never wait.

Lives on the HTTP side's loop. It counts all that the loop's thread does, and what it is told of other threads. When the
line is full, who comes is refused: after a while, lest many be refused faster than they would have been answered.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from app.api.problem_documents import ProblemError

UNPACED = frozenset({"/livez", "/readyz", "/health"})
MOST_WAITING = 100
"""Some five seconds' worth of answers."""
REFUSED_AFTER_S = 5.0
_SHORTEST_S = 0.005
_LONGEST_S = 0.25
"""So that a few answers a second remain, whatever else the thread has to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceOptions:
    """How much it may take."""

    share: float = 0.1
    """Of a core, on average."""
    burst_s: float = 0.2
    """Seconds of CPU that may be taken at once, a page with all that it asks for, some fifty answers; or be owed."""


class CpuBudget:
    """Whose turn it is."""

    def __init__(
        self,
        options: PaceOptions = PaceOptions(),
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        self._options, self._clock, self._spent = options, clock, spent
        self._allowance_s = options.burst_s
        self._seen: tuple[float, float] | None = None
        self._elsewhere_s = 0.0
        self._line = asyncio.Lock()
        self._waiting = 0

    async def turn(self, path: str) -> None:
        """Wait until there is an allowance to answer from; ProblemError where too many wait already."""
        if path in UNPACED:
            return
        if self._waiting >= MOST_WAITING:
            await asyncio.sleep(REFUSED_AFTER_S)
            raise _full()
        self._waiting += 1
        try:
            await self._wait()
        finally:
            self._waiting -= 1

    def charge(self, seconds: float) -> None:
        """So much CPU was taken on another thread."""
        self._elsewhere_s += seconds

    async def _wait(self) -> None:
        async with self._line:
            if (lacking := -self._allowance()) >= 0:
                await asyncio.sleep(min(_LONGEST_S, max(_SHORTEST_S, lacking / self._options.share)))

    def _allowance(self) -> float:
        """What is left just now, in seconds of CPU; below nothing where the last answers took more than there was.

        No more is owed than may be taken at once: who asks after a flood of probes does not pay for it.
        """
        now, spent, most = self._clock(), self._spent() + self._elsewhere_s, self._options.burst_s
        if self._seen is not None:
            then, had_spent = self._seen
            gained = (now - then) * self._options.share - (spent - had_spent)
            self._allowance_s = max(-most, min(most, self._allowance_s + gained))
        self._seen = now, spent
        return self._allowance_s


def _full() -> ProblemError:
    return ProblemError(
        503,
        "Too Many Questions",
        f"{MOST_WAITING} questions wait for their answers already.",
        fix="Ask again later, and less often; probes are always answered.",
        headers={"retry-after": "10"},
    )
