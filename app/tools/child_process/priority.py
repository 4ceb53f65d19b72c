"""Lowers the priority of this process, and of no other: for work that must not slow a trainer beside it."""

import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)
_NICE = 12
"""About a fifteenth of what a trainer gets that wants all cores, and all that is idle otherwise.

With 10 a trainer on two busy cores kept 0.90 of its CPU time beside an export when measured (2026-11-25): no room.
"""
_AUTOGROUP = Path("/proc/self/autogroup")


def give_way() -> None:
    """Have this process and its children give way to others.

    Where Linux groups processes by session, a process's own number counts within its session only, and the session has
    another one. That number is lowered by the process that leads the session alone: in a terminal, or in a trainer's
    session, it would slow every other process there, for good.
    """
    os.nice(_NICE)
    if os.getsid(0) != os.getpid():
        return
    try:
        _AUTOGROUP.write_text(str(_NICE))
    except OSError:
        log.debug("this system does not group processes by session")
