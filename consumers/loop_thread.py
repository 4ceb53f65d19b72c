"""An event loop in its own thread, and how late that loop is.

Owns one named thread and the loop that runs in it. Other threads give it work (`submit`, `run`, `call`). It has no
bound of its own: its users limit what they submit. `stop` cancels the tasks that are left and joins the thread.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

_EVERY_S = 0.05
_KEPT = 600


class LoopLag:
    """How late a loop runs its timers: a sign that something slow runs on it or keeps it from running.

    Owns the measurements of the last half minute. A timer takes one every 50 ms on the loop; any thread reads the 99th
    percentile. When the loop was blocked for longer than 50 ms, every timer that was due meanwhile is measured, not
    only the first: otherwise one long block would count as one late timer. The oldest measurements are dropped; it ends
    with the loop.
    """

    def __init__(self) -> None:
        self._lags_s: deque[float] = deque(maxlen=_KEPT)

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to measure. Call it on the loop, once per loop."""
        due = loop.time() + _EVERY_S
        loop.call_at(due, self._measure, loop, due)

    def p99_s(self) -> float:
        """Return the 99th percentile of how late the timers were in the last half minute, in seconds."""
        lags = sorted(self._lags_s.copy())
        return lags[int(len(lags) * 0.99)] if lags else 0.0

    def _measure(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        now = loop.time()
        due = max(due, now - _KEPT * _EVERY_S)  # older measurements would be dropped anyway
        while due <= now:
            self._lags_s.append(now - due)
            due += _EVERY_S
        loop.call_at(due, self._measure, loop, due)


T = TypeVar("T")


class LoopThread:
    """An event loop in its own daemon thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lag = LoopLag()

    def start(self) -> None:
        """Start the thread and its loop."""
        loop = self._loop = asyncio.new_event_loop()
        # A daemon: a loop that hangs is abandoned by its user and must not keep the process from ending.
        self._thread = threading.Thread(target=_run_loop, args=(loop,), name=self._name, daemon=True)
        self._thread.start()
        self.call(lambda: self._lag.watch(loop))

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run the coroutine on the loop and return a future of its result. Raises RuntimeError when stopped."""
        if self._loop is None or self._loop.is_closed():
            # Otherwise Python warns that the coroutine was never awaited.
            work.close()
            raise RuntimeError(f"the thread {self._name} is not running")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None) -> T:
        """Run the coroutine on the loop and return its result. After `timeout_s`, cancel it and raise TimeoutError."""
        future = self.submit(work)
        try:
            return future.result(timeout_s)
        finally:
            future.cancel()

    def call(self, callback: Callable[[], None]) -> None:
        """Call back soon on the loop. Nothing happens when the loop has stopped."""
        if self._loop is None:
            return
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    def stop(self, timeout_s: float) -> bool:
        """Cancel the tasks that are left and join the thread. Return whether it ended in time.

        A thread that has ended may be started again.
        """
        if self._loop is None or self._thread is None:
            return True
        self.call(self._loop.stop)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def lag_p99_s(self) -> float:
        """Return the 99th percentile of how late the loop's timers were in the last half minute, in seconds."""
        return self._lag.p99_s()


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped, then cancel its tasks and wait for them. This is the thread's body."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        # Repeated, because a task may start others while it is being cancelled.
        while left := asyncio.all_tasks(loop):
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
