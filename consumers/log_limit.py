"""A limit on what a chatty library may log: at most so many lines a minute from each of its loggers.

Owns one filter a logger; runs in whichever thread logs. Past the limit lines are held back and counted, and the
first line of the next minute says how many.
"""

import logging
import threading
import time
from collections.abc import Callable

_WINDOW_S = 60.0


class LogLimit(logging.Filter):
    """Passes at most `lines_per_minute` lines of one logger, and says how many it held back."""

    def __init__(self, lines_per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._limit = lines_per_minute
        self._clock = clock
        self._lock = threading.Lock()
        self._window_began = float("-inf")
        self._passed = 0
        self._held_back = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line may pass."""
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
            record.args = None
        return True


def limit_loggers(prefix: str, lines_per_minute: int) -> None:
    """Limit the logger of this name and all below it that exist by now, each on its own. Twice is once."""
    names = [name for name in logging.root.manager.loggerDict if name == prefix or name.startswith(f"{prefix}.")]
    for logger in map(logging.getLogger, names):
        if not any(isinstance(present, LogLimit) for present in logger.filters):
            logger.addFilter(LogLimit(lines_per_minute))
