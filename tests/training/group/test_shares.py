"""The shares of the members: together they are the whole, and nothing else is taken for it."""

from collections.abc import Sequence
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import BlockFacts, Span
from millrace.training.checkpoints.parts import PartState
from millrace.training.errors import NotOneStateError
from millrace.training.group.one_state import Share, deal, portion, whole_of
from millrace.training.ledger.ledger import Ledger
from millrace.training.ledger.offset_checksum import Evidence

pytestmark = pytest.mark.row(31)
PARTITIONS = [Partition("clicks", number) for number in range(5)]
COUNTS = st.lists(st.integers(0, 50), min_size=5, max_size=5)


def ledger_of(counts: Sequence[int]) -> Ledger:
    """Return a ledger that has learnt so many records of each partition."""
    ledger = Ledger()
    for partition in PARTITIONS:
        ledger.join(partition, 10)
    incarnation = ledger.begin_incarnation()
    spans = tuple(
        Span(partition=partition, index=index, start=10, end=10 + count, learnt=count)
        for index, (partition, count) in enumerate(zip(PARTITIONS, counts, strict=True))
    )
    facts = BlockFacts(
        number=0,
        incarnation=incarnation,
        spans=spans,
        batches=1,
        rows=sum(counts),
        seed=0,
        fetched_at=0.0,
        oldest_ms=5,
        newest_ms=9,
    )
    ledger.settle(facts)
    return ledger


def shares_of(counts: Sequence[int], workers: int) -> list[Share]:
    """Return the shares of a group that has learnt so many records of each partition."""
    ledger = ledger_of(counts).snapshot()
    evidence = {p: Evidence.of(range(10, 10 + n)) for p, n in zip(PARTITIONS, counts, strict=True)}
    dealt = deal(dict.fromkeys(PARTITIONS, 0), workers)
    return [
        Share(
            call=3,
            digest=77,
            ledger=portion(ledger, mine).facts,
            witness={str(p): [evidence[p].count, evidence[p].total, evidence[p].mixed] for p in mine},
        )
        for mine in dealt
    ]


@given(COUNTS, st.integers(1, 4))
def test_what_is_dealt_to_any_number_of_members_comes_together_again(counts: list[int], workers: int) -> None:
    shares = [Share.of(share.packed()) for share in shares_of(counts, workers)]
    whole = whole_of(shares, PARTITIONS)
    expected = ledger_of(counts).snapshot().facts
    assert whole.ledger.facts == {**expected, "partitions": whole.ledger.facts["partitions"]}
    assert dict(whole.ledger.facts["partitions"]) == dict(expected["partitions"])
    again = Ledger()
    again.restore(PartState(facts=whole.ledger.facts))
    assert again.positions() == {p: 10 + n for p, n in zip(PARTITIONS, counts, strict=True)}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"call": 4}, "different numbers of calls"),
        ({"digest": 78}, "different weights"),
        ({"witness": {}}, "the model has seen 0 offsets and the ledger counts 9"),
    ],
)
def test_shares_of_different_states_are_refused(change: dict[str, object], text: str) -> None:
    first, *others = shares_of([9, 9, 9, 9, 9], 2)
    with pytest.raises(NotOneStateError, match=text):
        whole_of([first, replace(others[0], **change)], PARTITIONS)  # type: ignore[arg-type]


def test_a_partition_that_is_missing_or_accounted_for_twice_is_refused() -> None:
    first, second = shares_of([9, 9, 9, 9, 9], 2)
    with pytest.raises(NotOneStateError, match="accounted for 0 times"):
        whole_of([first], PARTITIONS)
    with pytest.raises(NotOneStateError, match="accounted for 2 times"):
        whole_of([first, second, second], PARTITIONS)


def test_members_that_know_different_interventions_are_refused() -> None:
    first, second = shares_of([9, 9, 9, 9, 9], 2)
    other = replace(second, ledger={**second.ledger, "incarnation": 5})
    with pytest.raises(NotOneStateError, match="different interventions"):
        whole_of([first, other], PARTITIONS)
