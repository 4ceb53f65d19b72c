"""What a process uses, as Linux counts it."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

_TICKS_A_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """A process at an instant."""

    cpu_s: float
    """Since its start, all threads together."""
    anonymous_bytes: int
    """Resident memory that is no file."""
    threads: int
    descriptors: int

    @classmethod
    def of(cls, pid: int) -> "Vitals":
        """Look at it now."""
        process = Path(f"/proc/{pid}")
        status = process.joinpath("status").read_text()
        times = process.joinpath("stat").read_text().rpartition(")")[2].split()[11:13]
        return cls(
            cpu_s=sum(map(int, times)) / _TICKS_A_S,
            anonymous_bytes=_number(status, "RssAnon") * 1024,
            threads=_number(status, "Threads"),
            descriptors=len(list(process.joinpath("fd").iterdir())),
        )


def _number(status: str, key: str) -> int:
    found = re.search(rf"^{key}:\s+(\d+)", status, re.MULTILINE)
    assert found is not None, f"Linux says nothing of {key}"
    return int(found[1])
