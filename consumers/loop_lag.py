"""How late an event loop runs its timers: a sign that something slow runs on it or keeps it from running.

Owns the measurements of the last half minute. A timer takes one every 50 ms on the loop; any thread reads the 99th
percentile. When the loop was blocked for longer than 50 ms, every timer that was due meanwhile is measured, not only
the first: otherwise one long block would count as one late timer. The oldest measurements are dropped; it ends with
the loop.
"""

import asyncio
from collections import deque

_EVERY_S = 0.05
_KEPT = 600


class LoopLag:
    """The measured lags of one loop."""

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
