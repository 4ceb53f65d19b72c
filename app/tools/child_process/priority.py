"""Lowers the priority of a process, and of no other: for work that must not slow a trainer beside it."""

import os
from contextlib import suppress

NICE = 19
"""The lowest: beside a trainer that leaves no core idle the process still has a seventieth of one."""


def give_way(pid: int = 0) -> None:
    """Have this process, or a child that has just begun, give way to the others of its session.

    Where Linux groups processes by session, the session has a number of its own (`/proc/self/autogroup`). It is left
    alone: it is that of the terminal, or of the trainer, too.
    """
    with suppress(ProcessLookupError):  # the child has ended
        os.setpriority(os.PRIO_PROCESS, pid, NICE)
