"""Chunk order: the partition whose chunk leaves the hand-off next.

A policy is a callable from the first chunk of each partition to the partition to take, or None to wait. The hand-off
calls it on the feed's thread, each time that something has changed. Without a policy, chunks leave as they arrived.
"""

import time
from collections.abc import Callable, Collection, Mapping

from millrace.consumers.handoff import Pick
from millrace.consumers.records import Chunk, Partition

PATIENCE_S = 0.5
"""How long to wait for a partition that lags but has no chunk here, before the others continue without it."""
AHEAD = 2
"""Chunks of a partition that the rotation takes in advance: they are decoded during the turns of the others."""


class EventTimeOrder:
    """Takes the oldest records first while they are far behind, and else chunks as they arrived.

    Otherwise the model would learn a month of one partition before the same month of another. A partition that lags
    but has no chunk here may have the oldest records of all, so the policy waits for it, for `PATIENCE_S` at most.
    (Each partition has its own portion of the hand-off, so the others cannot keep it out.)
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
        """Return the partition to take from, or None while the policy waits for a missing one."""
        if not heads:
            return None
        oldest = min(heads, key=lambda partition: (_time_of(heads[partition]), partition))
        if _time_of(heads[oldest]) > self._wall() * 1000 - self._slack_ms:
            # Near the present nothing is waited for; a later backlog has the full patience again.
            self._missing_since.clear()
            return min(heads, key=lambda partition: heads[partition].fetched_at)
        return None if self._is_missed(heads) else oldest

    def _is_missed(self, heads: Mapping[Partition, Chunk]) -> bool:
        now = self._clock()
        missing = [partition for partition in self._behind() if partition not in heads]
        self._missing_since = {partition: self._missing_since.get(partition, now) for partition in missing}
        return any(now - since < PATIENCE_S for since in self._missing_since.values())


def _time_of(chunk: Chunk) -> int:
    """Return the time of the first record; a chunk without records comes first, as it delays no other."""
    return int(chunk.timestamps[0]) if len(chunk) else -1


class RotationOrder:
    """Takes the partition that the assembler's strict rotation waits for, then a little of the others in advance.

    It decides only what is decoded early; the assembler alone decides the order of rows.
    """

    def __init__(self, wanted: Callable[[], Partition | None], ahead: Callable[[Partition], int]) -> None:
        self._wanted, self._ahead = wanted, ahead

    def __call__(self, heads: Mapping[Partition, Chunk]) -> Partition | None:
        """Return the partition to take from, or None if all that are here have enough chunks in advance."""
        wanted = self._wanted()
        if wanted is not None and wanted in heads and self._ahead(wanted) < AHEAD:
            return wanted
        least = min(heads, key=lambda partition: (self._ahead(partition), partition), default=None)
        return least if least is not None and self._ahead(least) < AHEAD else None


class MixtureOrder:
    """Takes a chunk of the topic of which least was taken for its weight, so that rows of all are there to be mixed.

    Within a topic it takes the oldest records first. A topic that lags and of which nothing is here, as at a start, is
    waited for, for `PATIENCE_S` at most: otherwise the one that the broker answers first would be learnt alone.
    """

    def __init__(
        self,
        weights: Mapping[str, float],
        ahead: Callable[[Partition], int],
        behind: Callable[[], Collection[Partition]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ahead` returns how many records of a partition were taken and are in no block yet."""
        self._weights, self._ahead, self._behind, self._clock = weights, ahead, behind, clock
        self._partitions: set[Partition] = set()
        self._missing_since: dict[str, float] = {}

    def __call__(self, heads: Mapping[Partition, Chunk]) -> Partition | None:
        """Return the partition to take from, or None while the policy waits for a missing topic."""
        if not heads:
            return None
        self._partitions |= heads.keys()
        taken = dict.fromkeys(self._weights, 0.0)
        for partition in self._partitions:
            taken[partition.topic] += self._ahead(partition) / self._weights[partition.topic]
        here = {head.topic for head in heads} | {topic for topic, records in taken.items() if records}
        if self._is_missed(here):
            return None
        return min(heads, key=lambda head: (taken[head.topic], _time_of(heads[head]), head))

    def _is_missed(self, here: Collection[str]) -> bool:
        # To ask what lags takes a moment, and all topics are here nearly always.
        lagging = self._behind() if len(here) < len(self._weights) else ()
        now, missing = self._clock(), {partition.topic for partition in lagging} - set(here)
        self._missing_since = {topic: self._missing_since.get(topic, now) for topic in missing}
        return any(now - since < PATIENCE_S for since in self._missing_since.values())


def draining(pick: Pick) -> Pick:
    """Return the policy for when everything was sent: it never waits, but takes the oldest chunk instead."""

    def drain(heads: Mapping[Partition, Chunk]) -> Partition | None:
        chosen = pick(heads)
        return chosen or min(heads, key=lambda partition: (_time_of(heads[partition]), partition), default=None)

    return drain
