"""Chunks to columns under the model's names, and the pool that keeps their order."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from millrace.consumers.errors import NotYetError
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.formats import DecodedValues, Decoder, make_decoder
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.stream.decode import DecodePool, OnRefused, Refused, decode_chunk

SCHEMA = Schema(
    features=(
        Field(name="price", source="p", dtype="float32"),
        Field(name="ad", source="a", dtype="string", missing=""),
    ),
    labels=(Field(name="clicked", source="c", dtype="bool"),),
    weight=Field(name="weight", source="w", dtype="float64", missing=1),
    event_time=Field(name="event_time", source="t", dtype="int64"),
)
BARE = Schema(features=(Field(name="price", source="p", dtype="float32"),))
GOOD = b'{"p":1}'
WAIT_S = 20.0


def chunk_of(values: Sequence[bytes | None], start: int = 0, step: int = 1) -> Chunk:
    """Return a chunk whose records are `step` offsets apart."""
    count = len(values)
    offsets = start + step * np.arange(count, dtype=np.int64)
    return Chunk(
        partition=Partition("clicks", 3),
        incarnation=5,
        start=start,
        end=start + step * count,
        offsets=offsets,
        timestamps=offsets + 1000,
        keys=[None] * count,
        values=values,
        headers=[()] * count,
        nbytes=100 * count,
        fetched_at=2.5,
        lost=1,
    )


class Gate:
    """A decoder that holds each chunk until its first value is let through."""

    def __init__(self) -> None:
        self._inner = make_decoder("json", BARE)
        self._passed: set[bytes | None] = set()
        self._changed = threading.Condition()
        self.begun: list[bytes | None] = []

    @property
    def schema(self) -> Schema:
        return BARE

    def let(self, value: bytes) -> None:
        with self._changed:
            self._passed.add(value)
            self._changed.notify_all()

    def await_begun(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.begun) >= count, WAIT_S)

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        with self._changed:
            self.begun.append(values[0])
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: values[0] in self._passed, WAIT_S)
        return self._inner.decode(values)


class Broken:
    """A decoder with a bug."""

    @property
    def schema(self) -> Schema:
        return BARE

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        raise ZeroDivisionError(len(values))


@pytest.fixture
def make_pool() -> Iterator[Callable[..., DecodePool]]:
    pools: list[DecodePool] = []

    def make(decoder: Decoder, on_refused: OnRefused | None = None) -> DecodePool:
        pools.append(DecodePool(decoder, threads=2, on_refused=on_refused))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def test_columns_bear_the_models_names_and_rows_their_offsets() -> None:
    values = [b'{"p":1.5,"a":"x","c":true,"w":2,"t":-7}', b"", b'{"p":2.5,"c":false,"t":8}']
    decoded = decode_chunk(chunk_of(values, start=10, step=2), make_decoder("json", SCHEMA))
    assert decoded.offsets.tolist() == [10, 14]
    assert {name: column.tolist() for name, column in decoded.features.items()} == {
        "price": [1.5, 2.5],
        "ad": [b"x", b""],
    }
    assert decoded.labels["clicked"].tolist() == [True, False]
    assert decoded.weights is not None
    assert decoded.weights.dtype == np.float32
    assert decoded.weights.tolist() == [2.0, 1.0]
    assert decoded.event_times.tolist() == [-7, 8]
    assert decoded.refused == (Refused(12, Reason.EMPTY),)
    assert (decoded.partition, decoded.incarnation) == (Partition("clicks", 3), 5)
    assert (decoded.start, decoded.end, decoded.fetched_at, decoded.lost) == (10, 16, 2.5, 1)
    assert decoded.nbytes > 50


def test_without_an_event_time_or_weight_kafkas_time_stands_and_every_row_counts_one() -> None:
    decoded = decode_chunk(chunk_of([GOOD, b"x", GOOD], start=4), make_decoder("json", BARE))
    assert decoded.event_times.tolist() == [1004, 1006]
    assert decoded.weights is None


@pytest.mark.parametrize("weight", ["-1", "-1e-9", "1e300"])
def test_a_weight_that_cannot_weigh_is_out_of_range_and_takes_its_row_along(weight: str) -> None:
    bad = f'{{"p":1,"c":true,"t":1,"w":{weight}}}'.encode()
    good = b'{"p":2,"c":true,"t":2,"w":0}'
    decoded = decode_chunk(chunk_of([good, bad, b"?", good]), make_decoder("json", SCHEMA))
    assert decoded.offsets.tolist() == [0, 3]
    assert decoded.features["price"].tolist() == [2.0, 2.0]
    assert decoded.labels["clicked"].tolist() == [True, True]
    assert decoded.event_times.tolist() == [2, 2]
    assert decoded.refused == (Refused(1, Reason.OUT_OF_RANGE, "w"), Refused(2, Reason.MALFORMED))


def test_lists_that_are_padded_count_for_what_they_are_padded_to(make_pool: Callable[..., DecodePool]) -> None:
    long = Field(name="words", source="w", dtype="float32", shape=(1000,), pad=0.0, length="known")
    pool = make_pool(make_decoder("json", Schema(features=(long,))))
    pool.submit(chunk_of([b'{"w":[1]}'] * 2))
    assert pool.statistics().nbytes == 2 * (4 * 1000 + 4)
    assert pool.next(WAIT_S).nbytes >= 2 * 4 * 1000


def test_results_come_in_the_order_of_submission_whichever_is_ready_first(make_pool: Callable[..., DecodePool]) -> None:
    gate = Gate()
    pool = make_pool(gate)
    first, second = b'{"p":1}', b'{"p":2}'
    pool.submit(chunk_of([first], start=0))
    pool.submit(chunk_of([second, second], start=1))
    assert pool.in_flight == 2
    statistics = pool.statistics()
    assert (statistics.chunks, statistics.records, statistics.nbytes) == (2, 3, 300)
    gate.await_begun(2)
    gate.let(second)
    with pytest.raises(TimeoutError):
        pool.next(0.05)
    gate.let(first)
    assert [pool.next(WAIT_S).start, pool.next(WAIT_S).start] == [0, 1]
    assert pool.in_flight == 0


def test_many_chunks_keep_their_order(make_pool: Callable[..., DecodePool]) -> None:
    pool = make_pool(make_decoder("json", BARE))
    for start in range(200):
        pool.submit(chunk_of([b'{"p":%d}' % start] * (1 + start % 7), start=start))
    assert [pool.next(WAIT_S).features["price"][0] for _ in range(200)] == list(range(200))


def test_refused_records_are_told_in_order_before_their_chunk_is_handed_out(
    make_pool: Callable[..., DecodePool],
) -> None:
    told: list[tuple[int, str]] = []

    def tell(_: Chunk, refused: Sequence[Refused]) -> int:
        told.extend((one.offset, threading.current_thread().name) for one in refused)
        return len(refused)

    pool = make_pool(make_decoder("json", BARE), tell)
    pool.submit(chunk_of([b"?", GOOD, b""], start=0))
    pool.submit(chunk_of([b"?"], start=3))
    here = threading.current_thread().name
    pool.next(WAIT_S)
    assert told == [(0, here), (2, here)]
    pool.next(WAIT_S)
    assert told[2:] == [(3, here)]


def test_refused_records_that_were_not_accepted_are_told_again(make_pool: Callable[..., DecodePool]) -> None:
    told: list[list[int]] = []

    def tell(_: Chunk, refused: Sequence[Refused]) -> int:
        told.append([one.offset for one in refused])
        if len(told) == 1:
            raise ConnectionError("no dead letters")
        return 1

    pool = make_pool(make_decoder("json", BARE), tell)
    pool.submit(chunk_of([b"?", b"?"], start=7))
    with pytest.raises(ConnectionError):
        pool.next(WAIT_S)
    with pytest.raises(TimeoutError, match="not accepted"):
        pool.next(WAIT_S)
    assert pool.next(WAIT_S).start == 7
    assert told == [[7, 8], [7, 8], [8]]


def test_a_chunk_whose_decoding_raised_is_never_skipped(make_pool: Callable[..., DecodePool]) -> None:
    pool = make_pool(Broken())
    pool.submit(chunk_of([GOOD]))
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            pool.next(WAIT_S)
    assert pool.discard() == 1


def test_discarded_chunks_are_never_returned(make_pool: Callable[..., DecodePool]) -> None:
    gate = Gate()
    pool = make_pool(gate)
    held = b'{"p":1}'
    for start in range(4):
        pool.submit(chunk_of([held, held], start=start))
    gate.await_begun(2)
    assert pool.discard() == 8
    assert pool.in_flight == 0
    gate.let(held)
    pool.submit(chunk_of([held], start=9))
    assert pool.next(WAIT_S).start == 9


def test_closing_ends_a_waiting_next_and_refuses_further_chunks(make_pool: Callable[..., DecodePool]) -> None:
    gate = Gate()
    pool = make_pool(gate)
    pool.submit(chunk_of([GOOD]))
    gate.await_begun(1)
    with ThreadPoolExecutor(2) as threads:
        waiting = threads.submit(pool.next, WAIT_S)
        closing = threads.submit(pool.close)
        with pytest.raises(RuntimeError, match="closed"):
            waiting.result(WAIT_S)
        gate.let(GOOD)
        closing.result(WAIT_S)
    pool.close()
    with pytest.raises(RuntimeError):
        pool.submit(chunk_of([GOOD]))


class Lacking:
    """A decoder that lacks something for some values until it is there."""

    def __init__(self) -> None:
        self._inner = make_decoder("json", BARE)
        self.lacks: set[bytes] = set()
        self.tried = 0

    @property
    def schema(self) -> Schema:
        return BARE

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        self.tried += 1
        if values[0] in self.lacks:
            raise NotYetError("schema 7 is not there")
        return self._inner.decode(values)


def test_a_chunk_that_cannot_be_decoded_yet_is_tried_again_and_keeps_its_place(
    make_pool: Callable[..., DecodePool],
) -> None:
    decoder = Lacking()
    pool = make_pool(decoder)
    first, second, third = b'{"p":1}', b'{"p":2}', b'{"p":3}'
    decoder.lacks |= {first, third}
    for value in (first, second, third):
        pool.submit(chunk_of([value]))
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        pool.next(0.0)
    assert time.monotonic() - began < 0.5
    with pytest.raises(TimeoutError):
        pool.next(1.3)
    assert pool.statistics().lacks == "schema 7 is not there"
    assert 5 < decoder.tried < 60
    assert pool.in_flight == 3
    decoder.lacks.clear()
    assert [pool.next(WAIT_S).features["price"].tolist() for _ in range(3)] == [[1.0], [2.0], [3.0]]
    assert pool.statistics().lacks is None


def test_a_pool_whose_chunk_cannot_be_decoded_yet_is_discarded_and_closed_at_once() -> None:
    decoder = Lacking()
    decoder.lacks.add(b'{"p":1}')
    pool = DecodePool(decoder, threads=1)
    pool.submit(chunk_of([b'{"p":1}']))
    waiting = threading.Thread(target=lambda: _ends(pool))
    waiting.start()
    time.sleep(0.3)
    began = time.monotonic()
    pool.close()
    waiting.join(WAIT_S)
    assert not waiting.is_alive()
    assert time.monotonic() - began < 1.0


def _ends(pool: DecodePool) -> None:
    with pytest.raises(RuntimeError, match="closed"):
        pool.next(None)
