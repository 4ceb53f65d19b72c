"""TFRecord files of tf.train.Example with GZIP, as `tf.data.TFRecordDataset(path, "GZIP")` reads them.

Owns the framing: for each record its length and its bytes, each with a checksum. Runs on any thread. A file can only be
read from its beginning; Parquet is several times faster, both ways.
"""

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
from aiokafka.record.util import calc_crc32c

from consumers.archive.example_codec import ArchivedRecord, decode, encode
from consumers.archive.record_columns import RecordColumns, from_table

_LEVEL = 1
"""Level 6 takes three times as long for files that are a sixth smaller."""
_GZIP = 31
"""How zlib is asked for gzip's header and trailer."""
_READ_BYTES = 1 << 20
_RECORDS = 16_384
"""How many records are returned at a time."""
_LENGTH, _CRC = struct.Struct("<Q"), struct.Struct("<I")


class Sink(Protocol):
    """What takes the bytes of a file."""

    def write(self, raw: bytes) -> int:
        """Write all of it."""


class TFRecordWriter:
    """Writes pieces of records to a file that is open."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._gzip = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
        self._closed = False

    def write_table(self, table: pa.Table) -> None:
        """Write a piece."""
        columns = from_table(table)
        offsets, timestamps = columns.offsets.tolist(), columns.timestamps.tolist()
        records = zip(offsets, timestamps, columns.keys, columns.values, columns.headers, strict=True)
        framed = b"".join(_framed(encode(ArchivedRecord(*record))) for record in records)
        self._sink.write(self._gzip.compress(framed))

    def close(self) -> None:
        """Write the end of the stream."""
        if not self._closed:
            self._closed = True
            self._sink.write(self._gzip.flush())


def read_tfrecords(path: Path) -> Iterator[RecordColumns]:
    """Yield the records of a file, some thousand at a time. Raises ValueError where it is damaged."""
    records: list[ArchivedRecord] = []
    for raw in _unframed(path):
        records.append(decode(raw))
        if len(records) == _RECORDS:
            yield _columns(records)
            records = []
    if records:
        yield _columns(records)


def _columns(records: list[ArchivedRecord]) -> RecordColumns:
    return RecordColumns(
        offsets=np.array([record.offset for record in records], np.int64),
        timestamps=np.array([record.timestamp_ms for record in records], np.int64),
        keys=[record.key for record in records],
        values=[record.value for record in records],
        headers=[record.headers for record in records],
    )


def _framed(raw: bytes) -> bytes:
    length = _LENGTH.pack(len(raw))
    return b"".join((length, _CRC.pack(_masked(length)), raw, _CRC.pack(_masked(raw))))


def _unframed(path: Path) -> Iterator[bytes]:
    pending = b""
    for plain in _inflated(path):
        pending = pending + plain if pending else plain
        at = 0
        while len(pending) - at >= _LENGTH.size + _CRC.size:
            (length,) = _LENGTH.unpack_from(pending, at)
            _check(pending[at : at + _LENGTH.size], pending, at + _LENGTH.size)
            start = at + _LENGTH.size + _CRC.size
            if len(pending) < start + length + _CRC.size:
                break
            raw = pending[start : start + length]
            _check(raw, pending, start + length)
            yield raw
            at = start + length + _CRC.size
        pending = pending[at:]
    if pending:
        raise ValueError("the file ends inside a record")


def _inflated(path: Path) -> Iterator[bytes]:
    inflater = zlib.decompressobj(_GZIP)
    try:
        with path.open("rb") as file:
            while raw := file.read(_READ_BYTES):
                yield inflater.decompress(raw)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not inflater.eof or inflater.unused_data:
        raise ValueError("the file does not end where its GZIP stream ends")


def _check(raw: bytes, framed: bytes, at: int) -> None:
    if _CRC.unpack_from(framed, at)[0] != _masked(raw):
        raise ValueError("the checksum of a record is another one")


def _masked(raw: bytes) -> int:
    """Return the CRC-32C as TFRecord masks it, because a checksum of data that hold checksums is weak."""
    crc: int = calc_crc32c(raw)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
