"""TFRecord files of tf.train.Example with GZIP, as `tf.data.TFRecordDataset(path, "GZIP")` reads them.

Owns the framing: for each record its length and its bytes, each with a checksum, which is compared. In a foreign file
with GZIP that of the bytes is not, as zlib compares the stream's own. Runs on any thread; zlib inflates without the
interpreter's lock, and thousands of records are looked at together. A file can only be read
from its beginning; Parquet is faster, both ways.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from aiokafka.record.util import calc_crc32c

from millrace.consumers.archive.example_codec import ArchivedRecord, decode, encode
from millrace.consumers.archive.record_columns import RecordColumns, from_table
from millrace.consumers.records import Headers, Int64s

# Many Examples of the archive as columns at once, by the layout in which `example_codec` writes them.
#
# The layout is compared for all records together: every constant byte, and that each length ends where the one around
# it does. A record of any other layout, as one with headers is, goes to `decode` by itself. So the outcome is what
# `decode` returns for each, at a tenth of its time.
_FIELD_1, _FIELD_2, _FIELD_3 = b"\x0a", b"\x12", b"\x1a"
"""Tags: of the features, of each of them, its name and a text; of what a feature holds; of a list of numbers."""
_SHIFTS = range(0, 63, 7)
"""Of the bytes of a number: one with more bits is negative, as no offset is, and left to `decode`."""

Mask = npt.NDArray[np.bool_]


class _Nested(NamedTuple):
    """A field with a length, of each record."""

    start: Int64s
    end: Int64s
    known: Mask
    """Whether the record has it, as it was expected."""


def columns_of(data: bytes, starts: Int64s, ends: Int64s) -> RecordColumns:
    """Return the records that begin and end there. Raises ValueError where one is none of the archive's."""
    codes = np.frombuffer(data, np.uint8)
    at, features, known = _field(codes, starts, _FIELD_1)
    known &= features == ends
    numbers = []
    for name in (b"offset", b"timestamp"):
        field = _feature(codes, at, name, _FIELD_3)
        number, at, whole = _varints(codes, field.start)
        known &= field.known & whole & (at == field.end)
        numbers.append(number)
    texts = []
    for name in (b"key", b"value"):
        field = _feature(codes, at, name, _FIELD_1)
        there = field.known & known & (field.end <= ends)
        at = np.where(there, field.end, at)
        texts.append(_texts(data, field, there))
    known &= at == ends
    (offsets, timestamps), (keys, values) = numbers, texts
    headers: list[Headers] = [()] * len(starts)
    for other in np.flatnonzero(~known).tolist():
        record = decode(data[starts[other] : ends[other]])
        offsets[other], timestamps[other], keys[other], values[other], headers[other] = record
    return RecordColumns(offsets=offsets, timestamps=timestamps, keys=keys, values=values, headers=headers)


def _feature(codes: npt.NDArray[np.uint8], at: Int64s, name: bytes, kind: bytes) -> _Nested:
    """Return what a feature's list holds: its packed numbers, or its one text."""
    at, end, known = _field(codes, at, _FIELD_1)
    for tag in (_FIELD_1 + bytes((len(name),)) + name + _FIELD_2, kind, _FIELD_1):
        at, same_end, found = _field(codes, at, tag)
        known &= found & (same_end == end)
    return _Nested(at, end, known)


def _field(codes: npt.NDArray[np.uint8], at: Int64s, tag: bytes) -> _Nested:
    known = np.ones(len(at), np.bool_)
    for place, byte in enumerate(tag):
        known &= codes.take(at + place, mode="clip") == byte
    length, at, whole = _varints(codes, at + len(tag))
    end = at + length
    return _Nested(at, end, known & whole)


def _varints(codes: npt.NDArray[np.uint8], at: Int64s) -> tuple[Int64s, Int64s, Mask]:
    """Return the numbers that begin there, where they end, and which of them are whole."""
    number, more = np.zeros(len(at), np.int64), np.ones(len(at), np.bool_)
    for shift in _SHIFTS:
        byte = codes.take(at, mode="clip").astype(np.int64)
        number |= np.where(more, (byte & 0x7F) << shift, 0)
        at = at + more
        more = more & (byte >= 0x80)
        if not more.any():
            break
    return number, at, ~more


def _texts(data: bytes, field: _Nested, there: Mask) -> list[bytes | None]:
    """Return the text of each record that has one."""
    if not there.any():
        return [None] * len(there)
    found = zip(there.tolist(), field.start.tolist(), field.end.tolist(), strict=True)
    return [data[start:end] if has else None for has, start, end in found]


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
_FEW, _SOME = 8, 256
"""Where fewer records than these are of one length, so many are looked at one by one before that is tried again."""


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
        # Flushed, so that the file's size counts all of it; a few bytes a piece.
        self._sink.write(self._gzip.compress(framed) + self._gzip.flush(zlib.Z_SYNC_FLUSH))

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
        pieces = _inflated(file, one=False) if packed else iter(partial(file.read, _INFLATED_BYTES), b"")
        yield from _frames_of(pieces, packed=packed)


def _framed(raw: bytes) -> bytes:
    length = _LENGTH.pack(len(raw))
    return b"".join((length, _CRC.pack(_masked(length)), raw, _CRC.pack(_masked(raw))))


def _frames_of(pieces: Iterable[bytes], *, packed: bool = False) -> Iterator[Frames]:
    """Cut a stream into records, and compare their checksums. A record of many pieces is joined once.

    `packed`: the stream has a checksum of its own, which is compared at its end.
    """
    parts, held, need, count = list[bytes](), 0, _HEADER, 0
    for piece in pieces:
        parts.append(piece)
        held += len(piece)
        if held < need:
            continue
        data = b"".join(parts)
        starts, ends, at, need = _walk(data)
        if len(starts):
            # The checksum of each record's length: many records have one length.
            lengths, places = np.unique(ends - starts, return_inverse=True)
            of_lengths = np.array([_masked(_LENGTH.pack(length)) for length in lengths.tolist()], np.uint32)
            _require_equal(_stored(data, starts - _CRC.size), of_lengths[places], count)
            if not packed:
                # The checksum of each record's bytes.
                view, found = memoryview(data), zip(starts.tolist(), ends.tolist(), strict=True)
                of_records = np.array([calc_crc32c(view[start:end]) for start, end in found], np.int64)
                _require_equal(_stored(data, ends), _mask(of_records), count)
            count += len(starts)
            yield Frames(data, starts, ends)
        rest = data[at:]
        if len(rest) >= _HEADER:  # before anything waits for as many bytes as the length says
            _require_equal(_stored(rest, np.array([_LENGTH.size])), [_masked(rest[: _LENGTH.size])], count)
        parts, held = [rest], len(rest)
    if held:
        raise ValueError(f"the file ends inside record {count}")


def _walk(data: bytes) -> tuple[Int64s, Int64s, int, int]:
    """Return begin and end of each whole record, where the rest begins, and how long the rest has to become.

    Where records are of one length, some thousand are found at a time; else one after the other, some hundred.
    """
    size, at, length_at = len(data), 0, _LENGTH.unpack_from
    starts, ends = list[Int64s](), list[Int64s]()
    while at + _HEADER <= size:
        found, at = _alike(data, at)
        starts.append(found[0])
        ends.append(found[1])
        if len(found[0]) >= _FEW:
            continue
        some = list[tuple[int, int]]()
        while at + _HEADER <= size and len(some) < _SOME:
            end = at + _HEADER + length_at(data, at)[0]
            if end + _CRC.size > size:
                break
            some.append((at + _HEADER, end))
            at = end + _CRC.size
        begins, stops = np.array(some, np.int64).reshape(-1, 2).T
        starts.append(begins)
        ends.append(stops)
        if len(some) < _SOME:
            break
    need = _HEADER
    if at + _HEADER <= size:
        need += length_at(data, at)[0] + _CRC.size
    none = np.empty(0, np.int64)
    return np.concatenate([none, *starts]), np.concatenate([none, *ends]), at, need


def _alike(data: bytes, at: int) -> tuple[tuple[Int64s, Int64s], int]:
    """Return begin and end of the whole records from here on that are as long as the first, and where they end."""
    length = _LENGTH.unpack_from(data, at)[0]
    whole = _HEADER + length + _CRC.size
    count = (len(data) - at) // whole
    if not count:
        return (np.empty(0, np.int64), np.empty(0, np.int64)), at
    heads = np.ndarray((count,), "<u8", data, at, (whole,))
    others = np.flatnonzero(heads != length)
    alike = int(others[0]) if len(others) else count
    starts = at + _HEADER + whole * np.arange(alike, dtype=np.int64)
    return (starts, starts + length), at + whole * alike


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
