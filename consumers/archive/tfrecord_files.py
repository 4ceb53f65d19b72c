"""TFRecord files of tf.train.Example with GZIP, as `tf.data.TFRecordDataset(path, "GZIP")` reads them.

Owns the framing: for each record its length and its bytes, each with a checksum, which is compared. Runs on any thread;
zlib inflates without the interpreter's lock, and thousands of records are looked at together. A file can only be read
from its beginning; Parquet is faster, both ways.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from aiokafka.record.util import calc_crc32c

from consumers.archive.example_codec import ArchivedRecord, encode
from consumers.archive.example_columns import columns_of
from consumers.archive.record_columns import RecordColumns, from_table
from consumers.records import Int64s

_LEVEL = 1
"""Level 6 takes three times as long for files that are a sixth smaller."""
_GZIP = 31
"""How zlib is asked for gzip's header and trailer."""
_MAGIC = b"\x1f\x8b"
"""How a GZIP stream begins."""
_READ_BYTES = 1 << 20
_INFLATED_BYTES = 4 << 20
"""The most that is inflated at a time, as a small file may hold a great many equal bytes."""
_LENGTH, _CRC = struct.Struct("<Q"), struct.Struct("<I")
_HEADER = _LENGTH.size + _CRC.size


class Frames(NamedTuple):
    """Some whole records."""

    data: bytes
    starts: Int64s
    """Where each of them begins in `data`."""
    ends: Int64s

    def records(self) -> list[bytes]:
        """Return each of them by itself."""
        return [self.data[start:end] for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True)]


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


def read_tfrecords(file: IO[bytes]) -> Iterator[RecordColumns]:
    """Yield the records of an archived file, some thousand at a time. Raises ValueError where it is damaged."""
    for frames in _frames_of(_inflated(file, one=True)):
        yield columns_of(*frames)


def read_frames(path: Path) -> Iterator[Frames]:
    """Yield the records of any TFRecord file, with GZIP or not. Raises ValueError where it is damaged."""
    with path.open("rb") as file:
        packed = file.read(len(_MAGIC)) == _MAGIC
        file.seek(0)
        yield from _frames_of(_inflated(file, one=False) if packed else _pieces(file))


def _framed(raw: bytes) -> bytes:
    length = _LENGTH.pack(len(raw))
    return b"".join((length, _CRC.pack(_masked(length)), raw, _CRC.pack(_masked(raw))))


def _frames_of(pieces: Iterable[bytes]) -> Iterator[Frames]:
    """Cut a stream into records, and compare their checksums. A record of many pieces is joined once."""
    parts, held, need, count = list[bytes](), 0, _HEADER, 0
    for piece in pieces:
        parts.append(piece)
        held += len(piece)
        if held < need:
            continue
        data = b"".join(parts)
        found, at, need = _walk(data)
        if found:
            frames = Frames(data, *np.array(found, np.int64).T)
            _compare(frames, count)
            count += len(found)
            yield frames
        rest = data[at:]
        if len(rest) >= _HEADER:  # before anything waits for as many bytes as the length says
            _require_equal(_stored(rest, np.array([_LENGTH.size])), [_masked(rest[: _LENGTH.size])], count)
        parts, held = [rest], len(rest)
    if held:
        raise ValueError(f"the file ends inside record {count}")


def _walk(data: bytes) -> tuple[list[tuple[int, int]], int, int]:
    """Return begin and end of each whole record, where the rest begins, and how long the rest has to become."""
    found, at, size, length_at = list[tuple[int, int]](), 0, len(data), _LENGTH.unpack_from
    while at + _HEADER <= size:
        end = at + _HEADER + length_at(data, at)[0]
        if end + _CRC.size > size:
            return found, at, end + _CRC.size - at
        found.append((at + _HEADER, end))
        at = end + _CRC.size
    return found, at, _HEADER


def _compare(frames: Frames, count: int) -> None:
    """Compare both checksums of each record; there were so many before them."""
    data, starts, ends = frames
    lengths, places = np.unique(ends - starts, return_inverse=True)  # many records have one length
    of_lengths = np.array([_masked(_LENGTH.pack(length)) for length in lengths.tolist()], np.uint32)
    _require_equal(_stored(data, starts - _CRC.size), of_lengths[places], count)
    view = memoryview(data)
    of_records = [calc_crc32c(view[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    _require_equal(_stored(data, ends), _mask(np.array(of_records, np.int64)), count)


def _stored(data: bytes, at: Int64s) -> Int64s:
    """Return the checksums that the file has at these places."""
    codes = np.frombuffer(data, np.uint8)
    return sum(
        (codes[at + byte].astype(np.int64) << 8 * byte for byte in range(_CRC.size)), np.zeros(len(at), np.int64)
    )


def _require_equal(stored: Int64s, found: "Sequence[int] | npt.NDArray[np.integer]", count: int) -> None:
    wrong = np.flatnonzero(stored != np.asarray(found))
    if len(wrong):
        raise ValueError(f"the checksum of record {count + int(wrong[0])} is another one")


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    while raw := file.read(_INFLATED_BYTES):
        yield raw


def _inflated(file: IO[bytes], *, one: bool) -> Iterator[bytes]:
    """Yield the contents of a file's GZIP streams: of exactly one, or of one after the other."""
    inflater = zlib.decompressobj(_GZIP)
    try:
        while raw := file.read(_READ_BYTES):
            while raw:
                if inflater.eof and not one:
                    raw = raw.lstrip(b"\0")  # some programs pad a file
                    inflater = zlib.decompressobj(_GZIP) if raw else inflater
                if inflater.eof:
                    break
                yield inflater.decompress(raw, _INFLATED_BYTES)
                raw = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
            if raw:
                break
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if raw or not inflater.eof:
        raise ValueError("the file does not end where its GZIP stream ends")


def _masked(raw: bytes) -> int:
    """Return the CRC-32C as TFRecord masks it, because a checksum of data that hold checksums is weak."""
    return int(_mask(np.array([calc_crc32c(raw)], np.int64))[0])


def _mask(crcs: Int64s) -> Int64s:
    masked: Int64s = ((crcs >> 15 | crcs << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return masked
