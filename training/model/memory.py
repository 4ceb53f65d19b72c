"""How much memory this process may use: the machine's, or its cgroup's limit, as a pod's memory limit is one."""

import os
from contextlib import suppress
from pathlib import Path


def usable_memory() -> int:
    """Return the bytes that this process may use."""
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(there, memory_limit(Path("/sys/fs/cgroup")) or there)


def memory_limit(cgroups: Path) -> int | None:
    """Return the limit that cgroups set (v2, or v1); None where they set none."""
    for file in (cgroups / "memory.max", cgroups / "memory" / "memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            return int(file.read_text())
    return None
