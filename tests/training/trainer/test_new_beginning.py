"""A topic that was created again: a new history begins, and the ledger keeps the former one as it ended."""

from typing import Any

import pytest

from millrace.consumers.fingerprints import Fingerprint
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import BlockFacts, Span
from millrace.training.checkpoints.parts import PartState
from millrace.training.errors import CorruptError
from millrace.training.ledger.ledger import Ledger, Skip

P, Q = Partition("clicks", 0), Partition("clicks", 1)
MARK = Fingerprint(119, 1_700_000_000_000, 0xC0FFEE)


def block(partition: Partition, start: int, end: int, **counts: Any) -> BlockFacts:
    learnt = end - start - counts.get("gaps", 0) - counts.get("lost", 0) - sum(counts.get("set_aside", {}).values())
    span = Span(partition=partition, index=partition.number, start=start, end=end, learnt=learnt, **counts)
    return BlockFacts(
        number=0,
        incarnation=1,
        spans=(span,),
        batches=1,
        rows=learnt,
        seed=0,
        fetched_at=0.0,
        oldest_ms=0,
        newest_ms=0,
    )


def skip(start: int, end: int, order: str) -> Skip:
    return Skip(order=order, partition=P, start=start, end=end, reason="poisoned")


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger()
    ledger.join(P, 100)
    ledger.join(Q, 0)
    ledger.begin_incarnation()
    return ledger


def restored(ledger: Ledger) -> Ledger:
    copy = Ledger()
    copy.restore(ledger.snapshot())
    return copy


def test_a_restored_fingerprint_stays_until_the_next_chunk_ends(ledger: Ledger) -> None:
    assert ledger.fingerprints() == {}, "nothing is settled"
    ledger.settle(block(P, 100, 110))
    assert ledger.fingerprints() == {P: None}, "some records are settled, but no chunk has ended"
    ledger.settle(block(P, 110, 120, fingerprint=MARK))
    ledger.settle(block(P, 120, 130))
    assert restored(ledger).fingerprints() == {P: MARK}


def test_a_ledger_of_a_version_without_fingerprints_loads_without_any(ledger: Ledger) -> None:
    ledger.settle(block(P, 100, 120, fingerprint=MARK))
    older = {**ledger.snapshot().facts}
    older["partitions"] = {
        name: {key: value for key, value in facts.items() if key not in {"fingerprint", "former"}}
        for name, facts in older["partitions"].items()
    }
    loaded = Ledger()
    loaded.restore(PartState(facts=older))
    assert loaded.fingerprints() == {P: None}
    assert loaded.positions() == {P: 120, Q: 0}


@pytest.mark.parametrize("damaged", [[1, 2], "a text", [1, 2, "x"], 7])
def test_a_fingerprint_that_cannot_be_read_refuses_the_ledger(ledger: Ledger, damaged: object) -> None:
    state = ledger.snapshot()
    state.facts["partitions"][str(P)]["fingerprint"] = damaged
    with pytest.raises(CorruptError, match="ledger cannot be read"):
        Ledger().restore(state)


def test_a_history_that_ended_keeps_its_counts_and_both_are_balanced(ledger: Ledger) -> None:
    ledger.settle(block(P, 100, 120, set_aside={Reason.EMPTY: 2}, gaps=3, lost=1, fingerprint=MARK))
    ledger.restart_partition(P, 7)
    assert (ledger.positions(), ledger.fingerprints()) == ({P: 7, Q: 0}, {})
    ledger.settle(block(P, 7, 12))
    for each in (ledger, restored(ledger)):
        former, now = each.statistics().partitions[P].histories
        assert (former.start, former.position, former.learnt, former.set_aside) == (100, 120, 14, {Reason.EMPTY: 2})
        assert (former.gaps, former.lost) == (3, 1)
        assert (now.start, now.position, now.learnt) == (7, 12, 5)
        assert each.learnt() == {P: 19, Q: 0}, "the weights have learnt from both"
        assert each.history_balanced()


def test_a_former_history_that_does_not_add_up_refuses_the_ledger(ledger: Ledger) -> None:
    ledger.settle(block(P, 100, 120))
    ledger.restart_partition(P, 0)
    state = ledger.snapshot()
    state.facts["partitions"][str(P)]["former"][0]["learnt"] = 19
    with pytest.raises(CorruptError, match="does not add up for clicks:0"):
        Ledger().restore(state)


def test_a_skip_of_the_former_topic_does_not_apply_to_the_new_one(ledger: Ledger) -> None:
    ledger.skip(skip(105, 115, "rewind-1"))
    ledger.restart_partition(P, 100)
    assert restored(ledger).skips == ()
    ledger.settle(block(P, 100, 110))
    (piece,) = ledger.skip(skip(110, 113, "rewind-2"))
    assert (piece.start, piece.end) == (110, 113), "the skip of the former topic covers nothing of this one"
    assert [held.order for held in restored(ledger).skips] == ["rewind-2"]
