"""The pace: how much of a core the HTTP side may take, whoever asks how often. Answers wait; learning does not.

A flood of questions would take its core and Python's lock from the stages that learn. So the loop's thread has an
allowance of CPU time, which fills up at a share of a core to no more than a moment's worth. A question that finds it
used up waits its turn, first come, first served, and is then answered as ever; a client that waits for its answer
before it asks again is slowed down by that. Probes never wait.

Lives on the HTTP side's loop, and counts all that its thread does. It is never full: whoever waits holds a connection,
and those are bounded.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

UNPACED = frozenset({"/livez", "/readyz", "/health"})
_SHORTEST_S = 0.005
_LONGEST_S = 0.25
"""So that a few answers a second remain, whatever else the thread has to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceOptions:
    """How much it may take."""

    share: float = 0.1
    """Of a core, on average."""
    burst_s: float = 0.2
    """Seconds of CPU that may be taken at once: a page with all that it asks for, some fifty answers."""


class Pace:
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
        self._line = asyncio.Lock()

    async def turn(self, path: str) -> None:
        """Wait until there is an allowance to answer from."""
        if path in UNPACED:
            return
        async with self._line:
            if (lacking := -self._allowance()) >= 0:
                await asyncio.sleep(min(_LONGEST_S, max(_SHORTEST_S, lacking / self._options.share)))

    def _allowance(self) -> float:
        """What is left just now, in seconds of CPU; below nothing where the last answers took more than there was."""
        now, spent = self._clock(), self._spent()
        if self._seen is not None:
            then, had_spent = self._seen
            gained = (now - then) * self._options.share - (spent - had_spent)
            self._allowance_s = min(self._options.burst_s, self._allowance_s + gained)
        self._seen = now, spent
        return self._allowance_s
