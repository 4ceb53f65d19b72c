"""How much of the machine others took while something of ours ran.

Owns nothing. Reads /proc; where there is none, nothing can be said.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Ask Linux to make this process the parent of what loses its own, as a browser's helpers do; elsewhere do nothing.

    They stay in the family so, and are not taken for others' work.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def others_s() -> float | None:
    """Return the CPU seconds of all cores so far but for this process and what it started; None without /proc.

    What the host of a virtual machine took from it counts as taken by others.
    """
    if not (_PROC / "stat").exists():
        return None
    user, nice, system, _, _, *rest = map(int, (_PROC / "stat").read_text().partition("\n")[0].split()[1:9])
    return (user + nice + system + sum(rest) - sum(_family())) / os.sysconf("SC_CLK_TCK")


def _family() -> Iterator[int]:
    """Yield the clock ticks of this process and of each that descends from it, those that have ended included."""
    parents, spent = dict[int, int](), dict[int, int]()
    for stat in _PROC.glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        parents[int(stat.parent.name)] = int(fields[1])
        spent[int(stat.parent.name)] = sum(map(int, fields[11:15]))  # its own, and its children's that have ended
    for process, ticks in spent.items():
        ancestor = process
        while ancestor not in {0, 1, os.getpid()}:
            ancestor = parents.get(ancestor, 0)
        if ancestor == os.getpid():
            yield ticks
