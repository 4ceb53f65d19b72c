"""Counters of the server of predictions. All on the HTTP side's loop, except `swapped` and `failed_to_load`.

Bounded: outcomes and versions are few, and only the last versions are kept.
"""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

OUTCOMES = ("answered", "refused", "busy", "failed")
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096)


@dataclass(slots=True)
class Distributed:
    """How often which values came."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class ServingMeter:
    """What was asked, and what became of it."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        self.seconds, self.batch_rows = Distributed(SECONDS), Distributed(tuple(map(float, ROWS)))
        self.rows = 0
        self.in_progress = 0
        self.swaps = self.load_failures = self.fetches = 0

    def ended(self, status: int, seconds: float) -> None:
        """Count a predict request by its status."""
        self.requests[_outcome(status)] += 1
        self.seconds.add(seconds)

    def called(self, rows: int) -> None:
        """Count a call of the model."""
        self.rows += rows
        self.batch_rows.add(rows)

    def swapped(self) -> None:
        """Count that another version answers from now on. The follower's thread alone."""
        self.swaps += 1

    def failed_to_load(self) -> None:
        """Count a version that could not be fetched or loaded. The follower's thread alone."""
        self.load_failures += 1


def _outcome(status: int) -> str:
    if status < 400:
        return "answered"
    if status == 503:
        return "busy"
    return "refused" if status < 500 else "failed"
