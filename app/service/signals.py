"""Signals: SIGTERM and SIGINT ask for the ordered end, and a second one forces it.

Owns the process's two handlers, which run on the main thread and only set a flag; `app.run` acts on it, and the
trainer finishes (`Trainer._finish`). They are installed before anything
slow is imported. Until the service begins there is nothing to end in order, so the process ends at once, and well: an
import of some seconds cannot be hurried by a flag.
"""

import os
import signal
import threading
from types import FrameType

FORCED = 1
"""The exit code of an end that was forced."""


class Signals:
    """Takes SIGTERM and SIGINT: the first asks for the ordered end, the second forces it."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self._begun = False

    def install(self) -> None:
        """Install the handlers; until `begin`, a signal ends the process at once."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._take)

    def begin(self) -> None:
        """Let the first signal ask for the ordered end from now on, and the second force it."""
        self._begun = True

    def _take(self, _number: int, _frame: FrameType | None) -> None:
        if not self._begun:
            os._exit(0)
        if self.asked.is_set():
            os._exit(FORCED)
        self.asked.set()
