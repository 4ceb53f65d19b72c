"""Run what is too slow for the HTTP side's event loop on threads, and report on the loop what CPU time it took.

Owns nothing: the caller's limiter says how many may run at once. The threads are daemons, so that a slow disk delays
neither the end of the loop nor that of the process.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

import anyio

T = TypeVar("T")
Charge = Callable[[float], None]
"""Takes seconds of CPU time."""


def ignore_charge(_seconds: float) -> None:
    """Charge nothing: for work that is done once, or seldom."""


async def run_on_thread(work: Callable[[], T], limiter: anyio.CapacityLimiter, charge: Charge = ignore_charge) -> T:
    """Return what `work` returns, or raise what it raises; run it on a thread as soon as the limiter has room.

    Its CPU time is charged in both cases. If the caller is cancelled, the thread is left to finish by itself and its
    place in the limiter is free at once.
    """
    future, spent_s = Future[T](), list[float]()

    def run() -> None:
        began = time.thread_time()
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - raised again where the future is awaited
            spent_s.append(time.thread_time() - began)
            future.set_exception(error)
        else:
            spent_s.append(time.thread_time() - began)
            future.set_result(result)

    async with limiter:
        # A future that runs cannot be cancelled, so the thread may always set its result.
        future.set_running_or_notify_cancel()
        threading.Thread(target=run, name="api-reads", daemon=True).start()
        try:
            return await asyncio.wrap_future(future)
        finally:
            charge(sum(spent_s))


class MadeOnce(Generic[T]):
    """A value that is made on a thread when it is first needed, and then kept."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._limiter = anyio.CapacityLimiter(1)
        self._value: T | None = None

    async def get(self) -> T:
        """Return the value; make it first, or wait while another request makes it."""
        if self._value is None:
            return await run_on_thread(self._make_once, self._limiter)
        return self._value

    def _make_once(self) -> T:
        if self._value is None:
            self._value = self._make()
        return self._value
