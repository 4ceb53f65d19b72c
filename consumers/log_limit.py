"""A rate limit for log lines: each logger of a library may write a given number of lines per minute.

Owns a filter or two per logger; runs on the thread that logs. Lines beyond the limit are dropped and counted, and the
first line of the next minute reports how many. `limit_repeats` limits how often a line of the same kind is repeated:
the first is logged at once, then one in ten minutes, with the count. At debug level every line is there.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

_WINDOW_S = 60.0
_REPEAT_S = 600.0
_PASSING = {"aiokafka.consumer.group_coordinator": ("Group Coordinator Request failed: %s",)}
"""Lines about what a new broker does for its first seconds. If it lasts, the commit that fails is reported."""


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
        _report(record, held_back)
        return True


@dataclass(slots=True)
class _Kind:
    quiet_until: float = float("-inf")
    held_back: int = 0


class RepeatLimit(logging.Filter):
    """Passes the first line of each kind, then one in ten minutes, and reports how many it held back.

    Lines are of one kind if they have the same text before values are filled in, and the same types of errors in it.
    """

    def __init__(self, hidden: Collection[str] = (), clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._hidden = hidden
        self._clock = clock
        self._lock = threading.Lock()
        self._kinds: dict[Any, _Kind] = {}
        """A library has few texts, so this stays small."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line may pass."""
        if logging.root.isEnabledFor(logging.DEBUG):
            return True
        if record.msg in self._hidden:
            return False
        errors = (type(arg) for arg in record.args or () if isinstance(arg, BaseException))
        with self._lock:
            kind = self._kinds.setdefault((record.msg, *errors), _Kind())
            if self._clock() < kind.quiet_until:
                kind.held_back += 1
                return False
            held_back, kind.held_back, kind.quiet_until = kind.held_back, 0, self._clock() + _REPEAT_S
        _report(record, held_back)
        return True


def _report(record: logging.LogRecord, held_back: int) -> None:
    if held_back:
        record.msg = f"{record.getMessage()} (and {held_back} more lines like it were held back)"
        # The message is formatted already; with arguments, logging would format it a second time.
        record.args = None


def limit_loggers(prefix: str, lines_per_minute: int) -> None:
    """Limit the logger of this name and every existing one below it, each on its own. A second call changes nothing."""
    for logger in _loggers(prefix):
        if not any(isinstance(present, LogLimit) for present in logger.filters):
            logger.addFilter(LogLimit(lines_per_minute))


def limit_repeats(prefix: str) -> None:
    """Limit the repeats of the same loggers' lines; call it first, so that these do not use up the lines per minute."""
    for logger in _loggers(prefix):
        if not any(isinstance(present, RepeatLimit) for present in logger.filters):
            logger.addFilter(RepeatLimit(_PASSING.get(logger.name, ())))


def _loggers(prefix: str) -> list[logging.Logger]:
    # Each logger needs a filter of its own: logging does not apply a logger's filters to the lines of its children.
    names = [name for name in logging.root.manager.loggerDict if name == prefix or name.startswith(f"{prefix}.")]
    return [logging.getLogger(name) for name in names]
