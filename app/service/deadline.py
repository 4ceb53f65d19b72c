"""A deadline for what cannot be interrupted: a thread of its own acts when it passes."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def deadline(seconds: float, passed: Callable[[], None]) -> Iterator[None]:
    """Call `passed` on the thread `deadline` if this lasts longer."""
    timer = threading.Timer(seconds, passed)
    timer.name, timer.daemon = "deadline", True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
