"""The process: its signals, and settings that make it fast: the interpreter's threads and collector, the C allocator.

Owns these process-wide settings, each beside what it brings; called on the main thread around the imports, and on the
trainer's thread before the first call.
Threads of TensorFlow are set where its devices are (`training.model.setup.strategy`), sizes of fetches and chunks where
Kafka's options are (`consumers.kafka.options`).
"""

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from millrace.pipelines.stream.freed_memory import keep_freed_memory

_SWITCH_S = 0.001
"""After which a thread that computes in Python lets go of its lock, where others wait. At its own 5 ms the trainer
waits 15 ms between two calls while all of ingest runs; a record costs the same CPU, or 3 % more."""
SERVING_SWITCH_S = 0.0002
"""The same where requests are answered beside a thread that reads a topic: each passes through several threads."""

FORCED = 1
"""The exit code of an end that was forced."""


def tune(switch_s: float = _SWITCH_S) -> None:
    """Apply all of these settings."""
    sys.setswitchinterval(switch_s)
    keep_freed_memory()
    spare_the_collector()


@contextmanager
def sparing_imports() -> Iterator[None]:
    """Keep the cyclic collector off while modules are imported, and off what they hold for good.

    Half a million objects are made, of which 0.3 % are garbage, and later collections need not walk the others. A start
    takes half a second of CPU less.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def spare_the_collector() -> None:
    """Keep the cyclic collector off the hot path.

    Objects that exist now stay, so the collector need not walk them again, and records form no cycles. At
    Python's own thresholds the consumer's loop alone lags by 290 ms (p99) at full speed, without a collector by 80.
    """
    # Collected first: garbage that is frozen would stay for ever.
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


class Signals:
    """Takes SIGTERM and SIGINT: the first asks for the ordered end, the second forces it.

    The handlers run on the main thread and only set a flag; `app.run` acts on it, and the trainer finishes
    (`Trainer._finish`). They are installed before anything slow is imported. Until the service begins there is nothing
    to end in order, so the process ends at once, and well: an import of some seconds cannot be hurried by a flag.
    """

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
