"""Replacing this process by a new one of the same command, which meets the other workers of its group again.

In place, because a container that ends waits longer each time, up to five minutes, and the whole group with it.
"""

import logging
import os
import sys
import threading
import time
from dataclasses import dataclass

from millrace.app.settings.environment import begun_again, times_begun_again

log = logging.getLogger(__name__)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _LOOK_EVERY_S = 0.5, 30.0, 0.1
_START_OVER, _PAUSED = "--start-over", "--paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """With what a process begins again."""

    saved: bool
    """Whether this process has saved anything that it learnt: then it is the first time in a row."""
    resumes: bool
    """Whether it has a checkpoint to resume from: then nothing is started over again, number 0 included."""
    suspects: str
    """What the next one has to search before it learns, as JSON."""
    paused: bool
    """Whether it comes up paused, as this one is, whatever it was started with."""


def begin_again(again: Again, asked: threading.Event) -> None:
    """Begin again, each time in a row after a longer pause; return only where a stop was asked for meanwhile."""
    times = 0 if again.saved else times_begun_again()
    pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**times)
    log.info("beginning again to meet the group, after %g s", pause_s)
    begins_at = time.monotonic() + pause_s
    while not asked.is_set() and time.monotonic() < begins_at:
        time.sleep(_LOOK_EVERY_S)  # a wait for the event would hold its lock when a signal sets it on this thread
    if asked.is_set():
        return
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    left_out = {_PAUSED, _START_OVER} if again.resumes else {_PAUSED}
    arguments = [one for one in sys.orig_argv[1:] if one not in left_out]
    command = [sys.executable, *arguments, *([_PAUSED] if again.paused else [])]
    os.execve(sys.executable, command, begun_again(times + 1, again.suspects))  # noqa: S606 - this very program
