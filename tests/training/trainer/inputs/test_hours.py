"""Each hour of the last week is kept of each field, in few bytes, to the same bits through kills."""

from typing import Any

import numpy as np
import pytest

from millrace.training.trainer.inputs.distances import Columns, Digest
from millrace.training.trainer.inputs.hours import HOUR_MS, WEEK, HoursOfInputs, portrait_in
from millrace.training.trainer.inputs.portraits import apart

NAMES = ("price", "empty", "shop")


def digest(random: np.random.Generator, scale: float) -> Digest:
    numbers = np.stack([random.lognormal(0, 1, 512) * scale, np.full(512, np.nan)], axis=1)
    texts = np.array([b"a" if one else b"b" for one in random.random(512) < 0.25], object)[:, None]
    lengths = np.ones((512, 2))
    return Digest.of(Columns.of(np.concatenate([numbers, lengths], axis=1), texts))


def hours_of(random: np.random.Generator, hours: int, windows: int = 40, first: int = 0) -> HoursOfInputs:
    found = HoursOfInputs()
    for hour in range(first, first + hours):
        for at in range(windows):
            found.add(digest(random, 1.0 + hour), hour * HOUR_MS + at * 4000, NAMES, 2)
    return found


def test_an_hour_is_kept_as_it_was_and_texts_by_their_shares() -> None:
    hours = hours_of(np.random.default_rng(1), 3)
    assert [*hours.kept] == [0, 1], "the third is not over"
    for hour in (0, 1):
        price, empty, shop = (portrait_in(hours.kept[hour], name) for name in NAMES)
        assert price is not None
        assert price.quantile(0.5) == pytest.approx(1.0 + hour, rel=0.05)
        assert price.quantile(0.95) == pytest.approx(5.18 * (1.0 + hour), rel=0.12)
        assert empty is not None
        assert (empty.missing, empty.bounds) == (1.0, ())
        assert shop is not None
        assert shop.top == pytest.approx({b"b": 0.75, b"a": 0.25}, abs=0.02)
        assert portrait_in(hours.kept[hour], "unknown") is None
    one, other = (portrait_in(hours.kept[hour], "price") for hour in (0, 1))
    assert one is not None
    assert other is not None
    assert apart(one, one) == 0
    assert apart(one, other) == pytest.approx(0.27, abs=0.04), "the distance of two normal ones that are ln 2 apart"


def test_a_window_that_is_late_takes_nothing_from_the_hour_that_is_over() -> None:
    random = np.random.default_rng(2)
    hours = hours_of(random, 1)
    hours.add(digest(random, 2.0), HOUR_MS + 1000, NAMES, 2)
    over = hours.kept[0]
    hours.add(digest(random, 100.0), HOUR_MS - 1000, NAMES, 2)
    for at in range(2, 40):
        hours.add(digest(random, 2.0), HOUR_MS + at * 4000, NAMES, 2)
    hours.add(digest(random, 3.0), 2 * HOUR_MS, NAMES, 2)
    assert (hours.kept[0], [*hours.kept]) == (over, [0, 1])
    second = portrait_in(hours.kept[1], "price")
    assert second is not None
    assert second.quantile(0.5) == pytest.approx(2.0, rel=0.05)


def test_partitions_that_are_hours_apart_leave_the_open_hour_whole() -> None:
    random = np.random.default_rng(3)
    hours = HoursOfInputs()
    for at in range(40):
        hours.add(digest(random, 2.0), 14 * HOUR_MS + at * 4000, NAMES, 2)
        hours.add(digest(random, 100.0), 12 * HOUR_MS + at * 4000, NAMES, 2)
    hours.add(digest(random, 3.0), 15 * HOUR_MS, NAMES, 2)
    assert [*hours.kept] == [14]
    kept = portrait_in(hours.kept[14], "price")
    assert kept is not None
    assert kept.quantile(0.5) == pytest.approx(2.0, rel=0.05)


def test_hours_go_on_after_one_that_a_wrong_clock_has_claimed() -> None:
    random = np.random.default_rng(4)
    hours = HoursOfInputs()
    for hour in (14, 600_000, 15, 16):
        hours.add(digest(random, 2.0), hour * HOUR_MS, NAMES, 2)
    assert [*hours.kept] == [14, 15, 600_000]


def test_a_week_is_kept_in_bounded_bytes_and_the_oldest_hours_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    hours = hours_of(np.random.default_rng(1), WEEK + 10, windows=1)
    assert [*hours.kept] == [*range(8, WEEK + 9)], "the hour a week before the one that is open is there"
    each = len(hours.kept[8])
    assert each < 1000
    monkeypatch.setattr("millrace.training.trainer.inputs.hours.MOST_BYTES", 5 * each)
    hours.add(digest(np.random.default_rng(1), 1.0), (WEEK + 10) * HOUR_MS, NAMES, 2)
    assert 3 <= len(hours.kept) <= 6
    assert max(hours.kept) == WEEK + 9


@pytest.mark.row(42)
def test_hours_have_the_same_bits_through_kills_and_outlive_a_change_of_the_fields() -> None:
    through, whole = np.random.default_rng(3), np.random.default_rng(3)
    live, killed = HoursOfInputs(), HoursOfInputs()
    for at in range(200):
        for random, found in ((whole, live), (through, killed)):
            found.add(digest(random, 1.0), at * HOUR_MS // 50, NAMES, 2)
        if at % 7 == 0:
            arrays: dict[str, Any] = killed.arrays()
            killed = HoursOfInputs()
            killed.load(arrays, 1)
    one, other = live.arrays(), killed.arrays()
    assert one.keys() == other.keys()
    assert all(np.asarray(array).tobytes() == np.asarray(other[name]).tobytes() for name, array in one.items())
    again = HoursOfInputs()
    again.load(one, None)
    assert again.kept == live.kept
    again.load({}, 1)
    assert again.kept == {}
