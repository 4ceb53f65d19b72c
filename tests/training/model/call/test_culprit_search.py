"""The search for culprits: it finds them all and only them, whatever their number, and it is bounded."""

import numpy as np
import pytest

from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import Rows
from millrace.training.ledger.offset_checksum import Evidence
from millrace.training.model.call import culprit_search
from millrace.training.model.call.culprit_search import Culprits
from tests.training.conftest import BATCH, MakeLearner, block, largest_difference, state_of, with_feature

pytestmark = pytest.mark.tensorflow
PARTITION = Partition("clicks", 0)


def _poisoned(rows: Rows, culprits: set[int]) -> Rows:
    for culprit in culprits:
        rows = with_feature(rows, culprit, np.nan)
    return rows


def test_whatever_the_culprits_are_they_are_found_and_all_others_learnt_once(learner_of: MakeLearner) -> None:
    learner = learner_of()
    learner.witness.know(PARTITION, 0)
    learnt: list[int] = []
    random = np.random.default_rng(3)
    for turn in range(12):
        present = int(random.integers(1, BATCH + 1))
        culprits = set(random.choice(present, int(random.integers(0, present + 1)), replace=False).tolist())
        first = 100 * turn
        lesson = learner.learn(_poisoned(block(1, rows=present, seed=turn, first=first), culprits))
        assert lesson.culprits.offsets == tuple((0, first + culprit) for culprit in sorted(culprits))
        learnt += [first + row for row in range(present) if row not in culprits]
        _total, count = lesson.result.states
        assert count == present - len(culprits), "each record that was learnt is scored once"
    assert learner.witness.testimonies() == {PARTITION: Evidence.of(learnt)}
    assert all(np.isfinite(value).all() for value in state_of(learner).values())


def test_a_replay_searches_alike(learner_of: MakeLearner) -> None:
    one, other = learner_of(), learner_of()
    rows = _poisoned(block(3), {2, BATCH + 1, BATCH + 7})
    assert one.learn(rows).culprits == other.learn(rows).culprits
    assert largest_difference(state_of(one), state_of(other)) == 0


def test_a_batch_poisoned_through_and_through_costs_a_bounded_number_of_calls(
    learner_of: MakeLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(culprit_search, "MOST_CALLS", 4)
    learner = learner_of()
    learner.witness.know(PARTITION, 0)
    calls: list[Rows] = []
    search = culprit_search.CulpritSearch(lambda rows: calls.append(rows) or learner.call(rows), list)  # type: ignore[arg-type, func-returns-value]
    search.search(_poisoned(block(1), set(range(0, BATCH, 2))))
    assert len(calls) <= 5
    left = {offset for _, offset in search.culprits.offsets}
    assert set(range(0, BATCH, 2)) <= left, "no culprit is learnt"
    assert learner.witness.testimonies() == {PARTITION: Evidence.of(set(range(BATCH)) - left)}


def test_a_single_row_is_not_blamed_for_the_absent_ones_beside_it(learner_of: MakeLearner) -> None:
    learner = learner_of()
    learner.witness.know(PARTITION, 0)
    absent = {BATCH + 1 + row for row in range(BATCH - 1)}
    # Absent rows are copies of the first, which is infinite whatever it weighs.
    lesson = learner.learn(_poisoned(block(2, rows=BATCH + 1), {0, *absent}))
    assert lesson.culprits.offsets == ((0, 0),)
    assert learner.witness.testimonies() == {PARTITION: Evidence.of(range(1, BATCH + 1))}


def test_culprits_are_counted_by_partition() -> None:
    assert dict(Culprits(((0, 3), (1, 3), (1, 9))).by_partition()) == {0: 1, 1: 2}
