"""Waiting for a condition, for a finite time. Runs on the caller's thread."""

import time
from collections.abc import Callable
from typing import TypeVar

from millrace.app.tools.prove.errors import WaitedError

T = TypeVar("T")
PATIENCE_S = 180.0
"""A start takes 10 s on a quiet machine, and this one may not be quiet."""
_POLL_S, _LONGEST_S = 0.01, 0.2
_REST = 9
"""So many times what a look has taken is the pause after it: looks by HTTP would otherwise keep two processes busy."""


def wait_until(condition: Callable[[], T], what: str, within_s: float = PATIENCE_S) -> T:
    """Wait for a condition and return its answer. WaitedError, naming `what` was waited for, when time is up."""
    ends_at = time.monotonic() + within_s
    looked_at = time.monotonic()
    while not (answer := condition()):
        if (now := time.monotonic()) >= ends_at:
            raise WaitedError(f"waited {within_s:g} s for {what}")
        time.sleep(min(max(_POLL_S, _REST * (now - looked_at)), _LONGEST_S))
        looked_at = time.monotonic()
    return answer
