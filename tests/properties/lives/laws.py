"""Both laws of conservation, as assertions: over a history, and over an incarnation."""

from collections import Counter
from collections.abc import Mapping

from millrace.consumers.records import Partition
from millrace.pipelines.stream.feed import Balance
from millrace.training.ledger.account import PartitionAccount
from tests.properties.lives.history import LEARNT, History
from tests.properties.lives.line import Line
from tests.properties.lives.log import GAP, LOST, identity

Statistics = Mapping[Partition, PartitionAccount]


def agree(history: History, seen: Counter[int], found: Statistics) -> None:
    """Assert that every good offset was learnt once, and that the ledger counted each offset by its outcome."""
    assert seen == Counter(identity(*place) for place in history.places(LEARNT))
    assert {p: (s.start, s.position) for p, s in found.items()} == {
        p: (history.starts[p], at) for p, at in history.positions().items()
    }
    for partition, statistics in found.items():
        counts = Counter(history.fates[partition])
        assert statistics.balanced
        assert (statistics.learnt, statistics.gaps, statistics.lost) == (counts[LEARNT], counts[GAP], counts[LOST])
        aside = {f"bad {reason.value}": count for reason, count in statistics.set_aside.items() if count}
        skipped = {f"skip {order}": count for order, count in statistics.skipped.items() if count}
        rest = {fate: count for fate, count in counts.items() if fate not in (LEARNT, GAP, LOST)}
        assert aside | skipped == rest


def in_one_place(line: Line, now: Statistics, began: Statistics) -> None:
    """Assert, per incarnation: fetched = learnt + set aside + skipped + held + discarded."""
    balances = line.feed.statistics().balances
    handoff = line.handoff.statistics()
    assert handoff.offered.records == line.fetched.total()
    assert handoff.offered == handoff.received + handoff.queued + handoff.discarded
    assert handoff.received.records == sum(balance.received for balance in balances.values())
    for partition, balance in balances.items():
        assert balance.balanced()
        assert balance.discarded == 0
        assert balance.handed == _records(now.get(partition)) - _records(began.get(partition))


def let_go(line: Line) -> None:
    """Assert that what was not handed over is discarded, and counted."""
    handoff = line.handoff.statistics()
    balances: list[Balance] = list(line.feed.statistics().balances.values())
    assert handoff.queued.records == 0
    assert all(balance.balanced() and balance.held == 0 for balance in balances)
    gone = handoff.discarded.records + sum(balance.handed + balance.discarded for balance in balances)
    assert gone == line.fetched.total()


def _records(statistics: PartitionAccount | None) -> int:
    if statistics is None:
        return 0
    return statistics.learnt + sum(statistics.set_aside.values()) + sum(statistics.skipped.values())
