"""Verification: read and hash a whole checkpoint for a client, within bounds.

That takes a core and the disk for as long as the checkpoint is large, and any client may ask for it. So one checkpoint
is verified at a time, and after each the next waits until the average is a small share of a core. A few requests wait;
more are refused. No result is kept: what was whole an hour ago may be damaged now.

Lives on the HTTP side's loop, and hashes on a thread. A verification that has begun is finished, even if its client has
left.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

import anyio

from millrace.app.api.offload import run_on_thread
from millrace.app.api.problem_documents import ProblemError
from millrace.consumers.suggested_command import suggested_command

T = TypeVar("T")
MAX_VERIFICATIONS = 4
"""One that runs, and those that wait for it."""
_SHARE = 0.1
"""Of a core, on average."""


class VerificationQueue:
    """Runs verifications one after the other, with a rest after each."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._limiter = anyio.CapacityLimiter(1)
        self._queue = asyncio.Lock()
        self._requests = 0
        self._rests_until = clock()

    async def run(self, read: Callable[[], T]) -> T:
        """Return what `read` returns, once it has had its turn. Raises ProblemError (503) if too many wait already."""
        if self._requests >= MAX_VERIFICATIONS:
            raise ProblemError(
                503,
                "Too Many Verifications",
                f"{MAX_VERIFICATIONS} checkpoints are being verified, or wait for it, already.",
                fix=f"Ask again later; `{suggested_command('checkpoints', 'verify')}` does it in a process of its own.",
                headers={"retry-after": "30"},
            )
        self._requests += 1
        try:
            async with self._queue:
                await asyncio.sleep(max(0.0, self._rests_until - self._clock()))
                return await run_on_thread(read, self._limiter, self._rest)
        finally:
            self._requests -= 1

    def _rest(self, took_s: float) -> None:
        self._rests_until = self._clock() + took_s * (1 / _SHARE - 1)
