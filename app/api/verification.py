"""Verifying: reading and hashing a whole checkpoint for whoever asks, within bounds.

That takes a core and the disk for as long as the checkpoint is large, and anybody may ask. So it is done for one at a
time, and after it nothing is verified until it has taken no more than a share of a core, on average. A few wait for
that; more are refused. Nothing is kept: what was whole an hour ago may be damaged now.

Lives on the HTTP side's loop, and hashes on a thread. What was begun is ended even where the client has left.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

import anyio

from app.api.offload import on_a_thread
from app.api.problem_documents import ProblemError

T = TypeVar("T")
MOST_AT_ONCE = 4
"""One that is read and hashed, and those that wait for it."""
_SHARE = 0.1
"""Of a core."""


class Verifying:
    """Whose checkpoint is hashed."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._limiter = anyio.CapacityLimiter(1)
        self._line = asyncio.Lock()
        self._asked = 0
        self._rests_until = clock()

    async def run(self, read: Callable[[], T]) -> T:
        """Read when it is its turn; ProblemError where too many wait for theirs."""
        if self._asked >= MOST_AT_ONCE:
            raise _full()
        self._asked += 1
        try:
            async with self._line:
                await asyncio.sleep(max(0.0, self._rests_until - self._clock()))
                return await on_a_thread(read, self._limiter, self._rest)
        finally:
            self._asked -= 1

    def _rest(self, took_s: float) -> None:
        self._rests_until = self._clock() + took_s * (1 / _SHARE - 1)


def _full() -> ProblemError:
    return ProblemError(
        503,
        "Too Many Verifications",
        f"{MOST_AT_ONCE} checkpoints are being verified, or wait for it, already.",
        fix="Ask again later; `millrace checkpoints verify` does it in a process of its own.",
        headers={"retry-after": "30"},
    )
