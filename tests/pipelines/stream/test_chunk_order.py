"""Which partition's chunk leaves the hand-off next."""

import numpy as np
import pytest

from millrace.consumers.errors import HandoffEnded
from millrace.consumers.handoff import Handoff
from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.stream.row_order import PATIENCE_S, EventTimeOrder, MixtureOrder, RotationOrder, draining

P0, P1, P2 = (Partition("clicks", number) for number in range(3))
R0 = Partition("refunds", 0)
NOW_S = 1_000_000.0
SLACK_S = 60.0


def head(partition: Partition, age_s: float, fetched_at: float = 0.0, records: int = 1) -> Chunk:
    """Return a chunk whose first record is this old."""
    return Chunk(
        partition=partition,
        incarnation=1,
        start=0,
        end=1,
        offsets=np.arange(records),
        timestamps=np.full(records, int((NOW_S - age_s) * 1000)),
        keys=[None] * records,
        values=[b""] * records,
        headers=[()] * records,
        nbytes=1,
        fetched_at=fetched_at,
    )


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def order(behind: set[Partition], clock: Clock | None = None) -> EventTimeOrder:
    return EventTimeOrder(lambda: behind, SLACK_S, clock=clock or Clock(), wall=lambda: NOW_S)


def test_behind_by_much_the_oldest_records_come_first() -> None:
    heads = {P0: head(P0, 500, fetched_at=1.0), P1: head(P1, 900, fetched_at=2.0), P2: head(P2, 10, fetched_at=0.0)}
    assert order({P0, P1})(heads) == P1


def test_close_to_the_present_chunks_come_as_they_arrived() -> None:
    heads = {P0: head(P0, 5, fetched_at=2.0), P1: head(P1, 50, fetched_at=3.0), P2: head(P2, 1, fetched_at=1.0)}
    assert order(set(heads))(heads) == P2


def test_a_partition_that_lags_and_has_no_chunk_is_waited_for_but_not_forever() -> None:
    clock = Clock()
    pick = order({P0, P1}, clock)
    heads = {P0: head(P0, 500)}
    assert pick(heads) is None
    clock.now += PATIENCE_S * 0.9
    assert pick(heads) is None
    clock.now += PATIENCE_S * 0.2
    assert pick(heads) == P0
    assert pick(heads) == P0, "patience is spent until it has been here again"


def test_a_partition_that_came_is_waited_for_again_when_it_is_missing_again() -> None:
    clock = Clock()
    pick = order({P0, P1}, clock)
    pick({P0: head(P0, 500)})
    clock.now += PATIENCE_S * 2
    assert pick({P0: head(P0, 500), P1: head(P1, 900)}) == P1
    assert pick({P0: head(P0, 500)}) is None


@pytest.mark.parametrize(("further_s", "waits"), [(SLACK_S - 1, False), (SLACK_S + 1, True)])
def test_a_partition_that_is_missing_is_waited_for_only_if_the_others_are_much_further(
    further_s: float, *, waits: bool
) -> None:
    pick = order({P0, P1})
    assert pick({P0: head(P0, 899), P1: head(P1, 900)}) == P1
    assert pick({P0: head(P0, 900 - further_s)}) == (None if waits else P0)


def test_patience_that_is_spent_is_not_had_again_because_of_records_between() -> None:
    clock = Clock()
    pick = order({P0, P1}, clock)
    assert pick({P0: head(P0, 899), P1: head(P1, 900)}) == P1
    assert pick({P0: head(P0, 500)}) is None
    clock.now += PATIENCE_S * 2
    # One without records, and one that is no newer than what was last here of the partition that is missing.
    assert [pick({P0: chunk}) for chunk in (head(P0, 500), head(P0, 0, records=0), head(P0, 900), head(P0, 499))] == [
        P0
    ] * 4


def test_one_record_of_the_future_does_not_say_how_far_a_partition_is() -> None:
    chunk = head(P1, 900, records=9)
    chunk.timestamps[-1] = int(NOW_S * 2000)
    pick = order({P0, P1})
    assert pick({P0: head(P0, 500), P1: chunk}) == P1
    assert pick({P0: head(P0, 500)}) is None


def test_a_partition_without_lag_is_not_waited_for() -> None:
    assert order({P0})({P0: head(P0, 500)}) == P0


def test_a_chunk_without_records_holds_nobody_up() -> None:
    assert order(set())({P0: head(P0, 500), P1: head(P1, 0, records=0)}) == P1


def test_nothing_here_is_nothing_to_take() -> None:
    assert order(set())({}) is None


def test_the_rotation_takes_what_it_waits_for_first() -> None:
    pick = RotationOrder(lambda: P1, lambda _: 0)
    assert pick({P0: head(P0, 0), P1: head(P1, 0)}) == P1


def test_the_rotation_takes_a_little_ahead_and_no_more() -> None:
    ahead = {P0: 2, P1: 0, P2: 1}
    pick = RotationOrder(lambda: P1, ahead.__getitem__)
    assert pick({P0: head(P0, 0), P2: head(P2, 0)}) == P2
    assert pick({P0: head(P0, 0)}) is None
    assert pick({}) is None


@pytest.mark.parametrize("waiting", [lambda _: None, order({P2})])
def test_a_draining_policy_leaves_nothing_in_a_hand_off_that_has_ended(waiting: EventTimeOrder) -> None:
    handoff = Handoff(capacity_bytes=10)
    chunks = [head(P0, 500), head(P1, 900)]
    for chunk in chunks:
        handoff.offer(chunk)
    handoff.end()
    with pytest.raises(HandoffEnded):
        handoff.receive(0.0, waiting)
    pick = draining(waiting)
    assert [handoff.receive(0.0, pick) for _ in chunks] == chunks[::-1]
    with pytest.raises(HandoffEnded):
        handoff.receive(0.0, pick)


def test_topics_are_taken_by_what_they_weigh_and_within_one_the_oldest_records_first() -> None:
    ahead = {P0: 0, P1: 0, R0: 0}
    pick = MixtureOrder({"clicks": 3, "refunds": 1}, lambda partition: ahead[partition], list)
    heads = {P0: head(P0, 5), P1: head(P1, 900), R0: head(R0, 10)}
    assert pick(heads) == P1
    ahead[P1] = 290
    assert pick(heads) == R0
    ahead[R0] = 100
    assert pick(heads) == P1
    ahead[P0] = 11
    assert pick(heads) == R0
    assert pick({P0: heads[P0]}) == P0
    assert pick({}) is None


def test_a_lagging_topic_of_which_nothing_is_here_is_waited_for_but_not_forever() -> None:
    clock, ahead = Clock(), {P0: 0, R0: 0}
    pick = MixtureOrder({"clicks": 3, "refunds": 1}, lambda partition: ahead[partition], lambda: {R0}, clock=clock)
    heads = {P0: head(P0, 5)}
    assert pick(heads) is None
    assert pick({**heads, R0: head(R0, 1)}) == P0
    ahead[R0] = 1
    assert pick(heads) == P0, "some of it is on its way to a block"
    ahead[R0] = 0
    clock.now = 10 * PATIENCE_S
    assert pick(heads) is None, "each time anew"
    clock.now = 11 * PATIENCE_S
    assert pick(heads) == P0
