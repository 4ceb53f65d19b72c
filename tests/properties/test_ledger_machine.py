"""The ledger against a list: what became of each offset, one word an offset, and nothing cleverer than that."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millrace.consumers.errors import DataLossError
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import BlockFacts, Span
from millrace.training.checkpoints.parts import PartState
from millrace.training.ledger.ledger import Ledger, Skip
from tests.properties.effort import tried

PARTITIONS = [Partition("clicks", number) for number in range(3)]
LEARNT, GAP, LOST = "learnt", "gap", "lost"
BAD = [f"bad {reason.value}" for reason in (Reason.MALFORMED, Reason.EMPTY)]
REFUSED = f"bad {Reason.UPDATE_NOT_FINITE.value}"
FATES = st.lists(st.sampled_from([LEARNT, LEARNT, LEARNT, *BAD, GAP, LOST]), min_size=1, max_size=8)


@dataclass
class History:
    """All that the model knows of one partition."""

    start: int
    fates: list[str] = field(default_factory=list)

    @property
    def position(self) -> int:
        return self.start + len(self.fates)


@dataclass(frozen=True)
class Snapshot:
    state: PartState
    histories: dict[Partition, History]
    cut: dict[tuple[Partition, int], str]
    incarnation: int


def counted(fates: list[str]) -> dict[str, Any]:
    """Return the counts of a span from the outcomes of its offsets."""
    counts = Counter(fates)
    return {
        "learnt": counts[LEARNT],
        "set_aside": {reason: counts[word] for reason in Reason if counts[word := f"bad {reason.value}"]},
        "skipped": {word[5:]: count for word, count in counts.items() if word.startswith("skip ")},
        "gaps": counts[GAP],
        "lost": counts[LOST],
    }


def block(incarnation: int, *spans: Span) -> BlockFacts:
    return BlockFacts(
        number=0,
        incarnation=incarnation,
        spans=spans,
        batches=1,
        rows=0,
        seed=0,
        fetched_at=0.0,
        oldest_ms=0,
        newest_ms=0,
    )


def _moved(span: Span, by: int) -> Span:
    return replace(span, start=span.start + by, end=span.end + by)


WRONGS: dict[str, Callable[[Span], list[Span]]] = {
    "begins too late": lambda span: [_moved(span, 1)],
    "begins too early": lambda span: [_moved(span, -1)],
    "has one learnt too many": lambda span: [replace(span, learnt=span.learnt + 1)],
    "has one gap too few": lambda span: [replace(span, gaps=span.gaps - 1)],
    "comes twice": lambda span: [span, span],
    "comes in two parts": lambda span: [span, _moved(span, span.end - span.start)],
    "is of a partition that nobody joined": lambda span: [span, replace(span, partition=Partition("other", 0))],
    "skips under an order that nobody gave": lambda span: [
        replace(span, skipped={**span.skipped, "nobody": 1}, gaps=span.gaps - 1, lost=span.lost)
    ],
}


class LedgerMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.ledger = Ledger()
        self.histories: dict[Partition, History] = {}
        self.cut: dict[tuple[Partition, int], str] = {}
        self.incarnation = self.ledger.begin_incarnation()
        self.settled = self.dropped = self.orders = 0
        self.snapshots: list[Snapshot] = []

    @rule(partition=st.sampled_from(PARTITIONS), start=st.integers(0, 2**62))
    def join(self, partition: Partition, start: int) -> None:
        assert self.ledger.join_if_new(partition, start) is (partition not in self.histories)
        self.histories.setdefault(partition, History(start))

    @precondition(lambda self: self.histories)
    @rule(data=st.data(), refused=st.integers(0, 2))
    def settle(self, data: st.DataObject, refused: int) -> None:
        fates = self._drawn(data)
        aside = {p: min(refused, here.count(LEARNT)) for p, here in fates.items()}
        facts = block(self.incarnation, *(self._span(p, here) for p, here in fates.items()))
        assert self.ledger.settle(facts, {p: {Reason.UPDATE_NOT_FINITE: count} for p, count in aside.items() if count})
        for partition, here in fates.items():
            for _ in range(aside[partition]):
                here[here.index(LEARNT)] = REFUSED
            self.histories[partition].fates += here
        self.settled += 1

    @precondition(lambda self: self.histories)
    @rule(data=st.data(), wrong=st.sampled_from(sorted(WRONGS)))
    def refuse_what_does_not_continue_it(self, data: st.DataObject, wrong: str) -> None:
        spans = [self._span(partition, fates) for partition, fates in self._drawn(data).items()]
        with pytest.raises(DataLossError):
            self.ledger.settle(block(self.incarnation, *spans[1:], *WRONGS[wrong](spans[0])))

    @precondition(lambda self: self.histories)
    @rule(data=st.data(), count=st.integers(1, 9))
    def refuse_verdicts_on_what_it_does_not_hold(self, data: st.DataObject, count: int) -> None:
        fates = self._drawn(data)
        facts = block(self.incarnation, *(self._span(partition, here) for partition, here in fates.items()))
        partition = data.draw(st.sampled_from([*sorted(fates), Partition("other", 0)]))
        too_many = count + fates.get(partition, []).count(LEARNT)
        with pytest.raises(DataLossError):
            self.ledger.settle(facts, {partition: {Reason.UPDATE_NOT_FINITE: too_many}})

    @precondition(lambda self: self.cut)
    @rule(data=st.data())
    def refuse_what_an_order_has_cut_out(self, data: st.DataObject) -> None:
        ahead = [(p, at) for p, at in sorted(self.cut) if at >= self.histories[p].position]
        if ahead:
            partition, offset = data.draw(st.sampled_from(ahead))
            start = self.histories[partition].position
            span = self._span(partition, [LEARNT] * min(offset + 1 - start, 50))
            if span.end == offset + 1:
                with pytest.raises(DataLossError):
                    self.ledger.settle(block(self.incarnation, replace(span, learnt=offset + 1 - start, skipped={})))

    @precondition(lambda self: self.histories and self.incarnation > 1)
    @rule(data=st.data(), back=st.integers(1, 3))
    def drop_what_is_late(self, data: st.DataObject, back: int) -> None:
        spans = [self._span(partition, fates) for partition, fates in self._drawn(data).items()]
        late = max(0, self.incarnation - back)
        assert not self.ledger.settle(block(late, *spans))
        self.dropped += 1

    @precondition(lambda self: self.histories)
    @rule(data=st.data())
    def refuse_what_is_early(self, data: st.DataObject) -> None:
        spans = [self._span(partition, fates) for partition, fates in self._drawn(data).items()]
        with pytest.raises(DataLossError):
            self.ledger.settle(block(self.incarnation + 1, *spans))

    @precondition(lambda self: self.histories)
    @rule(data=st.data(), ahead=st.integers(-2, 12), width=st.integers(0, 9))
    def skip(self, data: st.DataObject, ahead: int, width: int) -> None:
        partition = data.draw(st.sampled_from(sorted(self.histories)))
        self.orders += 1
        start = self.histories[partition].position + ahead
        skip = Skip(order=f"rewind-{self.orders}", partition=partition, start=start, end=start + width, reason="bad")
        if ahead < 0 or width == 0:
            with pytest.raises(DataLossError):
                self.ledger.skip(skip)
            return
        self.ledger.skip(skip)
        for offset in range(start, start + width):
            self.cut.setdefault((partition, offset), skip.order)

    @rule(raised=st.none() | st.integers(0, 20))
    def begin_incarnation(self, raised: int | None) -> None:
        if raised is not None:
            self.ledger.raise_incarnation(raised)
            self.incarnation = max(self.incarnation, raised)
        self.incarnation += 1
        assert self.ledger.begin_incarnation() == self.incarnation

    @rule()
    def save(self) -> None:
        facts = json.loads(json.dumps(self.ledger.snapshot().facts))
        histories = {p: History(history.start, list(history.fates)) for p, history in self.histories.items()}
        self.snapshots.append(Snapshot(PartState(facts=facts), histories, dict(self.cut), self.incarnation))

    @precondition(lambda self: self.snapshots)
    @rule(data=st.data(), crash=st.booleans())
    def restore(self, data: st.DataObject, *, crash: bool) -> None:
        """Restore in the same process, or in the next one, which knows only what was saved."""
        then = data.draw(st.sampled_from(self.snapshots))
        if crash:
            self.ledger = Ledger()
            self.incarnation = self.settled = self.dropped = 0
        self.ledger.restore(then.state)
        self.histories = {p: History(history.start, list(history.fates)) for p, history in then.histories.items()}
        self.cut, self.incarnation = dict(then.cut), max(self.incarnation, then.incarnation)

    @invariant()
    def it_is_what_the_list_says(self) -> None:
        if not hasattr(self, "ledger"):
            return
        statistics = self.ledger.statistics()
        assert (statistics.incarnation, statistics.settled_blocks) == (self.incarnation, self.settled)
        assert statistics.dropped_blocks == self.dropped
        assert statistics.balanced
        assert statistics.partitions.keys() == self.histories.keys()
        for partition, history in self.histories.items():
            found = statistics.partitions[partition]
            assert (found.start, found.position) == (history.start, history.position)
            counts = {name: getattr(found, name) for name in ("learnt", "set_aside", "skipped", "gaps", "lost")}
            assert {name: _present(count) for name, count in counts.items()} == counted(history.fates)

    @invariant()
    def an_offset_is_cut_out_by_one_order(self) -> None:
        if not hasattr(self, "ledger"):
            return
        cut = Counter((skip.partition, at) for skip in self.ledger.skips for at in range(skip.start, skip.end))
        assert cut == Counter(self.cut.keys())
        for skip in self.ledger.skips:
            assert {self.cut[skip.partition, at] for at in range(skip.start, skip.end)} == {skip.order}

    # How it is done.

    def _drawn(self, data: st.DataObject) -> dict[Partition, list[str]]:
        """Draw the outcomes of the next offsets of some partitions."""
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.histories)), min_size=1, unique=True))
        return {partition: self._with_skips(partition, data.draw(FATES)) for partition in chosen}

    def _with_skips(self, partition: Partition, fates: list[str]) -> list[str]:
        """Return the outcomes with the records that are cut out as skipped; an offset without a record is not."""
        start = self.histories[partition].position
        orders = [self.cut.get((partition, start + at)) for at in range(len(fates))]
        return [
            fate if order is None or fate in (GAP, LOST) else f"skip {order}"
            for fate, order in zip(fates, orders, strict=True)
        ]

    def _span(self, partition: Partition, fates: list[str]) -> Span:
        start = self.histories[partition].position
        return Span(partition=partition, index=0, start=start, end=start + len(fates), **counted(fates))


def _present(count: Any) -> Any:
    return {key: value for key, value in count.items() if value} if isinstance(count, dict) else count


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = tried(30)
