"""Order: which partition's chunk leaves the hand-off next.

Policies are callables from the head chunks to the partition to take, None to wait; the hand-off asks on the feed's
thread, each time that something has changed. None in place of a policy takes chunks as they arrived.
"""

import time
from collections.abc import Callable, Collection, Mapping

from consumers.handoff import Pick
from consumers.records import Chunk, Partition

PATIENCE_S = 0.5
"""How long a partition that lags, yet has nothing here, is waited for before the others go on without it."""
AHEAD = 2
"""Chunks of a partition that the rotation takes in advance, so that decoding goes on while another has its turn."""


class EventTimeOrder:
    """Behind by much, the oldest records first; else as they arrived.

    So the model does not learn one partition's month before another's. A partition that lags but has no chunk here may
    hold the oldest of all: it is waited for, a bounded while each time. (Its share of the hand-off is its own, so the
    others cannot keep it out by filling theirs.)
    """

    def __init__(
        self,
        behind: Callable[[], Collection[Partition]],
        slack_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._behind, self._slack_ms = behind, slack_s * 1000
        self._clock, self._wall = clock, wall
        self._missing_since: dict[Partition, float] = {}

    def __call__(self, heads: Mapping[Partition, Chunk]) -> Partition | None:
        """The partition to take from; None while a missing one is waited for."""
        if not heads:
            return None
        oldest = min(heads, key=lambda partition: (_time_of(heads[partition]), partition))
        if _time_of(heads[oldest]) > self._wall() * 1000 - self._slack_ms:
            self._missing_since.clear()
            return min(heads, key=lambda partition: heads[partition].fetched_at)
        return None if self._is_missed(heads) else oldest

    def _is_missed(self, heads: Mapping[Partition, Chunk]) -> bool:
        now = self._clock()
        missing = [partition for partition in self._behind() if partition not in heads]
        self._missing_since = {partition: self._missing_since.get(partition, now) for partition in missing}
        return any(now - since < PATIENCE_S for since in self._missing_since.values())


def _time_of(chunk: Chunk) -> int:
    """Its first record's time; a chunk without records holds nobody up."""
    return int(chunk.timestamps[0]) if len(chunk) else -1


class RotationOrder:
    """For the assembler's strict rotation: first the partition that it waits for, then a little ahead of it.

    It decides only what is decoded early; the order of rows is the assembler's alone.
    """

    def __init__(self, wanted: Callable[[], Partition | None], ahead: Callable[[Partition], int]) -> None:
        self._wanted, self._ahead = wanted, ahead

    def __call__(self, heads: Mapping[Partition, Chunk]) -> Partition | None:
        """The partition to take from; None if all that are here have enough ahead."""
        wanted = self._wanted()
        if wanted is not None and wanted in heads and self._ahead(wanted) < AHEAD:
            return wanted
        least = min(heads, key=lambda partition: (self._ahead(partition), partition), default=None)
        return least if least is not None and self._ahead(least) < AHEAD else None


def draining(pick: Pick) -> Pick:
    """The same policy once all was sent: what it would wait for will not come, so it takes the oldest instead."""

    def drain(heads: Mapping[Partition, Chunk]) -> Partition | None:
        chosen = pick(heads)
        return chosen or min(heads, key=lambda partition: (_time_of(heads[partition]), partition), default=None)

    return drain
