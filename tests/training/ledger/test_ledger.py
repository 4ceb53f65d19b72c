"""The ledger: every offset is accounted for once, a block is settled whole or not at all."""

from typing import Any

import pytest

from millrace.consumers.errors import DataLossError
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import BlockFacts, Span
from millrace.training.checkpoints.parts import PartState
from millrace.training.errors import CorruptError
from millrace.training.ledger.ledger import Ledger, Skip

P, Q = Partition("clicks", 0), Partition("clicks", 1)


def span(partition: Partition, start: int, end: int, **counts: Any) -> Span:
    rest = end - start - sum(counts.get(name, 0) for name in ("gaps", "lost"))
    rest -= sum(counts.get("set_aside", {}).values()) + sum(counts.get("skipped", {}).values())
    return Span(partition=partition, index=partition.number, start=start, end=end, **{"learnt": rest, **counts})


def block(*spans: Span, incarnation: int = 1) -> BlockFacts:
    return BlockFacts(
        number=0,
        incarnation=incarnation,
        spans=spans,
        batches=1,
        rows=1,
        seed=0,
        fetched_at=0.0,
        oldest_ms=0,
        newest_ms=0,
    )


def skip(start: int, end: int, order: str = "skip-1", partition: Partition = P) -> Skip:
    return Skip(order=order, partition=partition, start=start, end=end, reason="poisoned")


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger(clock=lambda: 7.0)
    ledger.join(P, 100)
    ledger.join(Q, 0)
    assert ledger.begin_incarnation() == 1
    return ledger


def test_a_settled_block_moves_positions_and_counters(ledger: Ledger) -> None:
    counts = {"set_aside": {Reason.MALFORMED: 2}, "gaps": 3, "lost": 1}
    assert ledger.settle(block(span(P, 100, 120, **counts), span(Q, 0, 5)))
    assert ledger.settle(block(span(P, 120, 130, set_aside={Reason.MALFORMED: 1, Reason.EMPTY: 1})))
    assert ledger.positions() == {P: 130, Q: 5}
    assert ledger.learnt() == {P: 22, Q: 5}
    facts = ledger.statistics()
    assert facts.partitions[P].set_aside == {Reason.MALFORMED: 3, Reason.EMPTY: 1}
    assert (facts.partitions[P].gaps, facts.partitions[P].lost, facts.partitions[P].start) == (3, 1, 100)
    assert (facts.settled_blocks, facts.balanced, facts.as_of) == (2, True, 7.0)


def test_rows_that_the_call_refused_are_set_aside_and_not_learnt(ledger: Ledger) -> None:
    ledger.settle(
        block(span(P, 100, 110, set_aside={Reason.EMPTY: 1})), {P: {Reason.UPDATE_NOT_FINITE: 2, Reason.EMPTY: 1}}
    )
    assert ledger.learnt()[P] == 6
    assert ledger.statistics().partitions[P].set_aside == {Reason.EMPTY: 2, Reason.UPDATE_NOT_FINITE: 2}
    assert ledger.history_balanced()


@pytest.mark.parametrize(
    ("spans", "refused", "problem"),
    [
        ([span(P, 101, 110)], {}, "does not begin at the partition's position"),
        ([span(P, 99, 110)], {}, "does not begin at the partition's position"),
        ([span(P, 100, 110, learnt=9)], {}, "does not add up"),
        ([span(P, 100, 110, learnt=11)], {}, "does not add up"),
        ([span(P, 100, 110, gaps=-1)], {}, "counts less than nothing"),
        ([span(P, 100, 99, learnt=-1)], {}, "ends before it begins"),
        ([span(Partition("other", 0), 0, 1)], {}, "has not joined"),
        ([span(P, 100, 110, skipped={"rewind-9": 1})], {}, "skips more than was ordered"),
        ([span(P, 100, 110)], {P: {Reason.EMPTY: 11}}, "refuses more rows than it has"),
        ([span(P, 100, 110)], {Partition("other", 0): {Reason.EMPTY: 1}}, "refuses rows of one that it lacks"),
        ([span(P, 100, 110), span(P, 100, 110)], {}, "names a partition twice"),
    ],
)
def test_a_block_that_does_not_continue_the_ledger_changes_nothing(
    ledger: Ledger, spans: list[Span], refused: Any, problem: str
) -> None:
    before = ledger.statistics()
    with pytest.raises(DataLossError, match=problem):
        ledger.settle(block(span(Q, 0, 5), *spans), refused)
    assert ledger.statistics() == before


def test_a_block_of_an_older_incarnation_is_dropped_and_counted(ledger: Ledger) -> None:
    ledger.begin_incarnation()
    assert not ledger.settle(block(span(P, 100, 110), incarnation=1))
    assert ledger.positions()[P] == 100
    assert ledger.statistics().dropped_blocks == 1
    with pytest.raises(DataLossError, match="of incarnation 3, after 2"):
        ledger.settle(block(span(P, 100, 110), incarnation=3))


def test_a_partition_joins_once(ledger: Ledger) -> None:
    assert ledger.join_if_new(Partition("clicks", 2), 5)
    assert not ledger.join_if_new(P, 0)
    with pytest.raises(DataLossError, match="in the ledger already"):
        ledger.join(P, 0)
    assert ledger.positions() == {P: 100, Q: 0, Partition("clicks", 2): 5}


def test_a_skipped_range_is_counted_under_its_order_and_cannot_be_learnt(ledger: Ledger) -> None:
    assert ledger.skip(skip(105, 108)) == (skip(105, 108),)
    with pytest.raises(DataLossError, match="holds records that an order has cut out"):
        ledger.settle(block(span(P, 100, 110)))
    with pytest.raises(DataLossError, match="skips more than was ordered"):
        ledger.settle(block(span(P, 100, 110, skipped={"skip-1": 4})))
    ledger.settle(block(span(P, 100, 110, skipped={"skip-1": 3})))
    ledger.settle(block(span(P, 110, 120)))
    assert ledger.statistics().partitions[P].skipped == {"skip-1": 3}
    assert ledger.history_balanced()


def test_what_shaping_leaves_out_needs_no_order_and_stands_for_none(ledger: Ledger) -> None:
    ledger.skip(skip(105, 108))
    with pytest.raises(DataLossError, match="holds records that an order has cut out"):
        ledger.settle(block(span(P, 100, 110, skipped={"windows": 3})))
    ledger.settle(block(span(P, 100, 110, skipped={"windows": 4, "skip-1": 3})))
    assert ledger.statistics().partitions[P].skipped == {"windows": 4, "skip-1": 3}
    assert ledger.history_balanced()


@pytest.mark.parametrize("wrong", [skip(99, 110), skip(100, 100), skip(0, 5, partition=Partition("other", 0))])
def test_only_what_is_ahead_can_be_skipped(ledger: Ledger, wrong: Skip) -> None:
    with pytest.raises(DataLossError, match="cannot be skipped"):
        ledger.skip(wrong)
    assert ledger.skips == ()


def test_an_offset_is_skipped_by_one_order_only(ledger: Ledger) -> None:
    ledger.skip(skip(110, 120))
    ledger.skip(skip(130, 140))
    ledger.skip(skip(110, 140, partition=Q))
    pieces = ledger.skip(skip(105, 150, "skip-2"))
    assert [(piece.start, piece.end) for piece in pieces] == [(105, 110), (120, 130), (140, 150)]
    assert ledger.skip(skip(111, 119, "skip-3")) == ()
    assert ledger.skip(skip(115, 120, "skip-3")) == ()


def test_a_rewind_takes_positions_and_counters_back_and_never_the_incarnation(ledger: Ledger) -> None:
    ledger.settle(block(span(P, 100, 110)))
    then, before = ledger.snapshot(), ledger.statistics()
    ledger.begin_incarnation()
    ledger.settle(block(span(P, 110, 150, set_aside={Reason.EMPTY: 4}), incarnation=2))
    ledger.restore(then)
    assert ledger.statistics().partitions == before.partitions
    assert ledger.begin_incarnation() == 3
    ledger.skip(skip(115, 125))
    again = Ledger()
    again.restore(ledger.snapshot())
    assert again.skips == (skip(115, 125),)
    assert (again.positions(), again.incarnation) == ({P: 110, Q: 0}, 3)
    again.raise_incarnation(9)
    again.raise_incarnation(4)
    assert again.incarnation == 9


@pytest.mark.parametrize(
    "harm",
    [
        lambda facts: facts.pop("skips"),
        lambda facts: facts["partitions"]["clicks:0"].update(learnt=1),
        lambda facts: facts["partitions"]["clicks:0"].update(set_aside={"mood": 0}),
        lambda facts: facts["partitions"].update({"clicks": {}}),
    ],
)
def test_a_ledger_that_cannot_be_is_not_restored(ledger: Ledger, harm: Any) -> None:
    facts = ledger.snapshot().facts
    harm(facts)
    with pytest.raises(CorruptError, match="restore another checkpoint"):
        ledger.restore(PartState(facts=facts))
    assert ledger.positions() == {P: 100, Q: 0}
