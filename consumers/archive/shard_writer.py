"""Writes shards: records are collected, written in pieces, and become one file of the archive in one step.

Owns the draft that is being written, and at most one piece of records; runs on one thread. While the disk is full, or
the object store is away, `wait_for_room` is called, and the write is repeated; nothing is lost or written twice. Ends
with `close`, which makes the shard part of the archive, or with `abandon`, which removes the draft. The order of
`close` is that of durability; in brackets, what an object store does:

1. The last piece is written, and the file is synced, still under a temporary name [a local file that has no name].
2. The JSON file is written, synced and renamed; the folder is synced [it is put].
3. The data file is renamed, and the folder is synced [it is put]: from here on the shard is there.
"""

import hashlib
import os
from collections.abc import Callable
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
    """A shard of one partition that is being written."""

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
            self._writer = self._open()
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

    def _open(self) -> PieceWriter:
        name = f"{OPEN}{self.first:020}{SUFFIXES[self._format]}"
        self._draft = self._repeat_while_full(lambda: self._store.draft(f"{home_of(self.partition)}/{name}"))
        self._file = HashedFile(self._draft.handle, self._wait_for_room)
        return _parquet_writer(self._file) if self._format == "parquet" else TFRecordWriter(self._file)

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
