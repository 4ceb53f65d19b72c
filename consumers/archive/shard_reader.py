"""Reads the records of shards: in order from an offset, or any piece of one, for readers of several at a time.

A piece is what a shard was written in, about 8 MiB of records: a row group of Parquet. A TFRecord file is one piece,
because it can only be read from its beginning; `read` returns it in smaller ones. Owns nothing between two
pieces; runs on any thread, on several at once, and without the interpreter's lock while arrow reads and decompresses.
What is damaged raises ArchiveDamagedError: each page of Parquet, and each TFRecord, has a checksum, which is compared.
The SHA-256 of the whole file is compared by `complaint_about` only.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.consumers.archive.record_columns import EMPTY, SCHEMA, RecordColumns, from_table, to_arrow
from millrace.consumers.archive.shards import Shard
from millrace.consumers.archive.tfrecord_files import read_tfrecords
from millrace.consumers.errors import ArchiveAwayError, ArchiveDamagedError
from millrace.consumers.records import Int64s
from millrace.consumers.suggested_command import suggested_command

_BATCH_BYTES = 2**20
"""As Kafka's fetches are bounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPiece:
    """A part of a shard that can be read by itself."""

    shard: Shard
    index: int
    """Its place within the shard, from 0."""
    first: int
    """The offset of its first record, or one before it."""
    last: int
    """The offset of its last record."""
    records: int


def pieces(shard: Shard) -> tuple[ShardPiece, ...]:
    """Return the pieces of a shard in order of offsets. Reads no records."""
    if shard.format == "tfrecord":
        last = shard.fingerprint.offset
        return (ShardPiece(shard=shard, index=0, first=shard.first, last=last, records=shard.records),)
    return _pieces_of(shard, _open(shard).metadata)


def _pieces_of(shard: Shard, metadata: pq.FileMetaData) -> tuple[ShardPiece, ...]:
    found = []
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        offsets = group.column(0).statistics
        found.append(
            ShardPiece(shard=shard, index=index, first=offsets.min, last=offsets.max, records=group.num_rows),
        )
    return tuple(found)


def read_piece(piece: ShardPiece, columns: Sequence[str] | None = None) -> pa.Table:
    """Return a piece as an arrow table of `SCHEMA`, or of the columns that are named, which alone are read."""
    shard = piece.shard
    if shard.format == "tfrecord":
        table = pa.concat_tables([EMPTY, *map(to_arrow, _read_tfrecords(shard))])
        return table if columns is None else table.select(list(columns))
    with _damage_of(shard):
        return _open(shard).read_row_group(piece.index, columns=columns, use_threads=False)


def read(shard: Shard, from_offset: int = 0) -> Iterator[RecordColumns]:
    """Yield the records of a shard from an offset on, a piece at a time, in the shape of a chunk."""
    if shard.format == "tfrecord":
        for columns in _read_tfrecords(shard):
            if columns.offsets[-1] >= from_offset:
                yield columns.behind(from_offset)
        return
    file = _open(shard)
    for piece in _pieces_of(shard, file.metadata):
        if piece.last < from_offset:
            continue
        with _damage_of(shard):
            table = file.read_row_group(piece.index, use_threads=False)
        if piece.first < from_offset:
            table = table.slice(int(table.column("offset").to_numpy().searchsorted(from_offset)))
        yield from_table(table)


def read_batches(shard: Shard, from_offset: int, most: int) -> Iterator[RecordColumns]:
    """Yield the records of a shard from an offset on, at most `most` or about 1 MiB at a time."""
    if shard.format == "tfrecord":
        for columns in read(shard, from_offset):
            yield from columns.split(most)
        return
    file = _open(shard)
    groups = [piece.index for piece in _pieces_of(shard, file.metadata) if piece.last >= from_offset]
    with _damage_of(shard):
        for group in groups:
            found = file.metadata.row_group(group)
            rows = max(1, min(most, _BATCH_BYTES * found.num_rows // max(1, found.total_byte_size)))
            for batch in file.iter_batches(batch_size=rows, row_groups=[group], use_threads=False):
                columns = from_table(pa.Table.from_batches([batch])).behind(from_offset)
                if len(columns):
                    yield columns


def offset_of_row(shard: Shard, row: int) -> int:
    """Return the offset of a record by its place in the shard, from 0. Reads offsets only, where there are gaps."""
    if shard.records == shard.next_offset - shard.first:
        return shard.first + row
    for offsets in _offsets(shard):
        if row < len(offsets):
            return int(offsets[row])
        row -= len(offsets)
    raise IndexError(row)


def _offsets(shard: Shard) -> Iterator[Int64s]:
    """Yield the offsets of a shard's records, a piece at a time."""
    if shard.format == "tfrecord":
        for columns in read(shard):
            yield columns.offsets
        return
    for piece in pieces(shard):
        yield read_piece(piece, ["offset"]).column("offset").to_numpy()


def complaint_about(shard: Shard, *, deep: bool) -> str | None:
    """Describe what is wrong with a shard's file; None where nothing is. Only a deep look reads and hashes it."""
    return shard.store.complaint(shard.key, shard.written, deep=deep)


def _read_tfrecords(shard: Shard) -> Iterator[RecordColumns]:
    _require_size(shard)
    with _damage_of(shard), shard.store.open(shard.key, shard.size) as file:
        yield from read_tfrecords(file)


def _open(shard: Shard) -> pq.ParquetFile:
    _require_size(shard)
    with _damage_of(shard):
        file = pq.ParquetFile(shard.store.open(shard.key, shard.size), page_checksum_verification=True)
    if file.schema_arrow != SCHEMA or file.metadata.num_rows != shard.records:
        raise _damaged(shard, "its columns or its number of records are others than were written")
    return file


def _require_size(shard: Shard) -> None:
    problem = complaint_about(shard, deep=False)
    if problem is not None:
        raise _damaged(shard, problem)


@contextmanager
def _damage_of(shard: Shard) -> Iterator[None]:
    """Raise what reading a shard's file raises as its damage, except that the store is away."""
    try:
        yield
    except ArchiveAwayError:
        raise
    except (OSError, ValueError) as error:  # pyarrow's errors of contents are ValueErrors
        raise _damaged(shard, str(error)) from error


def _damaged(shard: Shard, why: str) -> ArchiveDamagedError:
    check = suggested_command("archive", "verify")
    return ArchiveDamagedError(f"{shard.path} cannot be read: {why}; see `{check}`, and restore it from a copy")
