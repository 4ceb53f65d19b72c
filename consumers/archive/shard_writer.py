"""Writes shards: records are collected, written in pieces, and become one file of the archive in one step.

Owns the file that is being written, and at most one piece of records; runs on one thread. While the disk is full,
`wait_for_room` is called, and the write is repeated; nothing is lost or written twice. Ends with `close`, which makes
the shard part of the archive, or with `abandon`, which removes the file. The order of `close` is that of durability:

1. The last piece is written, and the file is synced, still under a temporary name.
2. The JSON file is written, synced and renamed; the folder is synced.
3. The data file is renamed, and the folder is synced: from here on the shard is there.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from consumers.archive.record_columns import SCHEMA, to_table
from consumers.archive.shards import OPEN, SUFFIXES, Format, Shard, facts_document, partition_folder, shard_path
from consumers.archive.tfrecord_files import TFRecordWriter
from consumers.durable_files import is_full, replace_durably, sync_file, sync_folder
from consumers.failpoints import failpoint
from consumers.fingerprints import Fingerprint
from consumers.records import Chunk, Partition

_T = TypeVar("_T")
WaitForRoom = Callable[[OSError], None]
"""Is called when the disk is full; returns when the write should be repeated, or raises to give the shard up."""


class PieceWriter(Protocol):
    """Writes pieces of records to an open file in one format."""

    def write_table(self, table: pa.Table) -> None:
        """Write a piece."""

    def close(self) -> None:
        """Write what the format has at its end."""


class OpenShard:
    """A shard of one partition that is being written."""

    def __init__(
        self, folder: Path, partition: Partition, first: int, form: Format, wait_for_room: WaitForRoom
    ) -> None:
        self.partition, self.first, self.next_offset = partition, first, first
        self.records = 0
        self.waiting_bytes = 0
        """Bytes of the records that are collected and not yet written."""
        self._folder, self._format, self._wait_for_room = folder, form, wait_for_room
        self._waiting: list[Chunk] = []
        self._earliest_ms = self._latest_ms = 0
        self._fingerprint: Fingerprint | None = None
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
        self.waiting_bytes = 0

    def close(self) -> Shard:
        """Make the shard part of the archive, and return it. It must hold a record."""
        self.flush()
        assert self._writer is not None
        assert self._file is not None
        assert self._fingerprint is not None
        self._writer.close()
        self._file.sync()  # (1)
        self._file.close()
        failpoint("archive.after_data")
        path = shard_path(self._folder, self.partition, self.first, self.next_offset, self._format)
        shard = Shard(
            path=path,
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
        self._repeat_while_full(lambda: replace_durably(shard.facts_path, facts_document(shard)))  # (2)
        failpoint("archive.after_facts")
        temporary = self._file.path
        self._repeat_while_full(lambda: temporary.replace(path))  # (3)
        failpoint("archive.after_rename")
        sync_folder(path.parent)
        return shard

    def abandon(self) -> None:
        """Give up what was written. The archive is as if this shard had never been begun."""
        if self._file is None:
            return
        self._file.discard()
        if self._writer is not None:
            self._writer.close()
        self._file.close()
        self._file.path.unlink(missing_ok=True)

    def _open(self) -> PieceWriter:
        home = partition_folder(self._folder, self.partition)
        self._repeat_while_full(lambda: _make_folders(self._folder, home))
        path = home / f"{OPEN}{self.first:020}{SUFFIXES[self._format]}"
        handle = self._repeat_while_full(lambda: os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666))
        self._file = HashedFile(path, handle, self._wait_for_room)
        return _parquet_writer(self._file) if self._format == "parquet" else TFRecordWriter(self._file)

    def _repeat_while_full(self, work: Callable[[], _T]) -> _T:
        while True:
            try:
                return work()
            except OSError as error:
                if not is_full(error):
                    raise
                self._wait_for_room(error)


class HashedFile:
    """A file that is written from its beginning to its end, and hashed meanwhile. It waits while the disk is full."""

    def __init__(self, path: Path, handle: int, wait_for_room: WaitForRoom) -> None:
        self.path = path
        self.size = 0
        self._handle, self._wait_for_room = handle, wait_for_room
        self._discards = False
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Of what was written so far."""
        return self._digest.hexdigest()

    @property
    def closed(self) -> bool:
        """Whether it is closed; pyarrow asks."""
        return self._handle < 0

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

    def sync(self) -> None:
        """Make what was written durable."""
        sync_file(self._handle)

    def discard(self) -> None:
        """Write nothing from now on: the end of a format whose file is given up has no use."""
        self._discards = True

    def close(self) -> None:
        """Close it. A second call does nothing."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


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


def _make_folders(root: Path, home: Path) -> None:
    """Make the folder of a partition, and its name durable."""
    for folder in (root, home.parent, home):
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            sync_folder(folder.parent)
