"""What is taken as columns is what aiokafka's own `getall` gives of the same bytes, for every kind of log.

A new aiokafka that is another one inside fails here.
"""

import gc
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import READ_COMMITTED, READ_UNCOMMITTED, FetchResult, PartitionRecords
from aiokafka.errors import CorruptRecordException
from aiokafka.record import memory_records
from aiokafka.record.default_records import (
    DefaultRecordBatchBuilder,
    _DefaultRecordBatchBuilderPy,
    _DefaultRecordBatchPy,
)
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from hypothesis import given
from hypothesis import strategies as st

from millrace.consumers.kafka.aiokafka_internals import KeptRecords, open_door
from millrace.consumers.kafka.chunking import FetchedColumns
from tests.consumers.kafka.foreign_names import FOREIGN, READ_AS

HERE = TopicPartition("clicks", 0)
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
_CRC_AT, _ATTRIBUTES_AT, _LAST_DELTA_AT = 17, 21, 23
_LOG_APPEND_TIME, _CONTROL = 0x08, 0x20


@dataclass(frozen=True)
class LogBatch:
    """A batch of a log."""

    records: tuple[tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]], ...]
    """Of each record how many offsets lie before it that compaction has removed, its time, key, value and headers."""
    codec: int = NONE
    transaction: bool = False
    producer: int = -1
    append_time: bool = False
    removed_at_end: int = 0
    magic: int = 2
    abort: bool | None = None
    """Whether it is the marker of an abort or of a commit; None for a batch of records."""

    def raw(self, base: int) -> tuple[bytes, int]:
        """Return its bytes, and the offset behind it."""
        if self.magic < 2:
            return self._legacy(base)
        foreign = any(name is FOREIGN for record in self.records for name, _ in record[4])
        built = (_DefaultRecordBatchBuilderPy if foreign else DefaultRecordBatchBuilder)(
            2, self.codec, self.transaction or self.abort is not None, self.producer, 0, 0, 1 << 20
        )
        offset = -1
        for gap, time, key, value, headers in self.records:
            offset += 1 + gap
            built.append(offset, time, key, value, list(headers))
        if self.abort is not None:
            offset = 0
            built.append(0, 5, b"\0\0\0" + (b"\0" if self.abort else b"\1"), b"\0\0\0\0\0\0", [])
        raw = bytearray(built.build())
        last = max(offset, 0) + self.removed_at_end
        raw[:8] = base.to_bytes(8, "big")
        raw[_LAST_DELTA_AT : _LAST_DELTA_AT + 4] = last.to_bytes(4, "big")
        if self.append_time:
            raw[_ATTRIBUTES_AT + 1] |= _LOG_APPEND_TIME
        if self.abort is not None:
            raw[_ATTRIBUTES_AT + 1] |= _CONTROL
        raw[_CRC_AT : _CRC_AT + 4] = calc_crc32c(memoryview(bytes(raw[_ATTRIBUTES_AT:]))).to_bytes(4, "big")
        return bytes(raw), base + last + 1

    def _legacy(self, base: int) -> tuple[bytes, int]:
        built = LegacyRecordBatchBuilder(self.magic, self.codec, 1 << 20)
        for at, (_, time, key, value, _headers) in enumerate(self.records):
            built.append(base + at, time, key, value)
        return bytes(built.build()), base + len(self.records)


def fetched(raw: bytes, first: int, isolation: int, aborted: Sequence[tuple[int, int]]) -> FetchResult:
    """Return a result as the fetcher has it, of a partition that is read from an offset on."""
    state = SimpleNamespace(paused=False, position=first)
    state.consumed_to = lambda position: setattr(state, "position", position)
    assignment = SimpleNamespace(active=True, state_value=lambda _partition: state)
    held = PartitionRecords(
        HERE, KeptRecords(raw), list(aborted), first, None, None, check_crcs=True, isolation_level=isolation
    )
    return FetchResult(HERE, assignment=assignment, partition_records=held, backoff=0)


def through_the_door(result: FetchResult) -> FetchResult:
    consumer = SimpleNamespace(_fetcher=SimpleNamespace(_records=OrderedDict()))
    assert open_door(consumer)
    consumer._fetcher._records[HERE] = result
    return result


def read_all(result: FetchResult, sizes: Sequence[int]) -> list[Any]:
    """Take some records at a time; return all of them, and the position after each time."""
    seen: list[Any] = []
    for size in [*sizes, None, None]:
        if not result.has_more():
            break
        records = result.getall(size)
        seen += [
            (r.offset, -1 if r.timestamp is None else r.timestamp, r.key, r.value, tuple(r.headers)) for r in records
        ]
        seen.append(result._assignment.state_value(HERE).position)
    return seen


TEXTS = st.none() | st.binary(max_size=20)
RECORDS = st.tuples(
    st.sampled_from([0, 0, 0, 1, 7]),
    st.integers(0, 1 << 40),
    TEXTS,
    TEXTS,
    st.sampled_from([(), (), (("a", b"x"),), (("a", None), ("b", b""))]),
)
BATCHES = st.builds(
    LogBatch,
    records=st.lists(RECORDS, min_size=1, max_size=9).map(tuple),
    codec=st.sampled_from([NONE, NONE, GZIP, SNAPPY, LZ4, ZSTD]),
    transaction=st.booleans(),
    producer=st.sampled_from([1, 2]),
    append_time=st.booleans(),
    removed_at_end=st.sampled_from([0, 0, 3]),
)


def of_an_old_format(magic: int) -> st.SearchStrategy[LogBatch]:
    records = st.lists(RECORDS, min_size=1, max_size=9).map(tuple)
    return st.builds(LogBatch, records=records, codec=st.sampled_from([NONE, GZIP, SNAPPY]), magic=st.just(magic))


MARKERS = st.builds(LogBatch, records=st.just(()), producer=st.sampled_from([1, 2]), abort=st.booleans())
LOGS = st.one_of(  # a broker sends one format at a time
    st.lists(BATCHES | BATCHES | MARKERS, max_size=8),
    *(st.lists(of_an_old_format(magic), max_size=3) for magic in (0, 1)),
)


def log_of(batches: Sequence[LogBatch]) -> tuple[bytes, list[int], int]:
    """Return the bytes of a log, where its batches begin, and its end."""
    raws, starts, at = list[bytes](), list[int](), 100
    for batch in batches:
        starts.append(at)
        raw, at = batch.raw(at)
        raws.append(raw)
    return b"".join(raws), starts, at


def assert_alike(
    batches: list[LogBatch], readable: list[LogBatch], into: int, sizes: list[int], data: st.DataObject
) -> None:
    """Assert that batches are read through the door as aiokafka reads the readable ones without it."""
    raw, starts, end = log_of(batches)
    first = min(100 + into, max(100, end - 1))
    isolation = data.draw(st.sampled_from([READ_COMMITTED, READ_UNCOMMITTED]))
    aborted = data.draw(st.lists(st.tuples(st.sampled_from([1, 2]), st.sampled_from(starts or [100])), max_size=3))
    plain = read_all(fetched(log_of(readable)[0], first, isolation, aborted), sizes)
    assert read_all(through_the_door(fetched(raw, first, isolation, aborted)), sizes) == plain


@given(LOGS, st.integers(0, 12), st.lists(st.integers(1, 12), max_size=6), st.data())
def test_any_log_gives_the_records_and_the_positions_that_getall_gives(
    batches: list[LogBatch], into: int, sizes: list[int], data: st.DataObject
) -> None:
    assert_alike(batches, batches, into, sizes, data)


FOREIGN_RECORDS = st.builds(
    lambda record, headers: (*record[:4], headers), RECORDS, st.sampled_from([(), ((FOREIGN, b"x"), ("a", None))])
)
FOREIGN_BATCHES = st.builds(
    lambda batch, records: replace(batch, records=tuple(records)),
    BATCHES,
    st.lists(FOREIGN_RECORDS, min_size=1, max_size=9),
)


def as_utf_8(batch: LogBatch) -> LogBatch:
    """Return the same batch with the names of its headers as they are to be read."""
    return replace(
        batch,
        records=tuple(
            (*record[:4], tuple((READ_AS if name is FOREIGN else name, value) for name, value in record[4]))
            for record in batch.records
        ),
    )


@given(
    st.lists(FOREIGN_BATCHES | BATCHES | MARKERS, max_size=8),
    st.integers(0, 12),
    st.lists(st.integers(1, 12), max_size=6),
    st.data(),
)
def test_names_of_headers_that_are_not_utf_8_change_no_record_and_no_position(
    batches: list[LogBatch], into: int, sizes: list[int], data: st.DataObject
) -> None:
    assert_alike(batches, [*map(as_utf_8, batches)], into, sizes, data)


def test_without_the_c_extension_a_name_that_is_not_utf_8_is_read_as_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class PlainRecords(memory_records._MemoryRecordsPy):  # type: ignore[misc]
        def __init__(self, raw: bytes) -> None:
            super().__init__(raw)
            self.raw = raw

    monkeypatch.setattr(memory_records, "DefaultRecordBatch", _DefaultRecordBatchPy)
    batch = LogBatch(((0, 7, None, b"v", ()), (0, 7, None, b"w", ((FOREIGN, b"x"),)), (0, 7, None, b"z", ())))
    result = fetched(batch.raw(100)[0], 100, READ_COMMITTED, ())
    result._partition_records._records = PlainRecords(batch.raw(100)[0])
    taken = through_the_door(result).getall()
    assert (taken.values, taken.headers[1]) == ([b"v", b"w", b"z"], ((READ_AS, b"x"),))


def test_records_of_an_aborted_transaction_are_left_out_and_later_ones_are_not() -> None:
    record = (0, 7, None, b"v", ())
    aborted, committed = LogBatch((record,), transaction=True, producer=1), LogBatch((record,), producer=1)
    raw, _, end = log_of([aborted, LogBatch((), producer=1, abort=True), committed, aborted])
    for isolation, offsets in ((READ_COMMITTED, [102, 103]), (READ_UNCOMMITTED, [100, 102, 103])):
        result = through_the_door(fetched(raw, 100, isolation, [(1, 100)]))
        assert [record.offset for record in result.getall()] == offsets
        assert result._assignment.state_value(HERE).position == end


def test_columns_come_without_objects_of_records() -> None:
    raw, _, _ = log_of([LogBatch(((0, 7, b"k", b"v", ()), (4, 8, None, None, (("h", b"x"),))))])
    result = through_the_door(fetched(raw, 100, READ_COMMITTED, ()))
    taken = result.getall()
    assert isinstance(taken, FetchedColumns)
    assert (taken.offsets.tolist(), taken.timestamps.tolist()) == ([100, 105], [7, 8])
    assert (taken.keys, taken.values) == ([b"k", None], [b"v", None])
    assert taken.headers == [(), (("h", b"x"),)]
    assert [record.offset for record in taken[1:]] == [105]


def _damaged(raw: bytes) -> bytes:
    return raw[:-1] + bytes((raw[-1] ^ 1,))


def test_a_damaged_batch_is_an_error_and_nothing_behind_it_is_read() -> None:
    good = LogBatch(((0, 7, None, b"v", ()),))
    one, after = good.raw(100)
    two, end = good.raw(after)
    three, _ = good.raw(end)
    for columns in (False, True):
        result = fetched(one + _damaged(two) + three, 100, READ_COMMITTED, ())
        result = through_the_door(result) if columns else result
        with pytest.raises(CorruptRecordException, match="Invalid CRC"):
            result.getall()
        result._assignment.state_value(HERE).position = result._partition_records.next_fetch_offset
        assert not result.getall()


def test_a_result_that_is_dropped_goes_at_once() -> None:
    raw, _, _ = log_of([LogBatch(((0, 7, None, bytes(1000), ()),))])
    result = through_the_door(fetched(raw, 100, READ_COMMITTED, ()))
    gone = weakref.ref(result)
    gc.disable()
    try:
        del result
        assert gone() is None
    finally:
        gc.enable()


def test_what_was_read_goes_at_once_with_the_response_that_held_it() -> None:
    raw, _, _ = log_of([LogBatch(((0, 7, None, bytes(1000), ()),))])
    result = through_the_door(fetched(raw, 100, READ_COMMITTED, ()))
    gone = weakref.ref(result._partition_records)
    gc.disable()
    try:
        assert len(result.getall()) == 1
        assert not result.has_more()
        del result
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "change",
    [lambda consumer: delattr(consumer, "_fetcher"), lambda consumer: setattr(consumer._fetcher, "_records", {})],
)
def test_another_aiokafka_is_read_by_its_records(
    change: Callable[[Any], None], caplog: pytest.LogCaptureFixture
) -> None:
    consumer: Any = SimpleNamespace(_fetcher=SimpleNamespace(_records=OrderedDict()))
    change(consumer)
    assert not open_door(consumer)
    assert "another one inside" in caplog.text
