"""The history: bounded, and true at every resolution."""

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from millrace.app.monitoring.models import Stretch
from millrace.app.monitoring.observer import Observer
from millrace.app.monitoring.sample_history import COLUMNS, MOST_METRICS, SPANS, SampleHistory, Tier
from millrace.app.monitoring.snapshot import take
from tests.app.api_rig import P0, Rig

NAN = float("nan")


class WatchedLock:
    """A lock that notes at each release how many tiers hold anything."""

    def __init__(self, history: SampleHistory) -> None:
        self._history, self._lock = history, threading.Lock()
        self.filled = [0]

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        tiers = [tier for one in (self._history._tiers, *self._history._metrics.values()) for tier in one.values()]
        self.filled.append(sum(len(tier.tables()["buckets"]) > 0 for tier in tiers))
        self._lock.release()


def row(**values: float) -> Any:
    return np.array([values.get(name, NAN) for name in COLUMNS])


def filled(span: int, lags: Mapping[float, float]) -> Stretch:
    """Return a tier that was given these lags at these seconds."""
    tier = Tier(SPANS[span])
    for clock, lag in lags.items():
        tier.add(clock, 1_000_000 + clock, row(lag_s=lag))
    return tier.stretch(max(lags), "accuracy")


def test_a_mean_over_a_minute_is_of_every_look_and_the_extremes_stay() -> None:
    lags = {120.0 + second: 1.0 for second in range(60)} | {137.0: 61.0, 181.0: 5.0}
    shown = filled(2, lags)
    assert shown.mean.lag_s == [2.0, 5.0]
    assert shown.least is not None
    assert shown.greatest is not None
    assert (shown.least.lag_s, shown.greatest.lag_s) == ([1.0, 5.0], [61.0, 5.0])
    assert shown.at == [1_000_120.0, 1_000_181.0]


def test_what_was_not_known_is_no_zero_and_pulls_no_mean() -> None:
    tier = Tier(SPANS[1])
    tier.add(10.0, 10.0, row(lag_s=4.0))
    tier.add(11.0, 11.0, row(learnt_per_s=100.0))
    shown = tier.stretch(12.0, None)
    assert shown.mean.lag_s == [4.0]
    assert shown.mean.learnt_per_s == [100.0]
    assert shown.mean.metric == [None]


@pytest.mark.parametrize("span", range(len(SPANS)), ids=[span.name for span in SPANS])
def test_a_tier_reaches_as_far_as_it_says_and_keeps_no_more(span: int) -> None:
    tier = Tier(SPANS[span])
    step = SPANS[span].step_s
    for number in range(3 * SPANS[span].slots + 7):
        tier.add(float(number * step), float(number * step), row(lag_s=float(number)))
    newest = 3 * SPANS[span].slots + 6
    shown = tier.stretch(float(newest * step), None)
    assert len(shown.at) == SPANS[span].slots
    assert shown.at == sorted(shown.at)
    assert shown.mean.lag_s[-1] == pytest.approx(newest, rel=1e-4)
    assert len(tier.stretch(newest * step + 5.0 * step, None).at) == SPANS[span].slots - 5, (
        "what is too old is left out"
    )


def test_after_a_silence_longer_than_the_tier_nothing_old_is_shown() -> None:
    tier = Tier(SPANS[0])
    tier.add(1.0, 1.0, row(lag_s=1.0))
    assert tier.stretch(1000.0, None).at == []


def test_a_look_becomes_a_row_and_a_metric_that_is_no_number_a_hole(rig: Rig) -> None:
    rig.produce(P0, 8)
    rig.learn_all()
    rig.post()
    snapshot = take(rig.service)
    assert snapshot.posting is not None
    live = replace(snapshot.posting.live, values={"accuracy": NAN, "loss": 0.5})
    broken = replace(snapshot, posting=replace(snapshot.posting, live=live), clock=snapshot.clock + 1)
    history = SampleHistory()
    for one in (snapshot, broken):
        history.add(Observer(lambda one=one: one).look())  # type: ignore[misc]
    shown = history.stretch("10m", broken.clock)
    assert shown.metric == "accuracy"
    assert shown.mean.metric == [0.75, None]
    assert shown.mean.baseline[0] == pytest.approx(0.75)
    assert shown.mean.lag_s == [0.0, 0.0]
    assert shown.least is None, "one look has no extremes"


def test_every_metric_has_a_history_beside_what_guessing_scores(rig: Rig) -> None:
    history = SampleHistory()
    rig.produce(P0, 8)
    rig.learn_all()
    rig.post()
    snapshot = take(rig.service)
    assert snapshot.posting is not None
    for second, loss in enumerate((0.5, 0.4)):
        live = replace(snapshot.posting.live, values={"accuracy": 0.75, "loss": loss, "auc": 0.8})
        seen = replace(snapshot, posting=replace(snapshot.posting, live=live), clock=snapshot.clock + second)
        history.add(Observer(lambda one=seen: one).look())  # type: ignore[misc]
    shown = history.stretch("10m", seen.clock, "loss")
    assert shown.metrics == ["accuracy", "loss", "auc"], "the watched one first"
    assert (shown.metric, shown.mean.metric) == ("loss", [0.5, 0.4])
    assert shown.mean.baseline[0] == pytest.approx(snapshot.posting.live.baseline["loss"], rel=1e-4)
    assert shown.mean.lag_s == [0.0, 0.0]
    assert history.stretch("10m", seen.clock, "auc").mean.baseline == [None, None]
    assert history.stretch("10m", seen.clock).mean.metric == [0.75, 0.75]


def test_few_of_very_many_metrics_have_a_history_and_the_loss_is_among_them(rig: Rig) -> None:
    history = SampleHistory()
    rig.post()
    snapshot = take(rig.service)
    assert snapshot.posting is not None
    values = {**{f"f1[{index}]": 0.5 for index in range(50)}, "loss": 1.0, "accuracy": 0.9}
    live = replace(snapshot.posting.live, values=values)
    history.add(Observer(lambda: replace(snapshot, posting=replace(snapshot.posting, live=live))).look())  # type: ignore[type-var]
    assert len(history.metrics) == MOST_METRICS
    assert history.metrics[:2] == ["accuracy", "loss"]


def test_the_loop_waits_for_the_merging_of_one_tier_at_most(rig: Rig) -> None:
    rig.produce(P0, 8)
    rig.learn_all()
    rig.post()
    snapshot = take(rig.service)
    earlier, here = SampleHistory(), SampleHistory()
    earlier.add(Observer(lambda: snapshot).look())
    here._metrics = {
        name: {span.name: Tier(span, ("metric", "baseline")) for span in SPANS} for name in earlier.metrics
    }
    watched = WatchedLock(here)
    here._lock = watched  # type: ignore[assignment]
    here.merge(*earlier.copied(), snapshot.at)
    assert watched.filled[-1] == len(SPANS) * (1 + len(earlier.metrics)), "all of it is merged"
    assert max(np.diff(watched.filled)) == 1
