"""The six counters, and the law that they add up to the range they count."""

from itertools import product

import pytest

from millrace.consumers.reasons import Reason
from millrace.pipelines.stream.offset_counts import OffsetCounts

COUNTS = OffsetCounts(
    learnt=5,
    set_aside={Reason.MALFORMED: 2},
    skipped={"rewind-1": 3},
    gaps=4,
    lost=1,
    truncated={"words": 2},
)


def test_every_offset_has_one_outcome_and_only_some_have_a_record() -> None:
    assert (COUNTS.offsets, COUNTS.records) == (15, 10)
    assert (OffsetCounts().offsets, OffsetCounts().records) == (0, 0)


def test_sums_add_by_reason_command_and_feature_and_keep_the_law() -> None:
    other = OffsetCounts(learnt=1, set_aside={Reason.MALFORMED: 1, Reason.EMPTY: 1}, skipped={"skip-2": 7})
    assert (
        COUNTS + other
        == other + COUNTS
        == OffsetCounts(
            learnt=6,
            set_aside={Reason.MALFORMED: 3, Reason.EMPTY: 1},
            skipped={"rewind-1": 3, "skip-2": 7},
            gaps=4,
            lost=1,
            truncated={"words": 2},
        )
    )
    for one, another in product((COUNTS, other, OffsetCounts()), repeat=2):
        assert (one + another).offsets == one.offsets + another.offsets
        assert (one + another).records == one.records + another.records
    assert COUNTS.set_aside == {Reason.MALFORMED: 2}, "a sum leaves its parts alone"


def test_refused_rows_move_from_learnt_to_set_aside_and_the_sum_stays() -> None:
    refused = COUNTS.refusing({Reason.UPDATE_NOT_FINITE: 4})
    assert (refused.learnt, refused.set_aside) == (1, {Reason.MALFORMED: 2, Reason.UPDATE_NOT_FINITE: 4})
    assert (refused.offsets, refused.records) == (COUNTS.offsets, COUNTS.records)


@pytest.mark.parametrize("counts", [COUNTS, OffsetCounts()])
def test_json_gives_back_what_was_counted(counts: OffsetCounts) -> None:
    assert OffsetCounts.of_json(counts.to_json()) == counts
    assert ("truncated" in counts.to_json()) is bool(counts.truncated), "absent where no list was cut"
