"""A thread of its own for an event loop, and how late that loop is.

Owns one named thread and the loop that runs in it. Work comes from other threads (`submit`, `run`, `call`) and is
never refused for want of room: its users bound what they submit. `stop` cancels what is left and joins the thread.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from consumers.loop_lag import LoopLag

T = TypeVar("T")


class LoopThread:
    """An event loop in a daemon thread of its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lag = LoopLag()

    def start(self) -> None:
        """Begin to turn."""
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_turn, args=(loop,), name=self._name, daemon=True)
        self._thread.start()
        self.call(lambda: self._lag.watch(loop))

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run the coroutine on the loop; its result comes through the future. Raises RuntimeError when stopped."""
        if self._loop is None or self._loop.is_closed():
            work.close()
            raise RuntimeError(f"the thread {self._name} is not running")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None) -> T:
        """Run the coroutine on the loop and wait for it. Raises TimeoutError, having cancelled it."""
        future = self.submit(work)
        try:
            return future.result(timeout_s)
        finally:
            future.cancel()

    def call(self, callback: Callable[[], None]) -> None:
        """Call back soon on the loop; nothing happens where it has stopped."""
        if self._loop is None:
            return
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    def stop(self, timeout_s: float) -> bool:
        """Cancel what is left, join the thread. Whether it ended in time; it may start again then."""
        if self._loop is None or self._thread is None:
            return True
        self.call(self._loop.stop)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def lag_p99_s(self) -> float:
        """How late the loop was for its timers over the last half minute: the 99th percentile, seconds."""
        return self._lag.p99_s()


def _turn(loop: asyncio.AbstractEventLoop) -> None:
    """The thread's body: turn until stopped, then let what is left end."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        while left := asyncio.all_tasks(loop):
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
