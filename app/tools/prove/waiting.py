"""Waiting for a condition, for a finite time. Runs on the caller's thread."""

import time
from collections.abc import Callable
from typing import TypeVar

from app.tools.prove.errors import WaitedError

T = TypeVar("T")
PATIENCE_S = 180.0
"""A start takes 10 s on a quiet machine, and this one may not be quiet."""
_POLL_S = 0.01


def wait_until(condition: Callable[[], T], what: str, within_s: float = PATIENCE_S) -> T:
    """Wait for a condition and return its answer. WaitedError, naming `what` was waited for, when time is up."""
    ends_at = time.monotonic() + within_s
    while not (answer := condition()):
        if time.monotonic() >= ends_at:
            raise WaitedError(f"waited {within_s:g} s for {what}")
        time.sleep(_POLL_S)
    return answer
