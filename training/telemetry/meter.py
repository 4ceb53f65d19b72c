"""The meter: how fast the model learns, how fresh the learnt records are, and what the trainer's thread waits for.

Owns one bucket for each second, kept for five minutes. The trainer's thread writes; any thread reads frozen snapshots.
"""

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from millrace.pipelines.stream.blocks import BlockFacts

WINDOWS: Mapping[str, int] = {"10s": 10, "1m": 60, "5m": 300}
_KEPT_S = max(WINDOWS.values())
FRESHNESS_BOUNDS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0, 43200.0)
"""Upper bounds of the bins of the freshness histogram; one more bin holds what is above the last bound."""


@dataclass(slots=True)
class Bucket:
    """One second of the trainer's life."""

    second: int
    learnt: int = 0
    settled: int = 0
    batches: int = 0
    waited_s: float = 0.0
    others_s: float = 0.0
    computed_s: float = 0.0
    saving_s: float = 0.0
    freshness_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTimes:
    """When each part of a call happened, on the trainer's monotonic clock."""

    facts: BlockFacts
    """The facts of its block, with the times before the call."""
    began: float
    stepped: float
    """When the training steps had returned."""
    ended: float
    """When its records were settled and scored."""
    step: int
    """Batches learnt since checkpoint 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meterings:
    """The meter at an instant."""

    records_per_s: Mapping[str, float]
    """Offsets learnt a second over each window; a window that is longer than the run covers the run."""
    waiting: Mapping[str, float]
    """The portions of the last minute that the trainer's thread spent waiting for blocks, for the other workers of its
    group, computing, and saving."""
    freshness_s: Mapping[str, float]
    """Seconds from the timestamp of a call's oldest record to the call's return, over the last minute: p50, p99, max.
    A timestamp in the future counts as 0."""
    freshness_counts: tuple[int, ...]
    """The number of calls of this process in each bin of FRESHNESS_BOUNDS_S."""
    freshness_sum_s: float
    """The sum of the freshness of these calls."""
    learnt: int
    """Offsets learnt by this process."""
    calls: int
    """Calls that returned in this process."""
    settled_per_s: float = 0.0
    """Offsets settled a second over the last minute: learnt, filtered or whatever else."""


class Meter:
    """Counts what the trainer's thread did, second by second."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begun = clock()
        self._lock = threading.Lock()
        self._buckets: deque[Bucket] = deque()
        self._learnt = 0
        self._calls = 0
        self._freshness_counts = [0] * (len(FRESHNESS_BOUNDS_S) + 1)
        self._freshness_sum_s = 0.0
        self.last_call: CallTimes | None = None
        """The newest call, replaced as a whole, for any thread that wants one; None before the first."""

    def waited(self, seconds: float) -> None:
        """Count time that the thread waited for a block."""
        with self._lock:
            self._bucket().waited_s += seconds

    def waited_for_workers(self, seconds: float) -> None:
        """Count time that the thread waited for the other workers of its group."""
        with self._lock:
            self._bucket().others_s += seconds

    def called(
        self, seconds: float, learnt: int, batches: int, freshness_s: float | None, settled: int | None = None
    ) -> None:
        """Count a call that returned: its duration, its records and batches, and how fresh its oldest record was.

        `settled`: how many offsets it covers; None where each has a record that was learnt.
        """
        with self._lock:
            bucket = self._bucket()
            bucket.computed_s += seconds
            bucket.learnt += learnt
            bucket.settled += learnt if settled is None else settled
            bucket.batches += batches
            if freshness_s is not None:
                age_s = max(0.0, freshness_s)
                bucket.freshness_s.append(age_s)
                self._freshness_counts[bisect_left(FRESHNESS_BOUNDS_S, age_s)] += 1
                self._freshness_sum_s += age_s
            self._learnt += learnt
            self._calls += 1

    def saved(self, seconds: float) -> None:
        """Count time that the thread took to copy its state."""
        with self._lock:
            self._bucket().saving_s += seconds

    def snapshot(self) -> Meterings:
        """Return rates, portions and ages as of now."""
        with self._lock:
            now = self._clock()
            minute = [bucket for bucket in self._buckets if bucket.second >= now - 60]
            shares = {
                "blocks": sum(bucket.waited_s for bucket in minute),
                "workers": sum(bucket.others_s for bucket in minute),
                "compute": sum(bucket.computed_s for bucket in minute),
                "saving": sum(bucket.saving_s for bucket in minute),
            }
            whole = sum(shares.values())
            ages = sorted(age for bucket in minute for age in bucket.freshness_s)
            last = len(ages) - 1
            return Meterings(
                records_per_s={name: self._rate(now, seconds) for name, seconds in WINDOWS.items()},
                waiting={name: value / whole if whole else 0.0 for name, value in shares.items()},
                freshness_s={"p50": ages[last // 2], "p99": ages[int(last * 0.99)], "max": ages[-1]} if ages else {},
                freshness_counts=tuple(self._freshness_counts),
                freshness_sum_s=self._freshness_sum_s,
                learnt=self._learnt,
                calls=self._calls,
                settled_per_s=sum(bucket.settled for bucket in minute) / max(min(60.0, now - self._begun), 1e-3),
            )

    def _rate(self, now: float, seconds: int) -> float:
        """Return records a second over the whole seconds in the window and the present one, since the process began."""
        oldest = int(now) - seconds + 1
        learnt = sum(bucket.learnt for bucket in self._buckets if bucket.second >= oldest)
        return learnt / max(now - max(oldest, self._begun), 1e-3)

    def _bucket(self) -> Bucket:
        second = int(self._clock())
        if not self._buckets or self._buckets[-1].second != second:
            self._buckets.append(Bucket(second))
            while self._buckets[0].second < second - _KEPT_S:
                self._buckets.popleft()
        return self._buckets[-1]
