"""Run what is too slow for the HTTP side's event loop on threads.

Owns nothing: the caller's limiter says how many may run at once. The threads are daemons, so that a slow disk delays
neither the end of the loop nor that of the process.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import anyio

T = TypeVar("T")


async def run_on_thread(work: Callable[[], T], limiter: anyio.CapacityLimiter) -> T:
    """Return what `work` returns, or raise what it raises; run it on a thread as soon as the limiter has room.

    If the caller is cancelled, the thread is left to finish by itself and its place in the limiter is free at once.
    """
    future = Future[T]()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - raised again where the future is awaited
            future.set_exception(error)
        else:
            future.set_result(result)

    async with limiter:
        # A future that runs cannot be cancelled, so the thread may always set its result.
        future.set_running_or_notify_cancel()
        threading.Thread(target=run, name="api-reads", daemon=True).start()
        return await asyncio.wrap_future(future)
