"""Threads: what is too slow for the HTTP side's loop, and what CPU it took there, told on the loop.

Owns nothing: how many may run at once is said by whoever asks. The threads are daemons: what still reads a disk when
the service has ended holds up neither the loop's end nor the process's.
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
"""Takes seconds of CPU."""


def uncharged(_seconds: float) -> None:
    """What is done once, or seldom, costs nobody anything."""


async def on_a_thread(work: Callable[[], T], limiter: anyio.CapacityLimiter, charge: Charge = uncharged) -> T:
    """Do it on a thread, as soon as the limiter lets it; what it took is charged, also where it raises.

    Cancelled, it is left behind, and its place given to the next.
    """
    found, spent = Future[T](), list[float]()

    def run() -> None:
        began = time.thread_time()
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            spent.append(time.thread_time() - began)
            found.set_exception(error)
        else:
            spent.append(time.thread_time() - began)
            found.set_result(result)

    async with limiter:
        found.set_running_or_notify_cancel()  # from here on nobody can cancel what the thread will answer
        threading.Thread(target=run, name="api-reads", daemon=True).start()
        try:
            return await asyncio.wrap_future(found)
        finally:
            charge(sum(spent))


class MadeOnce(Generic[T]):
    """A value that is made on a thread when it is first needed, and then kept."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._limiter = anyio.CapacityLimiter(1)
        self._made: T | None = None

    async def get(self) -> T:
        """Return the value; make it first if nothing has, or wait while it is being made."""
        if self._made is None:
            return await on_a_thread(self._once, self._limiter)
        return self._made

    def _once(self) -> T:
        if self._made is None:
            self._made = self._make()
        return self._made
