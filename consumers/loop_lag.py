"""How late an event loop is for its timers: whether something slow runs on it, or keeps it from running.

Owns half a minute of measurements. A timer of its own takes one every 50 ms on the loop; any thread reads the 99th
percentile. A loop that was away for longer owes several at once: each is as late as a probe that came then would have
been. When it is full the oldest goes; it ends with the loop.
"""

import asyncio
from collections import deque

_EVERY_S = 0.05
_KEPT = 600


class LoopLag:
    """The lags of one loop."""

    def __init__(self) -> None:
        self._lags_s: deque[float] = deque(maxlen=_KEPT)

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to measure; on the loop, and once for each that it turns in."""
        self._schedule(loop, loop.time() + _EVERY_S)

    def p99_s(self) -> float:
        """How late the loop was for its timers over the last half minute: the 99th percentile, seconds."""
        lags = sorted(self._lags_s.copy())
        return lags[int(len(lags) * 0.99)] if lags else 0.0

    def _schedule(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        loop.call_at(due, self._take, loop, due)

    def _take(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        now = loop.time()
        due = max(due, now - _KEPT * _EVERY_S)  # what is older would not be kept
        while due <= now:
            self._lags_s.append(now - due)
            due += _EVERY_S
        self._schedule(loop, due)
