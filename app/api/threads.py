"""Threads: what is too slow for the HTTP side's loop, and what CPU it took there, told on the loop.

Owns nothing: how many may run at once is said by whoever asks.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

import anyio
import anyio.to_thread

T = TypeVar("T")
Charge = Callable[[float], None]
"""Takes seconds of CPU."""


async def on_a_thread(work: Callable[[], T], limiter: anyio.CapacityLimiter, charge: Charge) -> T:
    """Do it on a thread, as soon as the limiter lets it; what it took is charged however it ends."""
    spent: list[float] = []
    try:
        return await anyio.to_thread.run_sync(partial(_timed, work, spent), limiter=limiter)
    finally:
        charge(sum(spent))


class Kept(Generic[T]):
    """What is made once, at the first look, on a thread, and then the same for everybody."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._limiter = anyio.CapacityLimiter(1)
        self._made: T | None = None

    async def get(self) -> T:
        """Make it, or wait for whoever does, or have it."""
        if self._made is None:
            return await anyio.to_thread.run_sync(self._once, limiter=self._limiter)
        return self._made

    def _once(self) -> T:
        if self._made is None:
            self._made = self._make()
        return self._made


def _timed(work: Callable[[], T], spent: list[float]) -> T:
    began = time.thread_time()
    try:
        return work()
    finally:
        spent.append(time.thread_time() - began)
