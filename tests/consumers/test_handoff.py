"""What each end of the hand-off can rely on."""

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest

from millrace.consumers.errors import DataLossError, HandoffBroken, HandoffClosed, HandoffEmpty, HandoffEnded
from millrace.consumers.handoff import Handoff, ReceiveEnd, SendEnd
from millrace.consumers.records import Chunk, Partition

A, B = Partition("clicks", 0), Partition("clicks", 1)


def chunk(partition: Partition = A, start: int = 0, *, nbytes: int = 100, records: int = 2) -> Chunk:
    offsets = np.arange(start, start + records, dtype=np.int64)
    return Chunk(
        partition=partition,
        incarnation=0,
        start=start,
        end=start + records,
        offsets=offsets,
        timestamps=offsets,
        keys=[None] * records,
        values=[b""] * records,
        headers=[()] * records,
        nbytes=nbytes,
        fetched_at=0.0,
    )


def test_a_full_partition_refuses_and_accepts_again_once_there_is_room() -> None:
    handoff = Handoff(capacity_bytes=200)
    assert handoff.offer(chunk(start=0))
    assert handoff.offer(chunk(start=2))
    assert not handoff.has_room(A)
    assert not handoff.offer(chunk(start=4))
    assert handoff.receive(0).start == 0
    assert handoff.has_room(A)
    assert handoff.offer(chunk(start=4))
    assert [handoff.receive(0).start for _ in range(2)] == [2, 4]


def test_a_full_partition_leaves_another_its_share() -> None:
    handoff = Handoff(capacity_bytes=200, partitions=2)
    assert handoff.offer(chunk(A))
    assert not handoff.offer(chunk(A, 2))
    assert handoff.has_room(B)
    assert handoff.offer(chunk(B))


def test_a_chunk_larger_than_the_share_is_accepted_alone() -> None:
    handoff = Handoff(capacity_bytes=200)
    assert handoff.offer(chunk(nbytes=1000))
    assert not handoff.offer(chunk(start=2, nbytes=1))
    assert handoff.receive(0).nbytes == 1000
    assert handoff.statistics().peak_bytes == 1000


def test_new_partitions_make_the_shares_smaller_and_fewer_make_them_larger() -> None:
    handoff = Handoff(capacity_bytes=200)
    handoff.set_partitions(2)
    assert handoff.offer(chunk(A))
    assert not handoff.has_room(A)
    room = threading.Event()
    handoff.on_room(room.set)
    handoff.set_partitions(1)
    assert room.is_set()
    assert handoff.offer(chunk(A, 2))


def test_on_room_is_called_only_after_a_refusal_and_outside_of_the_lock() -> None:
    handoff = Handoff(capacity_bytes=100)
    calls: list[int] = []
    handoff.on_room(lambda: calls.append(handoff.statistics().queued.chunks))
    assert handoff.offer(chunk())
    handoff.receive(0)
    assert calls == []
    assert handoff.offer(chunk(start=2))
    assert not handoff.offer(chunk(start=4))
    handoff.receive(0)
    assert calls == [0]


def test_chunks_arrive_across_partitions_in_the_order_they_were_offered() -> None:
    handoff = Handoff(capacity_bytes=10_000, partitions=2)
    sent = [chunk(A, 0), chunk(B, 0), chunk(B, 2), chunk(A, 2)]
    assert all(map(handoff.offer, sent))
    assert [handoff.receive(0) for _ in sent] == sent


def test_pick_sees_the_first_chunk_of_each_partition_and_decides() -> None:
    handoff = Handoff(capacity_bytes=10_000, partitions=2)
    assert all(map(handoff.offer, [chunk(A, 0), chunk(A, 2), chunk(B, 7)]))
    seen: list[dict[Partition, int]] = []

    def last_first(heads: Mapping[Partition, Chunk]) -> Partition:
        seen.append({partition: head.start for partition, head in heads.items()})
        return max(heads)

    assert [handoff.receive(0, last_first).start for _ in range(3)] == [7, 0, 2]
    assert seen == [{A: 0, B: 7}, {A: 0}, {A: 2}]


def test_pick_may_wait_for_an_empty_partition_while_another_is_full() -> None:
    handoff = Handoff(capacity_bytes=200, partitions=2)
    assert handoff.offer(chunk(A))
    assert not handoff.offer(chunk(A, 2))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(handoff.receive, 20, lambda heads: B if B in heads else None)
        assert handoff.offer(chunk(B, 5))
        assert waiting.result(20).partition == B


def test_an_ended_handoff_is_drained_first() -> None:
    handoff = Handoff(capacity_bytes=200)
    assert handoff.offer(chunk())
    handoff.end()
    assert handoff.receive(0).start == 0
    with pytest.raises(HandoffEnded):
        handoff.receive(None)


def test_chunks_that_pick_leaves_after_the_end_go_to_a_receive_without_pick() -> None:
    handoff = Handoff(capacity_bytes=200)
    assert handoff.offer(chunk())
    handoff.end()
    with pytest.raises(HandoffEnded):
        handoff.receive(None, lambda _: None)
    assert handoff.receive(0).start == 0


def test_a_broken_handoff_raises_with_the_reason_and_exit_code_of_its_cause() -> None:
    handoff = Handoff(capacity_bytes=200)
    assert handoff.offer(chunk())
    cause = DataLossError("offsets 0..9 of clicks:0 are gone")
    handoff.fail(cause)
    with pytest.raises(HandoffBroken, match=r"offsets 0\.\.9 of clicks:0 are gone") as broken:
        handoff.receive(None)
    assert broken.value.__cause__ is cause
    assert broken.value.exit_code == 4
    assert handoff.statistics().discarded.records == 2


def test_a_closed_handoff_refuses_further_chunks_and_counts_what_it_dropped() -> None:
    handoff = Handoff(capacity_bytes=200)
    called = threading.Event()
    handoff.on_room(called.set)
    assert handoff.offer(chunk())
    handoff.close()
    assert called.is_set()
    with pytest.raises(HandoffClosed):
        handoff.offer(chunk(start=2))
    with pytest.raises(HandoffClosed):
        handoff.has_room(A)
    with pytest.raises(HandoffClosed):
        handoff.receive(None)
    statistics = handoff.statistics()
    assert (statistics.queued.chunks, statistics.discarded.chunks, statistics.state) == (0, 1, "closed")


def test_closing_after_the_end_still_drops_and_counts() -> None:
    handoff = Handoff(capacity_bytes=200)
    assert handoff.offer(chunk())
    handoff.end()
    handoff.close()
    assert handoff.statistics().discarded.records == 2


def test_nothing_can_be_sent_after_the_end() -> None:
    handoff = Handoff(capacity_bytes=200)
    handoff.end()
    with pytest.raises(RuntimeError, match="ended"):
        handoff.offer(chunk())


def test_a_receive_gives_up_after_its_timeout() -> None:
    with pytest.raises(HandoffEmpty):
        Handoff(capacity_bytes=200).receive(0.001)


@pytest.mark.parametrize("ending", ["wake", "end", "fail", "close"])
def test_a_receive_without_a_timeout_is_released_by(ending: str) -> None:
    handoff = Handoff(capacity_bytes=200)
    endings = {
        "wake": (handoff.wake, HandoffEmpty),
        "end": (handoff.end, HandoffEnded),
        "fail": (lambda: handoff.fail(ValueError("x")), HandoffBroken),
        "close": (handoff.close, HandoffClosed),
    }
    end, expected = endings[ending]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(handoff.receive, None)
        end()
        with pytest.raises(expected):
            waiting.result(20)


def test_a_wake_before_the_wait_is_not_missed_and_wakes_once() -> None:
    handoff = Handoff(capacity_bytes=200)
    handoff.wake()
    assert handoff.offer(chunk())
    assert handoff.receive(None).start == 0
    with pytest.raises(HandoffEmpty, match="in time"):
        handoff.receive(0)
    with pytest.raises(HandoffEmpty, match="woken"):
        handoff.receive(20)
    assert handoff.offer(chunk(start=2))
    assert handoff.receive(None).start == 2


def test_two_threads_pass_everything_on_in_order_through_a_small_handoff() -> None:
    handoff = Handoff(capacity_bytes=300)
    room = threading.Event()
    handoff.on_room(room.set)

    def send() -> None:
        for start in range(0, 4000, 2):
            room.clear()
            while not handoff.offer(chunk(start=start)):
                assert room.wait(20)
                room.clear()
        handoff.end()

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        received = [handoff.receive(20).start for _ in range(2000)]
        with pytest.raises(HandoffEnded):
            handoff.receive(20)
        sending.result(20)
    assert received == list(range(0, 4000, 2))
    assert handoff.statistics().peak_bytes <= 300


@pytest.mark.parametrize(("capacity", "partitions"), [(0, 1), (100, 0)])
def test_a_handoff_without_capacity_or_partitions_is_refused(capacity: int, partitions: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Handoff(capacity_bytes=capacity, partitions=partitions)


def _public(of: type) -> set[str]:
    return {name for name in vars(of) if not name.startswith("_")}


def test_the_two_ends_share_no_method_and_together_are_the_whole_handoff() -> None:
    assert not _public(SendEnd) & _public(ReceiveEnd)
    assert _public(SendEnd) | _public(ReceiveEnd) == _public(Handoff)


if TYPE_CHECKING:

    def misuse_of_an_end_does_not_type_check(send_end: SendEnd, receive_end: ReceiveEnd) -> None:
        """Fail the type check if misuse is allowed: mypy then reports an ignore that is not needed."""
        send_end.receive(None)  # type: ignore[attr-defined]
        send_end.close()  # type: ignore[attr-defined]
        receive_end.offer(chunk())  # type: ignore[attr-defined]
        receive_end.end()  # type: ignore[attr-defined]
