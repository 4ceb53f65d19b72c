"""The records of a poll become the columns of a chunk."""

from dataclasses import dataclass

import numpy as np

from millrace.consumers.fingerprints import Fingerprint
from millrace.consumers.kafka.chunking import chunk_of, empty_chunk, records_between
from millrace.consumers.records import Headers, Partition

P = Partition("t", 0)


@dataclass(frozen=True)
class Record:
    offset: int
    timestamp: int = 0
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()


def test_columns_hold_the_records_and_gaps_stay_gaps() -> None:
    records = [Record(3, 30, b"k", b"v", (("h", b"x"),)), Record(7, 70)]
    chunk = chunk_of(records, P, 5, start=2, end=9, fetched_at=1.5)
    assert (chunk.start, chunk.end, chunk.incarnation, len(chunk)) == (2, 9, 5, 2)
    np.testing.assert_array_equal(chunk.offsets, [3, 7])
    np.testing.assert_array_equal(chunk.timestamps, [30, 70])
    assert (list(chunk.keys), list(chunk.values)) == ([b"k", None], [b"v", None])
    assert list(chunk.headers) == [(("h", b"x"),), ()]


def test_the_size_of_a_chunk_counts_keys_values_and_headers() -> None:
    def weight(**held: object) -> int:
        return chunk_of([Record(0, **held)], P, 0, start=0, end=1, fetched_at=0).nbytes  # type: ignore[arg-type]

    bare = weight()
    assert weight(value=b"x" * 1000) == bare + 1000
    assert weight(key=b"x" * 1000) == bare + 1000
    assert weight(headers=(("h", b"x" * 1000),)) > bare + 1000


def test_a_chunk_has_the_fingerprint_of_its_last_record_alone() -> None:
    def known(*records: Record) -> object:
        return chunk_of(records, P, 0, start=0, end=9, fetched_at=0).fingerprint

    last = Record(7, 70, b"k", b"v")
    assert known(Record(3), last) == known(last) == Fingerprint.of(7, 70, b"k", b"v")
    others = (Record(8, 70, b"k", b"v"), Record(7, 71, b"k", b"v"), Record(7, 70, b"", b"v"), Record(7, 70, b"k", b"w"))
    assert len({known(last), *map(known, others)}) == 5
    assert empty_chunk(P, 0, start=0, end=9, fetched_at=0).fingerprint is None


def test_an_empty_chunk_moves_the_position_and_has_a_size() -> None:
    chunk = empty_chunk(P, 1, start=5, end=9, fetched_at=0, lost=4)
    assert (len(chunk), chunk.end - chunk.start, chunk.lost) == (0, 4, 4)
    assert chunk.nbytes > 0


def test_records_before_the_position_and_from_the_end_on_are_cut_off() -> None:
    records = [Record(offset) for offset in (4, 6, 8, 10)]
    assert [record.offset for record in records_between(records, 5, 10)] == [6, 8]
    assert [record.offset for record in records_between(records, 0, None)] == [4, 6, 8, 10]
    assert list(records_between(records, 11, None)) == []
    assert list(records_between(records, 0, 4)) == []


def test_a_chunk_is_split_at_any_offset_that_it_covers() -> None:
    records = [Record(3, 30, b"k", b"v"), Record(7, 70, None, b"w"), Record(8, 80)]
    chunk = chunk_of(records, P, 5, start=2, end=11, fetched_at=1.5)
    for at, before in ((3, 0), (4, 1), (7, 1), (8, 2), (10, 3)):
        one, other = chunk.split(at)
        assert (one.start, one.end, other.start, other.end) == (2, at, at, 11)
        assert [*one.offsets, *other.offsets] == [3, 7, 8]
        assert (len(one), [*one.values, *other.values]) == (before, [b"v", b"w", None])
        last = (None, chunk.fingerprint) if len(other) else (chunk.fingerprint, None)
        assert (one.fingerprint, other.fingerprint) == last
