"""The plain join that judges others, rule by rule on logs of a few lines; and the traffic that it is tried on."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import pytest

from tests.faults.harness.joined_model import Labels, number_of
from tests.faults.harness.later_labels import (
    Click,
    Drawn,
    Impression,
    Read,
    Traffic,
    clicks_of,
    draw,
    impressions_of,
    key_of,
    labels_in,
    records_in,
)
from tests.faults.harness.plain_join import (
    ABSENT,
    DROPPED,
    DUPLICATE,
    LABELLED,
    LATE,
    REFUSED,
    SKIPPED,
    TOO_OLD,
    UNUSED,
    USED,
    WAITING,
    Expected,
    Got,
    Jump,
    Label,
    Record,
    Rules,
    plain_join,
)

pytestmark = pytest.mark.row(43)
WITHIN, EARLY = 100, 10
NOW = 10**6
END = 10_000
"""The time of a label for nobody that ends each log, by which all is due."""
RULES = Rules(within_ms=WITHIN, early_ms=EARLY, absent={"y": 0.0})
HERE = (0, 0)
Said = tuple[str | None, int] | tuple[str | None, int, float]


def labels_of(*said: Said, end: int | None = END) -> list[Label]:
    """Return a log of labels, each of a key, a time and a value."""
    found = [*said, *([("nobody", end)] if end is not None else [])]
    return [Label(offset, one[0], one[1], {"y": one[2] if len(one) == 3 else 1.0}) for offset, one in enumerate(found)]


def records_of(*said: tuple[str, int]) -> list[Record]:
    """Return a log of records, each of a key and a time, appended at that time."""
    return [Record(offset, key, time, time) for offset, (key, time) in enumerate(said)]


def join(
    records: Sequence[Record],
    *labels: Sequence[Label],
    rules: Rules = RULES,
    jumps: Sequence[Jump] = (),
) -> Expected:
    """Join one partition of records."""
    return plain_join(rules, {0: records}, dict(enumerate(labels)), jumps, now=NOW)


def got(records: Sequence[Record], *labels: Sequence[Label], rules: Rules = RULES, jumps: Sequence[Jump] = ()) -> Got:
    """Return what the first record gets."""
    return join(records, *labels, rules=rules, jumps=jumps).records[HERE]


@pytest.mark.parametrize(("after", "fits"), [(-EARLY - 1, False), (-EARLY, True), (WITHIN, True), (WITHIN + 1, False)])
def test_a_label_fits_from_early_before_to_within_after_its_record(after: int, fits: bool) -> None:
    found = join(records_of(("a", 1000)), labels_of(("a", 1000 + after)))
    assert found.records[HERE] == (Got(LABELLED, {"y": 1.0}) if fits else Got(ABSENT, {"y": 0.0}))
    assert found.labels[HERE] == (USED if fits else UNUSED)


def test_a_label_of_another_key_does_not_fit() -> None:
    assert got(records_of(("a", 1000)), labels_of(("b", 1000))).outcome == ABSENT


@pytest.mark.parametrize(("before", "on_time"), [(1000 + WITHIN + EARLY - 1, True), (1000 + WITHIN + EARLY, False)])
def test_a_label_is_late_from_when_its_clock_has_come_to_what_is_due(before: int, on_time: bool) -> None:
    found = join(records_of(("a", 1000)), labels_of(("b", before), ("a", 1050)))
    assert found.records[HERE].outcome == (LABELLED if on_time else ABSENT)
    assert found.labels[0, 1] == (USED if on_time else LATE)


def test_the_clock_of_a_partition_is_moved_by_its_own_labels_alone() -> None:
    assert got(records_of(("a", 1000)), labels_of(("b", 5000)), labels_of(("a", 1050))).outcome == LABELLED


def test_a_clock_never_falls() -> None:
    found = join(records_of(("a", 1000)), labels_of(("b", 5000), ("b", 10), ("a", 1050)))
    assert found.labels[0, 2] == LATE


@pytest.mark.parametrize(
    ("end", "at", "on_time"),
    [(1, 1000 + WITHIN, False), (1, 1000 + WITHIN - 1, True), (2, 1000 + WITHIN, True), (0, 1000 + WITHIN, False)],
)
def test_a_jump_moves_the_clock_before_the_labels_from_its_offset_on(end: int, at: int, on_time: bool) -> None:
    labels = labels_of(("b", 10), ("a", 1050))
    assert got(records_of(("a", 1000)), labels, jumps=[Jump(0, end, at)]).outcome == (LABELLED if on_time else ABSENT)


def test_the_greatest_jump_counts_and_those_of_other_partitions_do_not() -> None:
    labels = labels_of(("b", 10), ("a", 1050))
    late, early = Jump(0, 0, 1000 + WITHIN), Jump(0, 1, 20)
    assert got(records_of(("a", 1000)), labels, jumps=[late, early]).outcome == ABSENT
    assert got(records_of(("a", 1000)), labels, labels_of(), jumps=[Jump(1, 0, 5000)]).outcome == LABELLED


def test_a_jump_that_is_behind_its_clock_changes_nothing() -> None:
    assert (
        join(records_of(("a", 1000)), labels_of(("b", 5000), ("a", 1050)), jumps=[Jump(0, 1, 20)]).labels[0, 1] == LATE
    )


def test_a_record_waits_until_every_clock_has_come_to_when_it_is_due() -> None:
    due = 1000 + WITHIN
    records, read = records_of(("a", 1000)), labels_of()
    assert got(records, read, labels_of(end=due + EARLY)).outcome == ABSENT
    assert got(records, read, labels_of(end=due + EARLY - 1)).outcome == WAITING
    assert got(records, read, labels_of(end=None)).outcome == WAITING
    assert got(records, read, labels_of(end=None), jumps=[Jump(1, 0, due)]).outcome == ABSENT
    assert got(records, read, labels_of(end=None), jumps=[Jump(1, 0, due - 1)]).outcome == WAITING


def test_the_time_of_a_record_is_not_far_after_it_was_appended() -> None:
    # Appended at 1000, with a time of 1500, which counts as 1010.
    records = [Record(0, "a", 1500, 1000)]
    assert got(records, labels_of(("a", 1010 + WITHIN))).outcome == LABELLED
    assert got(records, labels_of(("a", 1010 + WITHIN + 1))).outcome == ABSENT
    assert got([Record(0, "a", 1000, 1500)], labels_of(("a", 1000 + WITHIN + 1))).outcome == ABSENT


def test_a_record_is_too_old_by_more_than_early_behind_the_latest_before_it() -> None:
    records = records_of(("a", 1000), ("b", 1000 - EARLY), ("c", 999 - EARLY), ("d", 990))
    found = join(records, labels_of(("c", 1000)))
    assert [found.records[0, at].outcome for at in range(4)] == [ABSENT, ABSENT, TOO_OLD, ABSENT]
    assert found.learnt(0) == [0, 1, 3]
    assert found.labels[HERE] == UNUSED, "a record that is too old takes no label"


def test_a_record_is_not_too_old_because_of_another_partition() -> None:
    found = plain_join(RULES, {0: records_of(("a", 5000)), 1: records_of(("b", 10))}, {0: labels_of()}, (), now=NOW)
    assert found.outcomes(1) == {ABSENT: 1}


@pytest.mark.parametrize(
    ("take", "value", "used"),
    [
        ("first", 2.0, [1]),
        ("last", 4.0, [2]),
        ("max", 8.0, [0]),
        ("sum", 14.0, [0, 1, 2]),
        ("count", 3.0, [0, 1, 2]),
    ],
)
def test_of_several_labels_it_takes_one_or_all(take: str, value: float, used: Sequence[int]) -> None:
    labels = labels_of(("a", 1020, 8.0), ("a", 1010, 2.0), ("a", 1030, 4.0))
    rules = Rules(within_ms=WITHIN, early_ms=EARLY, absent={"y": 0.0}, take=take)
    found = join(records_of(("a", 1000)), labels, rules=rules)
    assert found.records[HERE] == Got(LABELLED, {"y": value})
    assert [at for at in range(3) if found.labels[0, at] == USED] == used
    assert [at for at in range(3) if found.labels[0, at] == DUPLICATE] == sorted({0, 1, 2} - {*used})


def test_labels_of_one_time_come_by_partition_and_then_by_offset() -> None:
    two = [labels_of(("a", 1010, 1.0), ("a", 1010, 2.0)), labels_of(("a", 1010, 3.0), ("a", 1010, 4.0))]
    last = Rules(within_ms=WITHIN, early_ms=EARLY, absent={"y": 0.0}, take="last")
    assert got(records_of(("a", 1000)), *two).label == {"y": 1.0}
    assert got(records_of(("a", 1000)), *two, rules=last).label == {"y": 4.0}


def test_the_greatest_value_is_taken_of_each_field_on_its_own() -> None:
    rules = Rules(within_ms=WITHIN, early_ms=EARLY, absent={"y": 0.0, "z": 0.0}, take="max")
    log = [
        Label(0, "a", 1000, {"y": 1.0, "z": 9.0}),
        Label(1, "a", 1001, {"y": 5.0, "z": 2.0}),
        Label(2, "a", 1002, {"y": 4.0, "z": 8.0}),
        Label(3, "nobody", END, {"y": 0.0, "z": 0.0}),
    ]
    found = join(records_of(("a", 1000)), log, rules=rules)
    assert found.records[HERE].label == {"y": 5.0, "z": 9.0}
    assert [found.labels[0, at] for at in range(3)] == [USED, USED, DUPLICATE]


@pytest.mark.parametrize(
    ("absent", "expected"),
    [
        ({"y": 0.0, "z": -1.0}, Got(ABSENT, {"y": 0.0, "z": -1.0})),
        ({"y": 0.0, "z": None}, Got(DROPPED)),
        ({"y": None, "z": None}, Got(DROPPED)),
    ],
)
def test_without_a_label_each_field_has_its_own_value_or_the_record_is_dropped(
    absent: Mapping[str, float | None], expected: Got
) -> None:
    rules = Rules(within_ms=WITHIN, early_ms=EARLY, absent=absent)
    found = join(records_of(("a", 1000)), labels_of(), rules=rules)
    assert found.records[HERE] == expected
    assert found.learnt(0) == ([] if expected.label is None else [0])


def test_one_label_is_for_every_record_of_its_key() -> None:
    found = join(records_of(("a", 1000), ("a", 1005)), labels_of(("a", 1006)))
    assert found.outcomes(0) == {LABELLED: 2}
    assert found.labels[HERE] == USED


def test_a_label_may_be_late_for_one_record_and_used_by_a_later_one() -> None:
    records = records_of(("a", 1000), ("a", 1020))
    found = join(records, labels_of(("b", 1000 + WITHIN + EARLY), ("a", 1030)))
    assert [found.records[0, at].outcome for at in range(2)] == [ABSENT, LABELLED]
    assert found.labels[0, 1] == USED


def test_a_label_that_is_late_for_one_record_and_second_for_another_counts_as_late() -> None:
    records = records_of(("a", 1000), ("a", 1020))
    found = join(records, labels_of(("b", 1000 + WITHIN + EARLY), ("a", 1030), ("a", 1040)))
    assert [found.labels[0, at] for at in (1, 2)] == [USED, LATE]


def test_a_label_that_no_record_could_use_any_more_is_late_whoever_it_is_for() -> None:
    first_useless = 1000 + WITHIN + 2 * EARLY
    found = join([], labels_of(("b", first_useless), ("nobody", 1000)))
    assert found.labels[0, 1] == LATE
    assert join([], labels_of(("b", first_useless - 1), ("nobody", 1000))).labels[0, 1] == UNUSED


def test_a_label_that_is_cut_out_of_history_is_for_nobody_and_still_moves_the_clock() -> None:
    due = 1000 + WITHIN + EARLY
    labels, records = (
        labels_of(("a", 1010, 2.0), ("a", 1020, 3.0), ("b", due), ("a", 1030, 4.0)),
        records_of(("a", 1000)),
    )
    found = plain_join(RULES, {0: records}, {0: labels}, (), now=NOW, cut={(0, 0), (0, 2)})
    assert found.records[HERE] == Got(LABELLED, {"y": 3.0})
    assert [found.labels[0, at] for at in range(4)] == [SKIPPED, USED, SKIPPED, LATE]


def test_what_cannot_be_read_or_comes_from_the_future_is_refused_and_moves_no_clock() -> None:
    labels = labels_of((None, 0), ("a", NOW + EARLY + 1), ("a", 1050), ("b", NOW + EARLY))
    found = join(records_of(("a", 1000)), labels)
    assert [found.labels[0, at] for at in range(4)] == [REFUSED, REFUSED, USED, UNUSED]
    assert found.records[HERE].outcome == LABELLED


def test_labels_that_are_not_read_yet_are_in_no_account() -> None:
    found = join(records_of(("a", 1000)), labels_of(("a", 1000), ("a", 1001)), labels_of(("b", 1000)))
    assert found.fates({0: 2, 1: 1}) == {USED: 1, DUPLICATE: 1, UNUSED: 1}
    assert found.fates({0: 1, 1: 0}) == {USED: 1}


def test_a_record_that_waits_settles_no_label() -> None:
    found = join(records_of(("a", 1000)), labels_of(("a", 1001), end=None))
    assert found.labels[HERE] == UNUSED


@pytest.mark.parametrize(
    ("match", "labelled"),
    [
        ("all", [True, True, True, True, True, False]),
        ("last_before", [False, False, True, False, False, False]),
        ("first_after", [False, False, True, False, False, False]),
        ("last_before, but none there", [False, True, False, False, False, False]),
    ],
)
def test_a_label_belongs_to_the_record_of_its_key_that_is_nearest(match: str, labelled: list[bool]) -> None:
    rules = Rules(within_ms=WITHIN, early_ms=EARLY, absent={"y": 0.0}, match=match.partition(",")[0])
    there = 1007 if "none" in match else 1005
    records = records_of(("a", 1000), ("a", 1004), ("a", there), ("a", 1006), ("a", 1007), ("b", 1005))
    ends = [Jump(0, len(records), END)]
    found = plain_join(rules, {0: records}, {0: labels_of(("a", 1005))}, (), now=NOW, of_rivals=ends)
    assert [found.records[0, at].outcome == LABELLED for at in range(len(records))] == labelled


def test_a_record_that_was_read_too_late_takes_no_label_from_another_one() -> None:
    rules = Rules(within_ms=WITHIN, early_ms=EARLY, absent={"y": 0.0}, match="last_before")
    records = {0: records_of(("a", 1000)), 1: records_of(("b", 5000), ("a", 1002))}
    ends = [Jump(0, 1, END), Jump(1, 2, END)]
    found = plain_join(rules, records, {0: labels_of(("a", 1005))}, (), now=NOW, of_rivals=ends)
    assert found.records[HERE].outcome == LABELLED
    # In time, it does.
    records[1].reverse()
    records[1] = [one._replace(offset=at) for at, one in enumerate(records[1])]
    found = plain_join(rules, records, {0: labels_of(("a", 1005))}, (), now=NOW, of_rivals=ends)
    assert found.records[HERE].outcome == ABSENT


def test_records_wait_until_their_rivals_are_read() -> None:
    rules = Rules(within_ms=WITHIN, early_ms=EARLY, absent={"y": 0.0}, match="last_before")
    found = plain_join(rules, {0: records_of(("a", 1000))}, {0: labels_of(("a", 1005))}, (), now=NOW)
    assert found.records[HERE].outcome == WAITING


# The traffic.

TRAFFIC = Traffic(partitions=2, each=4000, began=10**12, clicked=0.2, step_ms=20, within_ms=8_000, early_ms=1_000)


def as_read(drawn: Drawn) -> tuple[dict[int, list[Read]], dict[int, list[Read]]]:
    """Return both topics as Kafka would give them."""
    impressions = {number: [*impressions_of(TRAFFIC, number, log)] for number, log in enumerate(drawn.impressions)}
    clicks = {number: [*clicks_of(log)] for number, log in enumerate(drawn.clicks)}
    first, second = (
        {number: [Read(offset, *one) for offset, one in enumerate(log)] for number, log in logs.items()}
        for logs in (impressions, clicks)
    )
    return first, second


def judged(traffic: Traffic, drawn: Drawn) -> Expected:
    """Join both topics by their clicks alone; the last one comes at the end of the last partition."""
    impressions, clicks = as_read(drawn)
    ends = [Jump(number, len(log), 2 * traffic.began) for number, log in clicks.items()]
    rules = Rules(within_ms=traffic.within_ms, early_ms=traffic.early_ms, absent={"clicked": 0.0})
    records = {number: records_in(log) for number, log in impressions.items()}
    return plain_join(rules, records, {n: labels_in(log) for n, log in clicks.items()}, ends, now=2 * traffic.began)


def test_a_seed_draws_the_same_topics_again() -> None:
    assert draw(TRAFFIC, 3) == draw(TRAFFIC, 3)
    assert draw(TRAFFIC, 3) != draw(TRAFFIC, 4)


def test_what_is_drawn_is_written_and_read_without_a_loss() -> None:
    drawn = draw(TRAFFIC, 3)
    impressions, clicks = as_read(drawn)
    for number, log in enumerate(drawn.impressions):
        wanted = [
            Record(at, key_of(TRAFFIC, number, at), one.event, one.appended)
            for at, one in enumerate(log)
            if one.readable
        ]
        assert records_in(impressions[number]) == wanted
        readable = [one for one in impressions[number] if log[one.offset].readable]
        assert [json.loads(one.value)["id"] for one in readable] == [one.offset for one in readable]
    for number, mine in enumerate(drawn.clicks):
        found = [(one.key, one.event, one.values.get("clicked")) for one in labels_in(clicks[number]) if one.key]
        assert found == [(one.key, one.event, one.value) for one in mine if one.key]


def test_both_topics_are_out_of_order_by_no_more_than_early() -> None:
    traffic = Traffic(each=4000, began=10**12, held_up=0.0, odd=0.0, bad=0.0)
    drawn = draw(traffic, 5)
    logs: list[Sequence[Impression | Click]] = [*drawn.impressions, *drawn.clicks]
    for log in logs:
        newest = np.maximum.accumulate([one.event for one in log])
        behind = newest - [one.event for one in log]
        assert 0 < behind.max() <= traffic.early_ms
        assert all(before.appended <= after.appended for before, after in pairwise(log))


def test_an_outage_leaves_a_gap_and_then_a_burst_and_makes_no_click_late() -> None:
    calm = Traffic(each=20_000, began=10**12, held_up=0.0, odd=0.0, bad=0.0, at_limits=0.0)
    drawn = draw(calm, 6)
    down = (calm.began + calm.last) // 2
    up = down + calm.within_ms // 2
    for log in drawn.clicks:
        assert not [one for one in log if down <= one.appended < up]
        burst = [one.event for one in log if one.appended == up]
        assert len(burst) > 10
        assert burst == sorted(burst)
    found = judged(calm, drawn)
    assert LATE not in found.labels.values()
    assert {got.outcome for got in found.records.values()} == {LABELLED, ABSENT}


def test_there_is_something_of_everything() -> None:
    traffic = Traffic(each=20_000, began=10**12)
    drawn = draw(traffic, 7)
    clicked = sum(one.key is not None and not one.key.startswith("nobody") for log in drawn.clicks for one in log)
    assert 0.03 < clicked / (traffic.partitions * traffic.each) < 0.035
    found = judged(traffic, drawn)
    outcomes = Counter(got.outcome for got in found.records.values())
    fates = Counter(found.labels.values())
    assert {name for name in (LABELLED, ABSENT, TOO_OLD) if outcomes[name] > 5} == {LABELLED, ABSENT, TOO_OLD}
    assert {name for name, count in fates.items() if count > 5} == {USED, LATE, DUPLICATE, UNUSED, REFUSED}
    assert outcomes[TOO_OLD] < traffic.each / 10


def test_a_record_that_is_late_to_a_quiet_partition_is_too_old() -> None:
    records, labels = records_of(("a", 500), ("b", 600), ("c", 610)), labels_of(("b", 605), ("c", 605))
    found = plain_join(RULES, {0: records}, {0: labels}, (), now=NOW, of_records=[Jump(0, 1, 620), Jump(1, 0, 700)])
    assert [found.records[0, at].outcome for at in range(3)] == [ABSENT, TOO_OLD, LABELLED]


# The witness.


@pytest.mark.tensorflow
def test_the_weights_tell_any_label_from_any_other() -> None:
    layer, labels = Labels(each=9), np.array([0.0, 1.0, 0.5, -0.0, 1e-30, 3.0, 2.5], np.float32)
    features = {"id": np.arange(len(labels)), "partition": np.full(len(labels), 2, np.int32)}
    weights = np.array([1, 1, 1, 1, 1, 1, 0], np.float32)
    for _ in range(3):
        layer.add(features, labels, weights)
    table = np.asarray(layer.table)[2, : len(labels)].tolist()
    assert [times for times, _ in table] == [3, 3, 3, 3, 3, 3, 0]
    for label, (times, total) in zip(labels.tolist(), table, strict=True):
        assert total % 2**64 == times * number_of(label) % 2**64
    assert len({number_of(label) for label in labels.tolist()}) == len(labels)
    # Three labels that come to three times one of them, and are others.
    assert sum(map(number_of, (0.0, 0.5, 1.0))) % 2**64 != 3 * number_of(0.5) % 2**64
