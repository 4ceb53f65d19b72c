"""Replays one partition from its shards, as chunks like Kafka's, up to the end of what is archived.

Owns the shard that is being read, and one batch of its records. Its methods read files, so they run on a thread of
their own, one call at a time, and not on an event loop. Shards that are written meanwhile are found.
"""

import time
from collections.abc import Iterator

from millrace.consumers.archive.archive_store import Place
from millrace.consumers.archive.record_columns import RecordColumns
from millrace.consumers.archive.shard_reader import read_batches
from millrace.consumers.archive.shards import Shard, first_offset_behind, shard_at
from millrace.consumers.errors import ArchiveAwayError
from millrace.consumers.fingerprints import Fingerprint
from millrace.consumers.kafka.chunking import bytes_of, empty_chunk
from millrace.consumers.records import Chunk, Partition


class ShardReplay:
    """The archived records of a partition from a position on."""

    def __init__(self, place: Place, partition: Partition, incarnation: int, *, most: int) -> None:
        self._place, self._partition, self._incarnation, self._most = place, partition, incarnation, most
        self._shard: Shard | None = None
        self._batches: Iterator[RecordColumns] = iter(())
        self._ahead: RecordColumns | None = None
        """The batch behind the one that was returned last: where it begins, the last one ends."""

    def next_chunk(self, start: int, until: int | None) -> Chunk | None:
        """Return the records at `start` and behind it, before `until`; None where no shard covers `start`.

        Each chunk begins where the last one ended. Raises ArchiveDamagedError, or ArchiveAwayError, after which the
        same chunk may be asked for again.
        """
        try:
            if self._shard is None or start >= self._shard.next_offset:
                self._shard = shard_at(self._place, self._partition, start)
                if self._shard is not None:
                    self._batches = read_batches(self._shard, start, self._most)
                    self._ahead = next(self._batches, None)
            if self._shard is None:
                return None
            taken, self._ahead = self._ahead, next(self._batches, None)
        except ArchiveAwayError:
            # What has raised ends its iterator, which would look like the end of the shard.
            self._shard = None
            raise
        # Offsets without a record belong to the chunk before them, as when Kafka's client passes them.
        end = self._shard.next_offset if self._ahead is None else int(self._ahead.offsets[0])
        if until is not None and end > until:
            end, taken = until, None if taken is None else taken.before(until)
        return self._chunk(taken, start, end)

    def recognises(self, settled: Fingerprint) -> bool:
        """Return whether the archive has the record that was settled, or none at its offset."""
        shard = shard_at(self._place, self._partition, settled.offset)
        columns = None if shard is None else next(read_batches(shard, settled.offset, 1), None)
        if columns is None or int(columns.offsets[0]) != settled.offset:
            return True
        return Fingerprint.of(settled.offset, int(columns.timestamps[0]), columns.keys[0], columns.values[0]) == settled

    def _chunk(self, columns: RecordColumns | None, start: int, end: int) -> Chunk:
        now = time.monotonic()
        if columns is None or not len(columns):
            return empty_chunk(self._partition, self._incarnation, start=start, end=end, fetched_at=now)
        return Chunk(
            partition=self._partition,
            incarnation=self._incarnation,
            start=start,
            end=end,
            offsets=columns.offsets,
            timestamps=columns.timestamps,
            keys=columns.keys,
            values=columns.values,
            headers=columns.headers,
            nbytes=bytes_of(columns.keys, columns.values, columns.headers),
            fetched_at=now,
            fingerprint=Fingerprint.of(
                int(columns.offsets[-1]), int(columns.timestamps[-1]), columns.keys[-1], columns.values[-1]
            ),
        )


class ArchivedHistory:
    """What an archive holds from before Kafka's first offsets. Its methods read the folder: not on an event loop."""

    def __init__(self, place: Place, *, chunk_records: int) -> None:
        self._place, self._chunk_records = place, chunk_records

    def replay(self, partition: Partition, incarnation: int) -> ShardReplay:
        """Return what reads a partition for an incarnation."""
        return ShardReplay(self._place, partition, incarnation, most=self._chunk_records)

    def first_behind(self, partition: Partition, offset: int) -> int | None:
        """Return the first offset that is there from this one on, at the beginning of a shard; None where none is."""
        return first_offset_behind(self._place, partition, offset)
