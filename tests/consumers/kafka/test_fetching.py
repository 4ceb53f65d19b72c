"""One incarnation's fetching: whatever a poll does, each offset arrives once, in order, in the chunk after the last."""

import asyncio
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import pytest

from millrace.consumers.errors import HandoffBroken, HandoffEnded
from millrace.consumers.handoff import Handoff
from millrace.consumers.kafka import admission, fetching
from millrace.consumers.kafka.client import KafkaClient, OffsetGoneError, PollError
from millrace.consumers.kafka.fetching import Fetching, Incarnation
from millrace.consumers.kafka.options import KafkaOptions, OutOfRange
from millrace.consumers.kafka.statistics import SourceMeter
from millrace.consumers.records import Chunk, Headers, Partition

A, B = Partition("clicks", 0), Partition("clicks", 1)
LARGE_BYTES, SMALL_BYTES = 1 << 20, 3000
"""Room for everything, and for one chunk and a half per partition."""


@dataclass(frozen=True)
class Record:
    offset: int
    timestamp: int = 0
    key: bytes | None = None
    value: bytes | None = b"x" * 100
    headers: Headers = ()


class FakeClient:
    """A topic that does not change, in which each offset divisible by 5 is a control record; polls have faults."""

    def __init__(self, *faults: str, first: int = 0, end: int = 21) -> None:
        self.faults = list(faults)
        self.first, self.end = first, end
        self.at: dict[Partition, int] = {}
        self.doubted = False

    def partitions(self) -> tuple[Partition, ...]:
        return (A, B)

    def led(self) -> frozenset[Partition]:
        return frozenset((A, B))

    def take_doubt(self) -> bool:
        doubted, self.doubted = self.doubted, False
        return doubted

    async def beginnings(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return dict.fromkeys(partitions, self.first)

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return dict.fromkeys(partitions, self.end)

    def assign(self, positions: Mapping[Partition, int]) -> None:
        self.at = dict(positions)

    def seek(self, partition: Partition, position: int) -> None:
        self.at[partition] = position

    async def position(self, partition: Partition) -> int:
        return self.at[partition]

    async def poll(self, partitions: Iterable[Partition], _timeout_ms: int) -> Mapping[Partition, Sequence[Record]]:
        await asyncio.sleep(0)
        if gone := [p for p in partitions if self.at[p] < self.first]:
            raise OffsetGoneError(gone[0], self.at[gone[0]])
        fault = self.faults.pop(0) if self.faults else ""
        polled = {partition: list(self._next(partition, early=fault == "early")) for partition in partitions}
        if fault == "fail":
            raise PollError("the records that were polled are gone")
        if fault == "doubt":
            self.doubted = True
            polled = {p: [replace(record, value=b"foreign") for record in records] for p, records in polled.items()}
        return {partition: records for partition, records in polled.items() if records}

    def _next(self, partition: Partition, *, early: bool) -> Iterator[Record]:
        start = self.at[partition]
        self.at[partition] = min(start + 3, self.end)
        for offset in range(max(self.first, start - 2) if early else start, self.at[partition]):
            if offset % 5:
                yield Record(offset)


@pytest.fixture(autouse=True)
def no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in [(fetching, "_LOOK_EVERY_S"), (fetching, "_RETRY_S"), (admission, "_LOOK_EVERY_S")]:
        monkeypatch.setattr(module, name, 0.01)


class WatchedHandoff(Handoff):
    """A hand-off that is received from only once it has refused a chunk, if it is small."""

    def __init__(self, *, capacity_bytes: int) -> None:
        super().__init__(capacity_bytes=capacity_bytes, partitions=2)
        self.may_receive = threading.Event()
        if capacity_bytes > SMALL_BYTES:
            self.may_receive.set()

    def offer(self, chunk: Chunk) -> bool:
        accepted = super().offer(chunk)
        if not accepted:
            self.may_receive.set()
        return accepted


@dataclass
class Fetched:
    chunks: list[Chunk]
    meter: SourceMeter

    def offsets(self, partition: Partition) -> list[int]:
        return [int(offset) for chunk in self.chunks if chunk.partition == partition for offset in chunk.offsets]


def fetch(
    client: FakeClient, *, capacity_bytes: int = LARGE_BYTES, out_of_range: OutOfRange = "earliest", until: int = 21
) -> Fetched:
    """Fetch both partitions from offset 0 up to `until`, and receive in a thread of its own."""
    handoff = WatchedHandoff(capacity_bytes=capacity_bytes)
    meter = SourceMeter()
    options = KafkaOptions(
        bootstrap_servers=("localhost:1",), topics=("clicks",), group_id="g", out_of_range=out_of_range
    )

    def receive() -> Iterator[Chunk]:
        assert handoff.may_receive.wait(20)
        try:
            while True:
                yield handoff.receive(20)
        except HandoffEnded:
            return

    async def run() -> Fetched:
        loop, room = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(room.set)

        handoff.on_room(wake)
        incarnation = Incarnation(
            number=1, positions={A: 0, B: 0}, fingerprints={}, until={A: until, B: until}, handoff=handoff
        )
        task = Fetching(incarnation, client=cast("KafkaClient", client), options=options, meter=meter, room=room)
        _, chunks = await asyncio.gather(task.run(), asyncio.to_thread(lambda: list(receive())))
        return Fetched(chunks, meter)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("faults", "capacity_bytes"),
    [
        ([], LARGE_BYTES),
        (["fail"], LARGE_BYTES),
        (["", "fail", "fail"], LARGE_BYTES),
        (["", "doubt"], LARGE_BYTES),
        ([], SMALL_BYTES),
    ],
    ids=["none", "a failed poll", "two failed polls", "a doubt during a poll", "a refused chunk"],
)
def test_every_offset_arrives_once_and_in_order_despite(faults: list[str], capacity_bytes: int) -> None:
    fetched = fetch(FakeClient(*faults), capacity_bytes=capacity_bytes)
    for partition in (A, B):
        assert fetched.offsets(partition) == [offset for offset in range(21) if offset % 5]
        chunks = [chunk for chunk in fetched.chunks if chunk.partition == partition]
        assert [chunk.start for chunk in chunks] == [0, *(chunk.end for chunk in chunks[:-1])]
        assert chunks[-1].end == 21
        assert not any(b"foreign" in chunk.values for chunk in chunks)
    assert fetched.meter.snapshot(0.0).stale_records == 0


def test_records_before_the_position_are_dropped_and_counted() -> None:
    fetched = fetch(FakeClient("", "", "early"))
    assert fetched.offsets(A) == fetched.offsets(B) == [offset for offset in range(21) if offset % 5]
    assert fetched.meter.snapshot(0.0).stale_records > 0


def test_fetching_stops_before_until_though_more_is_there() -> None:
    fetched = fetch(FakeClient(end=50), until=7)
    assert fetched.offsets(A) == fetched.offsets(B) == [1, 2, 3, 4, 6]
    assert {max(chunk.end for chunk in fetched.chunks if chunk.partition == partition) for partition in (A, B)} == {7}


def test_offsets_without_records_belong_to_the_chunk_of_the_records_before_them() -> None:
    fetched = fetch(FakeClient(end=21), until=21)  # the last poll returns 18 and 19, and passes 20 too
    for partition in (A, B):
        *_, last = [chunk for chunk in fetched.chunks if chunk.partition == partition]
        assert (last.start, last.end, list(last.offsets)) == (18, 21, [18, 19])


def test_offsets_without_records_that_come_alone_are_passed_by_an_empty_chunk() -> None:
    fetched = fetch(FakeClient(end=16), until=16)  # the last poll returns nothing, and passes 15
    for partition in (A, B):
        *_, last = [chunk for chunk in fetched.chunks if chunk.partition == partition]
        assert (last.start, last.end, list(last.offsets)) == (15, 16, [])


def test_offsets_that_retention_removed_are_passed_as_lost() -> None:
    fetched = fetch(FakeClient(first=11))
    assert fetched.offsets(A) == [11, 12, 13, 14, 16, 17, 18, 19]
    assert [(chunk.start, chunk.end, chunk.lost) for chunk in fetched.chunks if chunk.lost] == [(0, 11, 11)] * 2


def test_offsets_that_retention_removed_end_the_fetching_where_that_is_set() -> None:
    with pytest.raises(HandoffBroken, match=r"offsets 0\.\.10 of clicks:0 are gone by retention") as broken:
        fetch(FakeClient(first=11), out_of_range="fail")
    assert broken.value.exit_code == 4


def test_polls_that_fail_again_and_again_end_the_fetching() -> None:
    with pytest.raises(HandoffBroken, match="fetching fails again and again"):
        fetch(FakeClient(*["fail"] * 100))


class CountingHandoff(WatchedHandoff):
    """A hand-off that counts how often a chunk is offered to it."""

    offers = 0

    def offer(self, chunk: Chunk) -> bool:
        self.offers += 1
        return super().offer(chunk)


@pytest.mark.row(22)
def test_while_the_handoff_is_full_the_source_looks_for_room_with_a_pause() -> None:
    handoff = CountingHandoff(capacity_bytes=SMALL_BYTES)
    options = KafkaOptions(bootstrap_servers=("localhost:1",), topics=("clicks",), group_id="g")

    async def run() -> int:
        incarnation = Incarnation(
            number=1, positions={A: 0, B: 0}, fingerprints={}, until={A: 500, B: 500}, handoff=handoff
        )
        client = cast("KafkaClient", FakeClient(end=500))
        fetching = Fetching(incarnation, client=client, options=options, meter=SourceMeter(), room=asyncio.Event())
        task = asyncio.create_task(fetching.run())
        await asyncio.to_thread(handoff.may_receive.wait, 20)  # a chunk was refused
        await asyncio.sleep(0.1)
        before = handoff.offers
        await asyncio.sleep(0.3)
        offers = handoff.offers - before
        handoff.close()
        await task
        return offers

    offers = asyncio.run(run())
    assert 0 < offers <= 2 * 0.3 / 0.01, "of two partitions at most one chunk each in a pause"
