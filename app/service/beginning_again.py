"""Replacing this process by a new one of the same command, which meets the other workers of its group again.

In place, because a container that ends waits longer each time, up to five minutes, and the whole group with it.
"""

import logging
import os
import sys
import time
from dataclasses import dataclass

from app.settings.environment import begun_again, times_begun_again

log = logging.getLogger(__name__)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """With what a process begins again."""

    saved: bool
    """Whether this process has saved anything: then it is the first time in a row."""
    suspects: str
    """What the next one has to search before it learns, as JSON."""


def begin_again(again: Again) -> None:
    """Begin again, each time in a row after a longer pause."""
    times = 0 if again.saved else times_begun_again()
    pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**times)
    log.info("beginning again to meet the group, after %g s", pause_s)
    time.sleep(pause_s)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    command = [sys.executable, *sys.orig_argv[1:]]
    os.execve(sys.executable, command, begun_again(times + 1, again.suspects))  # noqa: S606 - this very program
