"""The laws of the hand-off under any sequence of what its two ends may do."""

from collections import defaultdict, deque

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millrace.consumers.errors import HandoffBroken, HandoffClosed, HandoffEmpty, HandoffEnded
from millrace.consumers.handoff import Handoff
from millrace.consumers.records import Chunk, Partition
from tests.properties.effort import tried

CAPACITY = 1000
PARTITIONS = [Partition("t", number) for number in range(3)]
CHUNKS = st.tuples(st.sampled_from(PARTITIONS), st.integers(0, 5), st.integers(1, 400) | st.integers(1, 1500))


class HandoffMachine(RuleBasedStateMachine):
    """A model of plain queues beside the hand-off."""

    @initialize(shares=st.integers(1, 4))
    def begin(self, shares: int) -> None:
        self.handoff = Handoff(capacity_bytes=CAPACITY, partitions=shares)
        self.share = CAPACITY // shares
        self.model: dict[Partition, deque[Chunk]] = defaultdict(deque)
        self.arrival: list[Chunk] = []
        self.next_offset: dict[Partition, int] = defaultdict(int)
        self.offered = self.received = self.discarded = 0
        self.rooms = 0
        self.refused: set[Partition] = set()
        self.over_large = 0
        self.state = "open"
        self.woken = False
        self.handoff.on_room(self._room)

    def _room(self) -> None:
        self.rooms += 1

    def _queued(self, partition: Partition) -> int:
        return sum(chunk.nbytes for chunk in self.model[partition])

    @precondition(lambda self: self.state == "open")
    @rule(chunks=st.lists(CHUNKS, min_size=1, max_size=6))
    def offer(self, chunks: list[tuple[Partition, int, int]]) -> None:
        for chunk in chunks:
            self._offer(*chunk)

    def _offer(self, partition: Partition, records: int, nbytes: int) -> None:
        start = self.next_offset[partition]
        chunk = _chunk(partition, start, records, nbytes)
        fits = not self.model[partition] or self._queued(partition) + nbytes <= self.share
        assert self.handoff.offer(chunk) is fits
        if fits:
            self.model[partition].append(chunk)
            self.arrival.append(chunk)
            self.next_offset[partition] += records
            self.offered += records
            self.over_large = max(self.over_large, nbytes)
        else:
            self.refused.add(partition)

    @precondition(lambda self: self.state == "open")
    @rule(partition=st.sampled_from(PARTITIONS))
    def ask_for_room(self, partition: Partition) -> None:
        has_room = self._queued(partition) < self.share
        assert self.handoff.has_room(partition) is has_room
        if not has_room:
            self.refused.add(partition)

    @precondition(lambda self: self.state in ("open", "ended"))
    @rule(wanted=st.lists(st.none() | st.sampled_from(PARTITIONS), min_size=1, max_size=4))
    def receive(self, wanted: list[Partition | None]) -> None:
        for partition in wanted:
            self._receive(partition)

    def _receive(self, wanted: Partition | None) -> None:
        pick = None if wanted is None else (lambda heads: wanted if wanted in heads else None)
        expected = self.arrival[0] if wanted is None and self.arrival else None
        if wanted is not None and self.model[wanted]:
            expected = self.model[wanted][0]
        rooms = self.rooms
        if expected is None:
            with pytest.raises(HandoffEnded if self.state == "ended" else HandoffEmpty):
                self.handoff.receive(0, pick)
            return
        assert self.handoff.receive(0, pick) is expected
        assert self.rooms == rooms + (expected.partition in self.refused)
        self.refused.discard(expected.partition)
        self.model[expected.partition].popleft()
        self.arrival.remove(expected)
        self.received += len(expected)

    @rule()
    def wake(self) -> None:
        self.handoff.wake()
        self.woken = True

    @precondition(lambda self: self.state == "open" and self.woken)
    @rule()
    def a_receive_that_would_wait_for_ever_is_woken_once(self) -> None:
        with pytest.raises(HandoffEmpty):
            self.handoff.receive(None, lambda _heads: None)
        self.woken = False

    @precondition(lambda self: self.state == "open")
    @rule(shares=st.integers(1, 4))
    def share_anew(self, shares: int) -> None:
        self.handoff.set_partitions(shares)
        self.share = CAPACITY // shares
        self.refused.clear()

    @precondition(lambda self: self.state == "open")
    @rule(how=st.sampled_from(["ended", "broken"]), sure=st.integers(0, 3))
    def sender_ends(self, how: str, sure: int) -> None:
        if sure:
            return
        if how == "ended":
            self.handoff.end()
        else:
            self.handoff.fail(ValueError("broken"))
            self._drop()
        self.state = how

    @rule(sure=st.integers(0, 3))
    def close(self, sure: int) -> None:
        if sure:  # most should go on for a while
            return
        self.handoff.close()
        self._drop()
        self.state = "closed"

    def _drop(self) -> None:
        self.discarded += sum(map(len, self.arrival))
        self.arrival.clear()
        self.model.clear()

    @invariant()
    def records_are_conserved(self) -> None:
        if not hasattr(self, "handoff"):
            return
        statistics = self.handoff.statistics()
        tallies = (statistics.offered, statistics.received, statistics.discarded, statistics.queued)
        queued = sum(map(len, self.arrival))
        assert tuple(tally.records for tally in tallies) == (self.offered, self.received, self.discarded, queued)
        for quantity in ("chunks", "records", "nbytes"):
            offered, *rest = (getattr(tally, quantity) for tally in tallies)
            assert offered == sum(rest)

    @invariant()
    def bytes_are_bounded(self) -> None:
        if not hasattr(self, "handoff"):
            return
        statistics = self.handoff.statistics()
        assert statistics.queued.nbytes == sum(chunk.nbytes for chunk in self.arrival)
        assert statistics.peak_bytes <= len(PARTITIONS) * max(CAPACITY, self.over_large)

    @precondition(lambda self: self.state in ("broken", "closed"))
    @rule()
    def receive_after_the_end(self) -> None:
        with pytest.raises(HandoffBroken if self.state == "broken" else HandoffClosed):
            self.handoff.receive(None)


def _chunk(partition: Partition, start: int, records: int, nbytes: int) -> Chunk:
    offsets = np.arange(start, start + records, dtype=np.int64)
    return Chunk(
        partition=partition,
        incarnation=0,
        start=start,
        end=start + records,
        offsets=offsets,
        timestamps=offsets,
        keys=[None] * records,
        values=[None] * records,
        headers=[()] * records,
        nbytes=nbytes,
        fetched_at=0.0,
    )


TestHandoffLaws = HandoffMachine.TestCase
TestHandoffLaws.settings = tried(50)
