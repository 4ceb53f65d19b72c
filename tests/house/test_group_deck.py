"""The deck of a group's campaign: it comes to every failpoint, and to every kind of strike early."""

from collections import Counter
from random import Random

import pytest

from millrace.consumers.failpoints import NAMES
from tests.faults.campaigns.group_strikes import PLACES, WHOLE, Kind, Opening, Role, Strike, deck
from tests.faults.campaigns.group_striking import Figures

SEEDS = range(20)


def _kills(strikes: list[Strike]) -> int:
    return sum(strike.kills for strike in strikes)


@pytest.mark.parametrize("seed", SEEDS)
def test_sixty_kills_come_to_every_failpoint_of_a_chief_and_of_a_worker(seed: int) -> None:
    strikes = deck(Random(seed), WHOLE)
    assert _kills(strikes) == WHOLE == 60
    points = [strike for strike in strikes if strike.kind is Kind.POINT]
    assert sorted(strike.place for strike in points) == sorted(PLACES)
    assert {strike.point for strike in points} == {
        name
        for name in NAMES
        if not name.startswith(("archive.", "export.", "announce.", "journal.", "pins.", "mirror."))
    }
    for name in NAMES:
        if name.startswith(("call.", "group.")):
            assert {strike.role for strike in points if strike.point == name} == {Role.CHIEF, Role.WORKER}
    assert [strike.opening for strike in strikes[:3]][:2] == [Opening.NONE] * 2  # before the first checkpoint


@pytest.mark.parametrize("seed", SEEDS)
def test_sixty_kills_have_stops_drains_rewinds_and_two_at_once_among_them(seed: int) -> None:
    strikes = deck(Random(seed), 60)
    struck = Counter((strike.kind, strike.role) for strike in strikes)
    assert struck[Kind.STOP, Role.CHIEF] == struck[Kind.STOP, Role.WORKER] == 1
    assert struck[Kind.STOP_BRIEFLY, Role.CHIEF] == struck[Kind.STOP_BRIEFLY, Role.WORKER] == 1
    assert struck[Kind.KILL_TWO, Role.ALL] == 2
    assert struck[Kind.REWIND, Role.CHIEF] == struck[Kind.REWIND, Role.WORKER] == 1
    assert sum(strike.opening is Opening.DRAIN for strike in strikes) > 10


@pytest.mark.parametrize("seed", SEEDS)
def test_six_kills_have_a_strike_of_each_kind_but_the_long_stop(seed: int) -> None:
    assert {strike.kind for strike in deck(Random(seed), 6)} == {*Kind} - {Kind.STOP}


def test_a_deck_has_as_many_kills_as_are_asked_for_and_its_seed_decides() -> None:
    for kills in range(1, 150):
        assert kills <= _kills(deck(Random(kills), kills)) <= kills + 1
    assert deck(Random(3), 60) == deck(Random(3), 60) != deck(Random(4), 60)


def test_figures_name_the_failpoints_at_which_nobody_died() -> None:
    figures = Figures(seed=1, points=Counter(dict.fromkeys(PLACES, 1)))
    assert (figures.missed, figures.kept) == ([], True)
    figures.points["call.before of the worker"] = 0
    figures.unreached.append("call.before of the worker (not in time)")
    assert (figures.summary()["missed"], figures.kept) == (["call.before of the worker"], False)
