"""What a process has settled, whatever is gone back to."""

from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import BlockFacts, Span
from millrace.training.ledger.ledger import Ledger

AT = Partition("clicks", 0)


def block(number: int, start: int, incarnation: int) -> BlockFacts:
    """Nine offsets: five rows, a list of one of them cut, two malformed, one gap, one lost."""
    span = Span(
        partition=AT,
        index=0,
        start=start,
        end=start + 9,
        learnt=5,
        set_aside={Reason.MALFORMED: 2},
        gaps=1,
        lost=1,
        truncated={"words": 1},
    )
    return BlockFacts(
        number=number,
        incarnation=incarnation,
        spans=(span,),
        batches=1,
        rows=5,
        seed=0,
        fetched_at=0.0,
        oldest_ms=1,
        newest_ms=2,
    )


def test_it_counts_what_the_ledger_settles_and_does_not_go_back_with_it() -> None:
    ledger = Ledger(clock=lambda: 0.0)
    ledger.join(AT, 0)
    beginning = ledger.snapshot()
    ledger.settle(block(0, 0, ledger.begin_incarnation()), {AT: {Reason.UPDATE_NOT_FINITE: 1}})
    ledger.restore(beginning)
    ledger.settle(block(0, 0, ledger.begin_incarnation()))
    tally, statistics = ledger.tally, ledger.statistics()
    assert (tally.learnt, tally.set_aside) == (9, {Reason.MALFORMED: 4, Reason.UPDATE_NOT_FINITE: 1})
    assert (tally.skipped, tally.gaps, tally.lost) == ({}, 2, 2)
    assert (tally.records, tally.truncated) == (14, {"words": 2})
    assert statistics.tally == tally
    assert statistics.partitions[AT].learnt == 5


def test_what_is_dropped_or_refused_is_not_counted() -> None:
    ledger = Ledger(clock=lambda: 0.0)
    ledger.join(AT, 0)
    late = ledger.begin_incarnation()
    ledger.begin_incarnation()
    assert not ledger.settle(block(0, 0, late))
    assert ledger.tally.records == 0
