"""Joined chunks hold what was sent: nothing is lost or doubled, and only consecutive chunks are joined."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.consumers.handoff import JOINED_BYTES, JOINED_RECORDS, Handoff, joined
from millrace.consumers.records import Chunk, Partition

HERE, THERE = Partition("clicks", 0), Partition("clicks", 1)


def chunk(partition: Partition, start: int, records: int, gap: int = 0, lost: int = 0, incarnation: int = 1) -> Chunk:
    offsets = np.arange(start + lost, start + lost + records, dtype=np.int64)
    return Chunk(
        partition=partition,
        incarnation=incarnation,
        start=start,
        end=start + lost + records + gap,
        offsets=offsets,
        timestamps=offsets * 10,
        keys=[None] * records,
        values=[str(offset).encode() for offset in offsets],
        headers=[()] * records,
        nbytes=100 * records + 1,
        fetched_at=float(start),
        lost=lost,
    )


pieces = st.lists(
    st.tuples(st.sampled_from([HERE, THERE]), st.integers(0, 700), st.integers(0, 2), st.integers(0, 1), st.booleans()),
    max_size=12,
)


@given(pieces)
def test_queued_chunks_come_out_once_in_order_and_joined_only_if_consecutive(
    pieces: list[tuple[Partition, int, int, int, bool]],
) -> None:
    handoff, ends = Handoff(capacity_bytes=1 << 30, partitions=2), {HERE: 0, THERE: 0}
    sent: dict[Partition, list[Chunk]] = {HERE: [], THERE: []}
    for partition, records, gap, lost, jump in pieces:
        made = chunk(partition, ends[partition] + 5 * jump, records, gap, lost)
        assert handoff.offer(made)
        sent[partition].append(made)
        ends[partition] = made.end
    handoff.end()
    taken: dict[Partition, list[Chunk]] = {HERE: [], THERE: []}
    while any(len(taken[partition]) < len(sent[partition]) for partition in sent):
        first = handoff.receive(0.0)
        behind = handoff.take_behind(first, 0)
        together = [first, *behind]
        taken[first.partition] += together
        whole = joined(together)
        assert len(together) == 1 or len(whole) <= JOINED_RECORDS
        assert (whole.start, whole.end) == (first.start, together[-1].end)
        assert whole.values == [value for part in together for value in part.values]
        assert whole.offsets.tolist() == [offset for part in together for offset in part.offsets]
        assert whole.timestamps.tolist() == [offset * 10 for offset in whole.offsets]
        assert whole.nbytes == sum(part.nbytes for part in together)
        assert whole.fetched_at == first.fetched_at
        assert all(
            after.start == before.end and not after.lost for before, after in zip(together, behind, strict=False)
        )
    assert taken == sent
    assert handoff.statistics().queued.records == 0


def test_a_chunk_of_another_incarnation_is_never_joined() -> None:
    handoff = Handoff(capacity_bytes=1 << 20)
    handoff.offer(chunk(HERE, 0, 3))
    handoff.offer(chunk(HERE, 3, 3, incarnation=2))
    assert handoff.take_behind(handoff.receive(0.0), 0) == []


@pytest.mark.parametrize(
    ("records", "nbytes", "row_nbytes", "joined_chunks"),
    [
        (JOINED_RECORDS // 4, 1, 1, 4),
        (2, JOINED_BYTES // 3, 1, 3),
        (2, 1, JOINED_BYTES // 6, 3),
    ],
    ids=["records", "bytes", "bytes of rows"],
)
def test_so_many_chunks_are_joined_and_no_more(records: int, nbytes: int, row_nbytes: int, joined_chunks: int) -> None:
    handoff = Handoff(capacity_bytes=1 << 30)
    for start in range(0, 6 * records, records):
        handoff.offer(replace(chunk(HERE, start, records), timestamps=np.zeros(records, np.int64), nbytes=nbytes))
    assert len(handoff.take_behind(handoff.receive(0.0), row_nbytes)) == joined_chunks - 1


def test_records_of_a_much_later_time_are_not_joined() -> None:
    handoff = Handoff(capacity_bytes=1 << 20)
    handoff.offer(chunk(HERE, 0, 3))
    handoff.offer(chunk(HERE, 3, 200))
    assert handoff.take_behind(handoff.receive(0.0), 0) == []


def test_taking_chunks_behind_calls_on_room_for_a_refused_partition() -> None:
    calls: list[bool] = []
    handoff = Handoff(capacity_bytes=2 * 301)
    handoff.on_room(lambda: calls.append(True))
    handoff.offer(chunk(HERE, 0, 3))
    handoff.offer(chunk(HERE, 3, 3))
    assert not handoff.offer(chunk(HERE, 6, 3))
    handoff.take_behind(handoff.receive(0.0), 0)
    assert calls
    assert handoff.offer(chunk(HERE, 6, 3))
