"""A trial measures whole calls, and touches nothing that others see."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from millrace.app.cli.bench import _lines
from millrace.app.settings.sections.scale import ScaleSettings
from millrace.app.tools.bench import group_trial
from millrace.app.tools.bench.group_trial import _complete
from millrace.app.tools.bench.measure import Interval, Limits, Trial
from millrace.app.tools.bench.trial import set_apart
from millrace.app.tools.local_group import Place
from millrace.consumers.errors import MillraceError
from tests.app.conftest import FIVE_LINES, LoadText

TRIAL = Trial(
    name="clicks",
    records=824_000,
    seconds=20.0,
    records_per_s=41_200.0,
    arriving_per_s=3_100.0,
    headroom=13.3,
    bound_by="compute",
    waiting={"records": 0.02, "input": 0.05, "compute": 0.93, "saving": 0.0},
    advice="Compute is the limit.",
)


def test_the_settling_time_is_not_measured() -> None:
    span = Interval(10.0)
    assert not span.see(1.0, 0, 0)
    assert not span.see(5.0, 1, 1000)
    assert not span.see(7.5, 3, 3000)
    assert not span.see(17.0, 9, 9000)
    assert span.see(18.0, 10, 10_000)
    assert (span.first.at, span.first.learnt, span.last.at, span.last.learnt) == (7.5, 3000, 18.0, 10_000)


def test_a_topic_that_is_soon_learnt_is_measured_from_its_first_call() -> None:
    span = Interval(10.0)
    span.see(5.0, 1, 1000)
    span.see(6.0, 2, 2500)
    assert (span.first.learnt, span.last.learnt) == (1000, 2500)


def test_calls_that_are_slow_to_return_are_not_waited_for_without_end() -> None:
    span = Interval(10.0)
    span.see(5.0, 1, 1000)
    assert not span.see(40.0, 1, 1000)
    assert span.see(50.0, 1, 1000)


def test_calls_that_are_slow_to_return_are_not_taken_for_a_topic_without_records() -> None:
    limits, span = Limits(waiting={}, advice=""), Interval(20.0)
    for now, calls in ((60.0, 1), (120.0, 2), (143.0, 2)):
        complete = span.see(now, calls, calls * 1_000_000)
    assert complete
    with pytest.raises(
        MillraceError, match=r"calls take too long to measure in 20 s: 2 returned, with 2000000 records"
    ):
        span.trial("clicks", ("clicks",), limits)
    span = Interval(20.0)
    for now, calls in ((60.0, 1), (125.0, 2), (140.0, 3), (150.0, 3)):
        span.see(now, calls, calls * 1_000_000)
    assert span.trial("clicks", ("clicks",), limits).calls_too_slow
    ended = Interval(20.0)
    ended.see(5.0, 1, 1000)
    with pytest.raises(MillraceError, match=r"clicks held 1000 records, too few to measure by; write more"):
        ended.trial("clicks", ("clicks",), limits)


def test_neither_the_groups_offsets_nor_checkpoints_nor_dead_letters_are_touched(
    load_text: LoadText, tmp_path: Path
) -> None:
    text = FIVE_LINES.replace("label: {clicked", "dead_letters: {topic: clicks.dead}, label: {clicked")
    settings = load_text(text).settings
    apart = set_apart(settings, tmp_path / "apart", ScaleSettings())
    assert apart.kafka.group == "millrace-bench-clicks" != settings.kafka.group
    assert apart.checkpoints.path == tmp_path / "apart"
    assert (settings.records.dead_letters.topic, apart.records.dead_letters.topic) == ("clicks.dead", None)
    assert (apart.training, apart.model, apart.memory) == (settings.training, settings.model, settings.memory)


def test_a_trial_of_a_group_keeps_who_is_in_it(load_text: LoadText, tmp_path: Path) -> None:
    settings = load_text(FIVE_LINES + "scale: {workers: 2}\n").settings
    assert set_apart(settings, tmp_path / "apart", settings.scale).scale.workers == 2
    assert set_apart(settings, tmp_path / "apart", ScaleSettings()).scale.workers == 1


@dataclass
class Told:
    """A worker of a trial that has told so much."""

    calls: int
    learnt: int

    def look(self) -> None:
        """It tells no more."""


def test_the_records_of_all_workers_are_counted_by_the_calls_of_the_chief() -> None:
    interval = Interval(10.0)
    _complete([Told(3, 300), Told(2, 50)], interval)  # type: ignore[list-item]
    assert (interval.last.calls, interval.last.learnt) == (3, 350)


class Ended:
    """A worker's process that has printed some lines."""

    exit_code = 0

    def __init__(self, _command: object, log: Path, **_options: object) -> None:
        log.write_text('{\'hidden\': 64}\n{"calls": 3, "learnt": 300}\n{half')


def test_a_model_that_prints_dicts_is_measured_by_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_trial, "SupervisedProcess", Ended)
    worker = group_trial._TrialWorker(Place(name="worker 1", page="", variables={}), tmp_path / "c.yaml", tmp_path)
    worker.look()
    assert (worker.calls, worker.learnt) == (3, 300)


def test_bench_reports_the_rate_the_limit_and_the_headroom() -> None:
    assert list(_lines(TRIAL)) == [
        "clicks: 824,000 records in 20.0 s",
        "  learnt    41,200 records/s",
        "  arriving  3,100 records/s: 13.3 times as many could come",
        "  bound by  compute: 93% computing, 5% waiting for decoding and preparing, 2% waiting for records",
        "  Compute is the limit.",
    ]


@pytest.mark.parametrize(
    ("arriving", "headroom", "said"),
    [
        (None, None, "not known"),
        (0.0, None, "nothing came meanwhile"),
        (50_000.0, 0.8, "50,000 records/s: more than is learnt, so the model falls behind"),
        (2.5, 16480.0, "2.5 records/s: 16,480 times as many could come"),
    ],
)
def test_the_arrival_rate_is_compared_with_the_learning_rate(
    arriving: float | None, headroom: float | None, said: str
) -> None:
    lines = list(_lines(replace(TRIAL, arriving_per_s=arriving, headroom=headroom)))
    assert said in lines[2]
