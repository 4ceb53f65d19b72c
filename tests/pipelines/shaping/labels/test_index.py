"""The index of labels against a plain search, in any sequence of insertions, expiries and restarts."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.pipelines.shaping.labels.index import Arrived, LabelIndex
from millrace.pipelines.shaping.labels.rules import Match, Take

pytestmark = pytest.mark.row(43)
EARLY, WITHIN = 5, 20
TAKES: dict[Take, Callable[[list[int]], float]] = {
    Take.FIRST: lambda values: values[0],
    Take.LAST: lambda values: values[-1],
    Take.MAX: max,
    Take.SUM: sum,
    Take.COUNT: len,
}


class Label(NamedTuple):
    key: int
    time: int
    clock: int
    value: int
    partition: int


class Record(NamedTuple):
    key: int
    time: int


times = st.integers(0, 60)
labels = st.lists(
    st.builds(Label, st.integers(0, 4), times, st.integers(-40, 100), st.integers(0, 3), st.integers(0, 1)), max_size=12
)
records = st.lists(st.builds(Record, st.integers(0, 4), times), max_size=8)
steps = st.lists(st.tuples(labels, records, st.integers(0, 60), st.booleans()), max_size=4)


def index_of(take: Take) -> LabelIndex:
    return LabelIndex({"y": (np.dtype(np.float32), ())}, take=take, early_ms=EARLY, within_ms=WITHIN)


def hashes(keys: Sequence[int]) -> np.ndarray:
    """Two keys share a hash, and their checks differ."""
    return np.array([key // 2 for key in keys], np.int64)


def checks(keys: Sequence[int]) -> np.ndarray:
    return np.array(keys, np.uint32)


class Plain:
    """The same by a plain search."""

    def __init__(self, take: Take) -> None:
        self.take = take
        self.labels: dict[tuple[int, int], Label] = {}
        self.marks: dict[tuple[int, int], set[str]] = {}
        self.ends = [0, 0]

    def insert(self, some: Sequence[Label]) -> None:
        for one in some:
            self.labels[one.partition, self.ends[one.partition]] = one
            self.ends[one.partition] += 1

    def of(self, record: Record) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        fits = [
            at
            for at, one in self.labels.items()
            if one.key == record.key and record.time - EARLY <= one.time <= record.time + WITHIN
        ]
        fits.sort(key=lambda at: (self.labels[at].time, *at))
        due = record.time + WITHIN
        return [at for at in fits if self.labels[at].clock < due], [at for at in fits if self.labels[at].clock >= due]

    def settle(self, record: Record) -> None:
        on_time, late = self.of(record)
        for at in late:
            self.marks.setdefault(at, set()).add("late")
        values = [self.labels[at].value for at in on_time]
        for place, at in enumerate(on_time):
            won = {
                Take.FIRST: place == 0,
                Take.LAST: place == len(on_time) - 1,
                Take.MAX: values[place] == max(values),
            }.get(self.take, True)
            self.marks.setdefault(at, set()).add("used" if won else "duplicate")

    def expire(self, floor: int) -> Counter[str]:
        counts: Counter[str] = Counter()
        for at in [at for at, one in self.labels.items() if one.time < floor]:
            marks = self.marks.pop(at, set())
            counts[next((name for name in ("used", "late", "duplicate") if name in marks), "unused")] += 1
            del self.labels[at]
        return counts


@pytest.mark.parametrize("take", list(Take))
@settings(max_examples=40)
@given(steps=steps)
def test_it_finds_what_a_plain_search_finds(
    take: Take, steps: list[tuple[list[Label], list[Record], int, bool]]
) -> None:
    index, plain = index_of(take), Plain(take)
    for some, asked, floor, restarts in steps:
        first = list(plain.ends)
        plain.insert(some)
        for partition in (0, 1):
            insert(index, plain, [(partition, offset) for offset in range(first[partition], plain.ends[partition])])
        keys, at = [one.key for one in asked], np.array([one.time for one in asked], np.int64)
        joined = index.match(hashes(keys), checks(keys).take, at)
        expected = [plain.of(one) for one in asked]
        assert joined.labelled.tolist() == [bool(on_time) for on_time, _ in expected]
        assert joined.late.tolist() == [bool(late) for _, late in expected]
        assert joined.values["y"].tolist() == [
            TAKES[take]([plain.labels[one].value for one in on_time]) for on_time, _ in expected if on_time
        ]
        index.settle(hashes(keys), checks(keys), at)
        for one in asked:
            plain.settle(one)
        assert index.expire(floor) == plain.expire(floor)
        assert index.waiting() == len(plain.labels)
        bases = {
            partition: min(offset for number, offset in plain.labels if number == partition)
            for partition in {number for number, _ in plain.labels}
        }
        assert {number: offset for number, (offset, _) in index.bases().items()} == bases
        if restarts:
            index = again(index, plain, take)


def insert(
    index: LabelIndex, plain: Plain, which: list[tuple[int, int]], values: dict[str, np.ndarray] | None = None
) -> None:
    some = [plain.labels[at] for at in which]
    index.insert(
        Arrived(
            partition=which[0][0] if which else 0,
            hashes=hashes([one.key for one in some]),
            checks=checks([one.key for one in some]),
            times=np.array([one.time for one in some], np.int64),
            clocks=np.array([one.clock for one in some], np.int64),
            offsets=np.array([offset for _, offset in which], np.int64),
            values={"y": np.array([one.value for one in some], np.float32)} if values is None else values,
        )
    )


def again(index: LabelIndex, plain: Plain, take: Take) -> LabelIndex:
    """Make another index of the labels that wait, with the flags of the first."""
    other = index_of(take)
    for partition, (offsets, flags) in index.flags().items():
        other.restore_flags(partition, offsets, flags)
    for partition in (0, 1):
        insert(other, plain, sorted(at for at in plain.labels if at[0] == partition))
    return other


def test_five_million_labels_are_held_in_a_quarter_of_a_gibibyte() -> None:
    index, each = index_of(Take.FIRST), 1_000_000
    random = np.random.default_rng(1)
    for part in range(5):
        first = part * each
        index.insert(
            Arrived(
                partition=0,
                hashes=random.integers(-(2**63), 2**63 - 1, each),
                checks=np.zeros(each, np.uint32),
                times=np.arange(first, first + each),
                clocks=np.arange(first, first + each),
                offsets=np.arange(first, first + each),
                values={"y": np.ones(each, np.float32)},
            )
        )
        index.match(np.zeros(1, np.int64), lambda rows: np.zeros(len(rows), np.uint32), np.zeros(1, np.int64))
    assert index.waiting() == 5_000_000
    assert index.nbytes() < 256 * 2**20


@pytest.mark.parametrize("match", [Match.LAST_BEFORE, Match.FIRST_AFTER])
@given(some=labels, shown=labels)
def test_a_label_belongs_to_the_record_of_its_key_that_is_nearest(
    match: Match, some: list[Label], shown: list[Label]
) -> None:
    index = LabelIndex(
        {"y": (np.dtype(np.float32), ())}, take=Take.COUNT, early_ms=EARLY, within_ms=WITHIN, match=match
    )
    plain, rivals = Plain(Take.COUNT), Plain(Take.COUNT)
    plain.insert(some)
    rivals.insert(shown)
    assert index.rivals is not None
    for partition in (0, 1):
        insert(index, plain, [(partition, offset) for offset in range(plain.ends[partition])])
        insert(index.rivals, rivals, [(partition, offset) for offset in range(rivals.ends[partition])], {})
    assert index.nbytes() >= index.rivals.nbytes() + 45 * len(some)
    asked = [Record(one.key, one.time) for one in shown]
    keys, at = [one.key for one in asked], np.array([one.time for one in asked], np.int64)
    joined = index.match(hashes(keys), checks(keys).take, at)

    def belongs(label: Label, record: Record) -> bool:
        known = [rivals.labels[one].time for one in rivals.of(record)[0]]
        if match is Match.LAST_BEFORE:
            return record.time <= label.time and not any(record.time < time <= label.time for time in known)
        return label.time <= record.time and not any(label.time <= time < record.time for time in known)

    wanted = [[one for one in plain.of(record)[0] if belongs(plain.labels[one], record)] for record in asked]
    assert joined.labelled.tolist() == [bool(found) for found in wanted]
    assert joined.values["y"].tolist() == [len(found) for found in wanted if found]
    index.settle(hashes(keys), checks(keys), at)
    late = [[one for one in plain.of(record)[1] if belongs(plain.labels[one], record)] for record in asked]
    used, missed = ({at for found in each for at in found} for each in (wanted, late))
    assert index.expire(1000) == +Counter(
        used=len(used), late=len(missed - used), unused=len(plain.labels.keys() - used - missed)
    )
