"""Waiting for a condition, for a finite time."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE_S = 180.0
"""A start takes 10 s on a quiet machine, and this suite may not have one."""


def wait_until(condition: Callable[[], T], what: str, within_s: float = PATIENCE_S) -> T:
    """Give what the condition answered when it held; AssertionError, saying what was waited for, when time is up."""
    ends_at = time.monotonic() + within_s
    while not (answer := condition()):
        if time.monotonic() >= ends_at:
            raise AssertionError(f"waited {within_s:g} s for {what}")
        time.sleep(0.01)
    return answer
