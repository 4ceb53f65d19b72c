"""Archives chunks: each partition has one open shard, which is closed when it is large or old enough.

Owns the open shards, and what they have collected: 8 MiB of each partition at most, and `memory_bytes` of all together;
then the partition with the most writes it. A chunk is split where a piece or a shard is full, so a shard is a sixteenth
larger than it should be at most, besides its last record and what the format has at its end. Runs on one thread. A
chunk of offsets that Kafka's retention has removed ends its partition's shard, so that a gap between two shards is what
nobody could archive. Ends with `close_all`, or with `abandon_all`: then what was collected since the last closed shards
is not in the archive, and Kafka still has it.
"""

import hashlib
import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.consumers.archive.archive_store import Place, ShardDraft
from millrace.consumers.archive.record_columns import SCHEMA, to_table
from millrace.consumers.archive.shard_names import OPEN, SUFFIXES, Format, home_of
from millrace.consumers.archive.shards import Shard, facts_document
from millrace.consumers.archive.stores import store_at
from millrace.consumers.archive.tfrecord_files import TFRecordWriter
from millrace.consumers.durable_files import is_full
from millrace.consumers.errors import ArchiveAwayError
from millrace.consumers.failpoints import failpoint
from millrace.consumers.fingerprints import Fingerprint
from millrace.consumers.records import Chunk, Partition
from millrace.consumers.rounded import rounded_size

log = logging.getLogger(__name__)


_T = TypeVar("_T")
WaitForRoom = Callable[[OSError], None]
"""Is called when the disk is full, or the object store away; returns when the write should be repeated, or raises to
give the shard up."""


class PieceWriter(Protocol):
    """Writes pieces of records to an open file in one format."""

    def write_table(self, table: pa.Table) -> None:
        """Write a piece."""

    def close(self) -> None:
        """Write what the format has at its end."""


class OpenShard:
    """A shard of one partition: records are collected, written in pieces, and become one file of the archive at once.

    Owns the draft that is being written, and at most one piece of records; runs on one thread. While the disk is full,
    or the object store is away, `wait_for_room` is called, and the write is repeated; nothing is lost or written twice.
    Ends with `close`, which makes the shard part of the archive, or with `abandon`, which removes the draft. The order
    of `close` is that of durability; in brackets, what an object store does:

    1. The last piece is written, and the file is synced, still under a temporary name [a local file without a name].
    2. The JSON file is written, synced and renamed; the folder is synced [it is put].
    3. The data file is renamed, and the folder is synced [it is put]: from here on the shard is there.
    """

    def __init__(
        self, place: Place, partition: Partition, first: int, form: Format, wait_for_room: WaitForRoom
    ) -> None:
        self.partition, self.first, self.next_offset = partition, first, first
        self.records = 0
        self.waiting_bytes = 0
        """Bytes of the records that are collected and not yet written."""
        self.written_bytes = 0
        """Bytes of the records that are written, as they were before."""
        self._store, self._format, self._wait_for_room = store_at(place), form, wait_for_room
        self._waiting: list[Chunk] = []
        self._earliest_ms = self._latest_ms = 0
        self._fingerprint: Fingerprint | None = None
        self._draft: ShardDraft | None = None
        self._file: HashedFile | None = None
        self._writer: PieceWriter | None = None

    @property
    def size(self) -> int:
        """Bytes of the file so far."""
        return 0 if self._file is None else self._file.size

    def add(self, chunk: Chunk) -> None:
        """Add the records of the chunk, which must begin where the last one ended."""
        if chunk.start != self.next_offset:
            raise ValueError(f"{chunk.partition} goes on at {self.next_offset}, but a chunk begins at {chunk.start}")
        self.next_offset = chunk.end
        if not len(chunk):
            return
        earliest_ms, latest_ms = int(chunk.timestamps.min()), int(chunk.timestamps.max())
        self._earliest_ms = min(self._earliest_ms, earliest_ms) if self.records else earliest_ms
        self._latest_ms = max(self._latest_ms, latest_ms) if self.records else latest_ms
        self._fingerprint = chunk.fingerprint or self._fingerprint
        self.records += len(chunk)
        self._waiting.append(chunk)
        self.waiting_bytes += chunk.nbytes

    def flush(self) -> None:
        """Write the collected records as one piece."""
        if not self._waiting:
            return
        if self._writer is None:
            name = f"{OPEN}{self.first:020}{SUFFIXES[self._format]}"
            self._draft = self._repeat_while_full(lambda: self._store.draft(f"{home_of(self.partition)}/{name}"))
            self._file = HashedFile(self._draft.handle, self._wait_for_room)
            self._writer = _parquet_writer(self._file) if self._format == "parquet" else TFRecordWriter(self._file)
        self._writer.write_table(to_table(self._waiting))
        self._waiting.clear()
        self.written_bytes += self.waiting_bytes
        self.waiting_bytes = 0

    def close(self) -> Shard:
        """Make the shard part of the archive, and return it. It must hold a record."""
        self.flush()
        assert self._writer is not None
        assert self._file is not None
        assert self._draft is not None
        assert self._fingerprint is not None
        draft = self._draft
        self._writer.close()
        self._file.close()
        draft.seal()  # (1)
        failpoint("archive.after_data")
        shard = Shard(
            store=self._store,
            partition=self.partition,
            first=self.first,
            next_offset=self.next_offset,
            records=self.records,
            earliest_ms=self._earliest_ms,
            latest_ms=self._latest_ms,
            sha256=self._file.sha256,
            size=self._file.size,
            format=self._format,
            fingerprint=self._fingerprint,
        )
        self._repeat_while_full(lambda: draft.describe(shard.key, facts_document(shard)))  # (2)
        failpoint("archive.after_facts")
        self._repeat_while_full(lambda: draft.publish(shard.key, shard.written))  # (3)
        return shard

    def abandon(self) -> None:
        """Give up what was written. The archive is as if this shard had never been begun."""
        if self._draft is None:
            return
        if self._file is not None:
            self._file.discard()
        if self._writer is not None:
            self._writer.close()
        self._draft.discard()

    def _repeat_while_full(self, work: Callable[[], _T]) -> _T:
        while True:
            try:
                return work()
            except OSError as error:
                if not (is_full(error) or isinstance(error, ArchiveAwayError)):
                    raise
                self._wait_for_room(error)


class HashedFile:
    """A file that is written from its beginning to its end, and hashed meanwhile. It waits while the disk is full."""

    def __init__(self, handle: int, wait_for_room: WaitForRoom) -> None:
        self.size = 0
        self.closed = False
        """Whether it is closed; pyarrow asks."""
        self._handle, self._wait_for_room = handle, wait_for_room
        self._discards = False
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Of what was written so far."""
        return self._digest.hexdigest()

    def write(self, raw: bytes) -> int:
        """Write all of it, however long the disk is full."""
        left = memoryview(b"" if self._discards else raw)
        while left:
            try:
                left = left[os.write(self._handle, left) :]
            except OSError as error:
                if not is_full(error):
                    raise
                self._wait_for_room(error)
        self._digest.update(raw)
        self.size += len(raw)
        return len(raw)

    def tell(self) -> int:
        """Return how many bytes were written; pyarrow asks."""
        return self.size

    def flush(self) -> None:
        """Do nothing: every write goes to the system at once."""

    def discard(self) -> None:
        """Write nothing from now on: the end of a format whose file is given up has no use."""
        self._discards = True

    def close(self) -> None:
        """Write no more: the draft closes its file itself."""
        self.closed = True


def _parquet_writer(file: HashedFile) -> PieceWriter:
    writer: PieceWriter = pq.ParquetWriter(
        file,
        SCHEMA,
        compression="zstd",
        compression_level=1,
        # Values rarely repeat as a whole, and a dictionary of them is built in vain.
        use_dictionary=["key", "headers.list.element.name"],
        column_encoding={"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
        write_statistics=["offset", "timestamp"],
        write_page_checksum=True,
    )
    return writer


_PIECE_BYTES = 8 * 2**20
"""A piece is read as a whole: large enough that reading is fast, small enough that many can be open."""
_LAST_PIECES = 16
"""The last pieces of a shard have this part of its size, or else they would be ever smaller ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions:
    """Where shards are written, in which format, and when one is closed."""

    place: Place
    format: Format
    shard_bytes: int
    """A shard is closed when its file has this many bytes."""
    shard_age_s: float
    """A shard is closed this many seconds after its first record came."""
    shard_records: int | None = None
    """A shard is closed when it has about this many records; None closes none for their number."""
    memory_bytes: int
    """Most bytes of records that all open shards collect before they write them."""


@dataclass(slots=True, kw_only=True)
class ArchiveTotals:
    """What one archiver has done."""

    shards: int = 0
    records: int = 0
    lost: int = 0
    """Offsets that Kafka's retention removed before they were archived."""


@dataclass(slots=True)
class _Open:
    shard: OpenShard
    since: float = field(default=0.0)
    """When its first record came, on the monotonic clock; meaningless without one."""


class Archiver:
    """The open shards of one process."""

    def __init__(
        self, options: ArchiveOptions, wait_for_room: WaitForRoom, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.totals = ArchiveTotals()
        self._options, self._wait_for_room, self._clock = options, wait_for_room, clock
        self._most_records = math.inf if options.shard_records is None else options.shard_records
        self._open: dict[Partition, _Open] = {}

    def add(self, chunk: Chunk) -> None:
        """Take a chunk, which begins where the last one of its partition ended."""
        if chunk.lost:
            self._close(chunk.partition)
            self.totals.lost += chunk.lost
            return
        rest: Chunk | None = chunk
        while rest is not None:
            held = self._open.get(rest.partition)
            if held is None:
                options = self._options
                shard = OpenShard(options.place, rest.partition, rest.start, options.format, self._wait_for_room)
                held = self._open[rest.partition] = _Open(shard)
            part, rest = self._fitting(rest, held.shard)
            if not held.shard.records:
                held.since = self._clock()
            held.shard.add(part)
            # Write a piece of this shard if it has collected one, or of the largest while all hold too much.
            if held.shard.waiting_bytes >= self._piece_bytes(held.shard):
                held.shard.flush()
            waiting = [each.shard for each in self._open.values()]
            if sum(each.waiting_bytes for each in waiting) > self._options.memory_bytes:
                max(waiting, key=lambda each: each.waiting_bytes).flush()
            if held.shard.size >= self._options.shard_bytes or held.shard.records >= self._most_records:
                self._close(chunk.partition)

    def close_aged(self) -> None:
        """Close the shards that are old enough. To be called every second or so."""
        due = self._clock() - self._options.shard_age_s
        for partition in [p for p, held in self._open.items() if held.shard.records and held.since <= due]:
            self._close(partition)

    def close_all(self) -> None:
        """Close every shard that holds a record, and forget the others."""
        for partition in list(self._open):
            self._close(partition)

    def abandon_all(self) -> int:
        """Remove the files of all open shards. Return how many records they held."""
        given_up = 0
        for held in self._open.values():
            given_up += held.shard.records
            held.shard.abandon()
        self._open.clear()
        return given_up

    def _fitting(self, chunk: Chunk, shard: OpenShard) -> tuple[Chunk, Chunk | None]:
        """Return what of a chunk still belongs to the shard's present piece, a record at least, and the rest."""
        left = self._piece_bytes(shard) - shard.waiting_bytes
        rows = min(math.ceil(len(chunk) * left / max(1, chunk.nbytes)), self._most_records - shard.records)
        if rows >= len(chunk):
            return chunk, None
        part, rest = chunk.split(int(chunk.offsets[max(1, int(rows))]))
        last = Fingerprint.of(int(part.offsets[-1]), int(part.timestamps[-1]), part.keys[-1], part.values[-1])
        return replace(part, fingerprint=last), rest

    def _piece_bytes(self, shard: OpenShard) -> int:
        """Return how many bytes of records the present piece collects: what the shard still takes, packed as so far."""
        size = self._options.shard_bytes
        packed = shard.size / shard.written_bytes if shard.written_bytes else 1.0
        return math.ceil(min(_PIECE_BYTES, max(size - shard.size, size / _LAST_PIECES) / packed))

    def _close(self, partition: Partition) -> None:
        held = self._open.get(partition)
        # A shard without a record, as behind the last transaction, is not closed: its range is read again.
        if held is not None and held.shard.records:
            shard = held.shard.close()
            self.totals.shards += 1
            self.totals.records += shard.records
            log.info(
                "archived %s: %d records at offsets %d to %d, %s",
                shard.partition,
                shard.records,
                shard.first,
                shard.next_offset - 1,
                rounded_size(shard.size),
            )
        self._open.pop(partition, None)
