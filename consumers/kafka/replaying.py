"""Reading what Kafka no longer has: the partitions of an incarnation whose position lies before Kafka's first offset.

A history is what an archive holds; `consumers.archive.replay` reads one. Owns which partitions are replayed. Runs on
the consumer's loop, and reads files on other threads, one chunk at a time. A partition is replayed to the end of its
history, which may lie behind Kafka's first offset: so the last archived record can be compared with Kafka's before
anything more is read there.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Protocol

from millrace.consumers.fingerprints import Fingerprint
from millrace.consumers.records import Chunk, Partition

log = logging.getLogger(__name__)


class PartitionHistory(Protocol):
    """The history of one partition, read from a position on."""

    def next_chunk(self, start: int, until: int | None) -> Chunk | None:
        """Return the chunk that begins at `start` and ends at `until` at the latest; None where there is none."""

    def recognises(self, settled: Fingerprint) -> bool:
        """Return whether the history has the record that was settled, or none at its offset."""


class History(Protocol):
    """What is there from before Kafka's first offsets. Reads files."""

    def replay(self, partition: Partition, incarnation: int) -> PartitionHistory:
        """Return what reads a partition for an incarnation."""

    def first_behind(self, partition: Partition, offset: int) -> int | None:
        """Return the first offset that is there from this one on; None where none is."""


class NoHistory:
    """The history where there is no archive."""

    def replay(self, partition: Partition, incarnation: int) -> PartitionHistory:  # noqa: ARG002 - it has none
        return _Empty()

    def first_behind(self, partition: Partition, offset: int) -> int | None:  # noqa: ARG002 - it has none
        """Return None."""
        return None


class _Empty:
    def next_chunk(self, start: int, until: int | None) -> Chunk | None:  # noqa: ARG002 - it has none
        return None

    def recognises(self, settled: Fingerprint) -> bool:  # noqa: ARG002 - it has none
        return True


NO_HISTORY = NoHistory()


class Replaying:
    """The partitions of one incarnation that are read from the history now."""

    def __init__(self, history: History, incarnation: int) -> None:
        self._history, self._incarnation = history, incarnation
        self._replays: dict[Partition, PartitionHistory] = {}
        self._ready: dict[Partition, Chunk] = {}
        """The first chunk of a replay that has just begun."""

    def __contains__(self, partition: Partition) -> bool:
        return partition in self._replays

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """Those that are replayed now."""
        return tuple(self._replays)

    async def begin(self, partition: Partition, start: int, until: int | None, settled: Fingerprint | None) -> bool:
        """Replay a partition from `start` on, if the history has that offset. Return whether it has.

        A history of another topic of the same name, which does not have the record that was settled, is not used.
        """
        replay = self._history.replay(partition, self._incarnation)
        if settled is not None and not await asyncio.to_thread(replay.recognises, settled):
            log.warning("The archive holds another topic under the name %s, and is not read", partition.topic)
            return False
        first = await asyncio.to_thread(replay.next_chunk, start, until)
        if first is None:
            return False
        self._replays[partition], self._ready[partition] = replay, first
        log.info("Reading %s from the archive, from offset %d on: Kafka no longer has it", partition, start)
        return True

    async def next_chunk(self, partition: Partition, start: int, until: int | None) -> Chunk | None:
        """Return the next chunk of a partition; None at the end of its history, where its replay has ended."""
        chunk = self._ready.pop(partition, None)
        if chunk is None:
            chunk = await asyncio.to_thread(self._replays[partition].next_chunk, start, until)
        if chunk is None:
            del self._replays[partition]
            log.info("The archive of %s ends at offset %d: reading on from Kafka", partition, start)
        return chunk

    async def first_behind(self, partition: Partition, offset: int) -> int | None:
        """Return the first offset that the history has from this one on; None where it has none."""
        return await asyncio.to_thread(self._history.first_behind, partition, offset)


def beginnings_with(history: History, kafka: Iterable[tuple[Partition, int]]) -> dict[Partition, int]:
    """Return the first offset of each partition that Kafka or the history has."""
    archived = {partition: (history.first_behind(partition, 0), first) for partition, first in kafka}
    return {p: first if found is None else min(found, first) for p, (found, first) in archived.items()}
