"""How many cores this process may use: its affinity and its cgroup's quota, as a pod's CPU limit is one.

Counting the machine's cores instead would start 64 threads in a pod of two. Runs on any thread; reads /sys once.
"""

import os
from functools import cache
from math import ceil
from pathlib import Path

_CGROUP_2 = "cpu.max"
_CGROUP_1 = ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")


@cache
def usable_cores() -> int:
    """Return the number of cores that this process may use, at least one."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, quota(Path("/sys/fs/cgroup")) or allowed))


def quota(mounted: Path) -> int | None:
    """Return how many cores a control group grants, rounded up; None where it sets no limit."""
    try:
        if (mounted / _CGROUP_2).exists():
            granted, period = (mounted / _CGROUP_2).read_text().split()
        else:
            granted, period = ((mounted / name).read_text().strip() for name in _CGROUP_1)
        return ceil(int(granted) / int(period)) if int(granted) > 0 else None
    except (OSError, ValueError):  # not here, or `max`
        return None
