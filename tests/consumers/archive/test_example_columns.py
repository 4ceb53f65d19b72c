"""Records of TFRecord shards, read many at a time, against the reader of one; and the frames of any file."""

import contextlib
import gzip
import io
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from millrace.consumers.archive.example_codec import ArchivedRecord, decode, encode
from millrace.consumers.archive.record_columns import RecordColumns, to_arrow
from millrace.consumers.archive.tfrecord_files import TFRecordWriter, columns_of, read_frames, read_tfrecords

TEXTS = st.none() | st.binary(max_size=200) | st.sampled_from([b"key", b"\x0a\x03key\x12", bytes(20_000)])
RECORDS = st.builds(
    ArchivedRecord,
    st.integers(0, 2**63 - 1),
    st.integers(-1, 2**63 - 1) | st.just(1_700_000_000_000),
    TEXTS,
    TEXTS,
    st.just(()) | st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=3)), max_size=2).map(tuple),
)


def together(raws: Sequence[bytes]) -> RecordColumns:
    ends = np.cumsum([len(raw) for raw in raws]).astype(np.int64)
    return columns_of(b"".join(raws), ends - np.array([len(raw) for raw in raws]), ends)


def as_records(found: RecordColumns) -> list[ArchivedRecord]:
    columns = (found.offsets.tolist(), found.timestamps.tolist(), found.keys, found.values, found.headers)
    return [ArchivedRecord(*record) for record in zip(*columns, strict=True)]


def outcome(read: Callable[[], list[ArchivedRecord]]) -> list[ArchivedRecord] | None:
    try:
        return read()
    except (ValueError, LookupError, OverflowError):
        return None


def written(path: Path, records: Sequence[ArchivedRecord]) -> Path:
    sink = io.BytesIO()
    writer = TFRecordWriter(sink)
    writer.write_table(to_arrow(together([encode(record) for record in records])))
    writer.close()
    path.write_bytes(sink.getvalue())
    return path


@given(st.lists(RECORDS, min_size=1, max_size=5))
def test_records_read_together_are_those_read_one_by_one(records: list[ArchivedRecord]) -> None:
    assert as_records(together([encode(record) for record in records])) == records


def test_a_record_with_any_bit_changed_is_read_as_when_it_is_read_alone() -> None:
    records = [ArchivedRecord(300, 1_700_000_000_000, b"key", b"value", ()), ArchivedRecord(1, 2, None, b"", ())]
    raws = [encode(record) for record in records]
    for bit in range(8 * len(raws[0])):
        changed = bytearray(raws[0])
        changed[bit // 8] ^= 1 << bit % 8
        every = [raws[1], bytes(changed), raws[1]]
        alone = outcome(lambda: [decode(raw) for raw in every])  # noqa: B023 - called at once
        assert outcome(lambda: as_records(together(every))) == alone, bit  # noqa: B023


def test_records_that_span_pieces_of_a_file_are_read_whole(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).bytes(2_000_000)
    values = [noise, b"", b"x" * 4_500_000, *(b"%d" % at for at in range(9000)), noise[:1_500_000]]
    records = [ArchivedRecord(at, at, None, value, ()) for at, value in enumerate(values)]
    path = written(tmp_path / "a", records)
    with path.open("rb") as file:
        assert [record for columns in read_tfrecords(file) for record in as_records(columns)] == records


def test_anybodys_file_is_read_and_each_checksum_of_it_compared(tmp_path: Path) -> None:
    path = written(tmp_path / "a", [ArchivedRecord(at, at, None, b"text", ()) for at in range(9)])
    packed = path.read_bytes()
    plain = gzip.decompress(packed)
    (size,) = struct.unpack_from("<Q", plain)
    two = packed + bytes(5) + gzip.compress(plain)  # as programs append, and pad
    for raw, count in ((plain, 9), (packed, 9), (two, 18), (b"", 0)):
        path.write_bytes(raw)
        assert sum(len(frames.records()) for frames in read_frames(path)) == count
    for at, record in ((0, 0), (7, 0), (9, 0), (12, 0), (12 + size, 0), (len(plain) - 1, 8)):
        path.write_bytes(plain[:at] + bytes((plain[at] ^ 1,)) + plain[at + 1 :])
        with pytest.raises(ValueError, match=f"checksum of record {record} is"):
            list(read_frames(path))
    for short in (plain[:-1], packed[:-1], two[:-9]):
        path.write_bytes(short)
        with pytest.raises(ValueError, match="ends"):
            list(read_frames(path))


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40)), max_size=12), st.booleans())
def test_records_of_any_lengths_are_read_as_tensorflow_has_written_them(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[int, int]], packed: bool
) -> None:
    noise = np.random.default_rng(1)
    records = [noise.bytes(length) for length, times in runs for _ in range(times)]
    path = tmp_path_factory.mktemp("frames") / "a"
    with tf.io.TFRecordWriter(str(path), "GZIP" if packed else "") as file:
        for record in records:
            file.write(record)
    assert [record for frames in read_frames(path) for record in frames.records()] == records


def test_a_packed_file_with_any_byte_changed_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a", [ArchivedRecord(at, at, None, b"text", ()) for at in range(9)])
    packed = path.read_bytes()
    for at in range(10, len(packed)):  # after gzip's header, of which some bytes mean nothing
        path.write_bytes(packed[:at] + bytes((packed[at] ^ 1,)) + packed[at + 1 :])
        with pytest.raises(ValueError, match=r"."):
            list(read_frames(path))


def test_a_record_with_any_bit_changed_is_read_or_is_a_value_error() -> None:
    headers: list[tuple[str, Any]] = [("a", b"x"), ("b", None)]
    raw = encode(ArchivedRecord(300, 1_700_000_000_000, b"key", None, headers))
    for bit in range(8 * len(raw)):
        changed = bytearray(raw)
        changed[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(ValueError):
            decode(bytes(changed))
