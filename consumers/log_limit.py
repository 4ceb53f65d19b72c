"""A rate limit for log lines: each logger of a library may write a given number of lines per minute.

Owns one filter per logger; runs on the thread that logs. Lines beyond the limit are dropped and counted, and the first
line of the next minute reports how many.
"""

import logging
import threading
import time
from collections.abc import Callable

_WINDOW_S = 60.0


class LogLimit(logging.Filter):
    """Passes at most `lines_per_minute` lines of one logger, and reports how many it held back."""

    def __init__(self, lines_per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._limit = lines_per_minute
        self._clock = clock
        self._lock = threading.Lock()
        self._window_began = float("-inf")
        self._passed = 0
        self._held_back = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line may pass."""
        with self._lock:
            held_back = 0
            if self._clock() - self._window_began >= _WINDOW_S:
                self._window_began = self._clock()
                held_back, self._held_back, self._passed = self._held_back, 0, 0
            if self._passed >= self._limit:
                self._held_back += 1
                return False
            self._passed += 1
        if held_back:
            record.msg = f"{record.getMessage()} (and {held_back} more lines like it were held back)"
            # The message is formatted already; with arguments, logging would format it a second time.
            record.args = None
        return True


def limit_loggers(prefix: str, lines_per_minute: int) -> None:
    """Limit the logger of this name and every existing one below it, each on its own. A second call changes nothing."""
    # Each logger needs a filter of its own: logging does not apply a logger's filters to the lines of its children.
    names = [name for name in logging.root.manager.loggerDict if name == prefix or name.startswith(f"{prefix}.")]
    for logger in map(logging.getLogger, names):
        if not any(isinstance(present, LogLimit) for present in logger.filters):
            logger.addFilter(LogLimit(lines_per_minute))
