"""Lowers the priority of a process, and of no other: for work that must not slow a trainer beside it."""

import os
from contextlib import suppress
from pathlib import Path

NICE = 19
"""The lowest: beside a trainer that leaves no core idle the process still has a seventieth of one."""


def give_way(pid: int = 0) -> None:
    """Have this process, or a child that has just begun, give way to the others of its session.

    Where Linux groups processes by session, the session has a number of its own (`/proc/self/autogroup`). It is left
    alone: it is that of the terminal, or of the trainer, too.
    """
    with suppress(ProcessLookupError):  # the child has ended
        os.setpriority(os.PRIO_PROCESS, pid, NICE)


def run_when_idle(pid: int) -> bool:
    """Have a child that has just begun run only while a core is idle; return whether this system can do so.

    It gives a core back at once, which a process of low priority does only at the end of its slice of time. Without
    privileges there is no way back: a process that starves so has to be ended and started again.
    """
    if not hasattr(os, "SCHED_IDLE"):
        return False
    with suppress(ProcessLookupError):
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
    return True


def cpu_s_of_group(group: int) -> float:
    """Return the CPU time of all processes of a group that live, those that they have waited for included."""
    ticks = 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            _, _, of_group, *rest = file.read_text().rpartition(")")[2].split()
            ticks += sum(map(int, rest[8:12])) if int(of_group) == group else 0
    return ticks / os.sysconf("SC_CLK_TCK")
