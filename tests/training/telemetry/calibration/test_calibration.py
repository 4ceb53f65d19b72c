"""The calibration is that of the answers that were scored, and a part of the state."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from millrace.consumers.records import Partition
from millrace.training.checkpoints.parts import PartState
from millrace.training.commands import Rewind, Save
from millrace.training.telemetry.baseline import BaselinePlan
from millrace.training.telemetry.calibration.calibration import Calibration, confusion_of, figures_of
from millrace.training.telemetry.calibration.figures import CalibrationFigures
from millrace.training.telemetry.label_sums import Labels
from millrace.training.telemetry.tallies import (
    BINNED,
    ODDS_BINS,
    RECORDS,
    Answered,
    WindowedTallies,
    score_columns,
    tallies_of_all,
    truth_columns,
)
from millrace.training.trainer.metric_guesses import plan_of
from tests.training.answer_log import AnswerLog
from tests.training.trainer_rig import SHARE, Clock, Topic, running

pytestmark = pytest.mark.tensorflow
WINDOW_S = 600.0


def told(kind: Labels, labels: Any, answers: Any) -> CalibrationFigures:
    """Return the figures of answers."""
    answers = np.asarray(answers, np.float32)
    rows = Answered(np.asarray(labels), answers)
    found = tallies_of_all(truth_columns(rows, kind), rows.labels.size)
    return figures_of(found, found, kind)


def test_the_bins_hold_every_answer_once_and_tell_rare_events_apart() -> None:
    random = np.random.default_rng(5)
    p = np.exp(random.normal(-6.0, 1.0, size=50_000)).clip(0, 1).astype(np.float32)
    y = (random.random(len(p)) < 2 * p).astype(np.float32)
    found = told(Labels.BINARY, y[:, None], p[:, None])
    assert found.bins is not None
    assert found.error is not None
    assert [one.predicted for one in found.bins] == sorted(one.predicted for one in found.bins)
    assert len(found.bins) == 10, "though all answers are below 5 %"
    assert sum(one.records for one in found.bins) == found.answers == len(p)
    order = np.argsort(p)
    at = 0
    for one in found.bins:
        mine = order[at : at + one.records]
        at += one.records
        assert (one.predicted, one.observed) == pytest.approx((p[mine].mean(), y[mine].mean()), abs=1e-4)
    expected = sum(one.records * abs(one.predicted - one.observed) for one in found.bins) / len(p)
    assert found.error == pytest.approx(expected, abs=1e-9)
    assert found.predicted == pytest.approx({"1": p.mean()}, rel=1e-5)
    assert found.observed == pytest.approx({"1": y.mean()}, rel=1e-9)


def test_rare_classes_are_together_in_the_table_and_none_is_lost() -> None:
    random = np.random.default_rng(6)
    labels = np.minimum(random.geometric(0.1, size=20_000) - 1, 39)
    answers = random.dirichlet(np.ones(40), size=len(labels))
    found = told(Labels.CLASSES, labels, answers)
    assert found.confusion is not None
    assert [*found.confusion] == [*map(str, range(19)), "other"]
    answered = answers.argmax(axis=1)
    assert found.confusion["3"]["5"] == ((labels == 3) & (answered == 5)).sum()
    assert found.confusion["other"]["0"] == ((labels >= 19) & (answered == 0)).sum()
    assert sum(sum(row.values()) for row in found.confusion.values()) == len(labels)
    assert found.observed is not None
    assert found.predicted is not None
    assert found.observed["0"] == pytest.approx((labels == 0).mean())
    assert found.predicted["other"] == pytest.approx((answered >= 19).mean())
    assert confusion_of(np.array([3.0, 1.0, 0.0, 2.0])) == {"0": {"0": 3, "1": 1}, "1": {"0": 0, "1": 2}}
    top = answers.max(axis=1)
    assert found.bins is not None
    assert sum(one.records * one.predicted for one in found.bins) == pytest.approx(top.sum(), rel=1e-5)


def test_quantiles_of_residuals_are_within_two_percent() -> None:
    random = np.random.default_rng(7)
    labels = random.lognormal(3.0, 2.0, size=30_000)
    answers = labels * random.normal(1.1, 0.3, size=len(labels))
    found = told(Labels.NUMBERS, labels[:, None], answers[:, None])
    assert found.residuals is not None
    expected = np.quantile(answers.astype(np.float32) - labels, [0.05, 0.25, 0.5, 0.75, 0.95])
    assert [*found.residuals.values()] == pytest.approx(expected, rel=0.021)
    assert found.observed is not None
    assert [*found.observed.values()] == pytest.approx(np.quantile(labels, [0.05, 0.25, 0.5, 0.75, 0.95]), rel=0.021)
    assert told(Labels.NUMBERS, [[1.0], [2.0]], [[1.0], [2.0]]).residuals == dict.fromkeys(found.residuals, 0.0)
    # Labels in nanoseconds since 1970, and the least of 64 bits.
    times = told(Labels.NUMBERS, [[1_795_900_000_000_000_000], [-(2**63)]], [[1.7e9], [0.0]])
    assert times.observed is not None
    assert (times.observed["p05"], times.observed["p95"]) == pytest.approx((-(2.0**63), 1.7959e18), rel=0.021)


@pytest.mark.row(42)
def test_the_state_is_exact_through_a_rewind_and_a_restart(tmp_path: Path) -> None:
    topic, log = Topic(), AnswerLog()
    topic.poison[next(iter(topic.ends)), SHARE + 7] = np.nan
    with running(tmp_path, topic, watchers=lambda learner: watchers_of(learner, log)) as run:
        topic.produce(2 * SHARE)
        run.reaches(2 * SHARE)
        run.ask(Save())
        topic.produce(2 * SHARE)
        run.reaches(4 * SHARE)
        run.ask(Save())
        run.ask(Rewind(to=1))
        topic.produce(SHARE)
        run.reaches(5 * SHARE)
    with running(tmp_path, topic, watchers=lambda learner: watchers_of(learner, log)) as run:
        topic.produce(SHARE)
        run.reaches(6 * SHARE)
        run.sees(lambda: len(log.answers) == 6 * SHARE - 1)
        run.ask(Save())
        state = calibration_in(run.watchers)
        labels, answers = log.of(6 * SHARE)
        expected = tallies_of_all(truth_columns(Answered(labels, answers), Labels.BINARY), len(labels))
        assert state.arrays.keys() == {f"calibration/{name}" for name in expected}
        for name, sums in expected.items():
            np.testing.assert_allclose(state.arrays[f"calibration/{name}"], sums, rtol=1e-6, atol=1e-9)
        assert state.arrays[f"calibration/{BINNED}"].sum() == 6 * SHARE - 1


def watchers_of(learner: Any, log: AnswerLog) -> list[Any]:
    return [log, Calibration(plan_of(learner.model, learner.call.metrics), WINDOW_S, Clock())]


def calibration_in(watchers: list[Any]) -> PartState:
    [one] = [each for each in watchers if isinstance(each, Calibration)]
    return one.snapshot()


def test_the_window_forgets_and_the_sums_since_the_beginning_do_not() -> None:
    clock = Clock()
    calibration = Calibration(BaselinePlan(labels=Labels.BINARY), WINDOW_S, clock)
    assert calibration.figures() is None
    with_answers(calibration, [0.9] * 30, 1.0)
    clock.now += 1.5 * WINDOW_S
    with_answers(calibration, [0.9] * 10, 0.0)
    found = calibration.figures()
    assert found is not None
    assert (found.answers, found.observed) == (10, {"1": 0.0})
    assert found.error == pytest.approx(0.9, abs=1e-6)
    assert found.cumulative_error == pytest.approx(abs(0.9 - 0.75), abs=1e-6)
    again = Calibration(BaselinePlan(labels=Labels.BINARY), WINDOW_S, clock)
    again.restore(calibration.snapshot())
    assert again.figures() is None, "of the window nothing is known"
    with_answers(again, [0.9] * 40, 1.0)
    found = again.figures()
    assert found is not None
    assert found.answers == 40
    assert found.cumulative_error == pytest.approx(abs(0.9 - 70 / 80), abs=1e-6)
    other = Calibration(BaselinePlan(labels=Labels.NUMBERS), WINDOW_S, clock)
    other.restore(calibration.snapshot())
    assert other.snapshot().arrays == {}, "a label of another kind begins anew"


def test_an_answer_that_is_no_number_is_not_counted() -> None:
    calibration = Calibration(BaselinePlan(labels=Labels.BINARY), WINDOW_S, Clock())
    with_answers(calibration, [0.5, np.nan, 0.5], 1.0)
    found = calibration.figures()
    assert found is not None
    assert (found.answers, found.error) == (2, 0.5)


def with_answers(calibration: Calibration, answers: list[float], label: float) -> None:
    calibration.called(AnswerLog.call(np.full(len(answers), label, np.float32), np.array(answers, np.float32)))
    assert calibration.figures() is not None, "the trainer asks for them once a second"


def test_logits_count_as_the_probabilities_that_they_are() -> None:
    logits = np.random.default_rng(3).normal(0, 3, size=500).astype(np.float32)
    labels = (logits > 0).astype(np.float32)
    found: Mapping[bool, Calibration] = {}
    for as_logits in (True, False):
        plan = BaselinePlan(labels=Labels.BINARY, logits=as_logits)
        found = {**found, as_logits: Calibration(plan, WINDOW_S, Clock())}
        answers = logits if as_logits else tf.sigmoid(logits).numpy()
        found[as_logits].called(AnswerLog.call(labels, answers))
    one, other = (each.figures() for each in found.values())
    assert one is not None
    assert other is not None
    assert one.error == pytest.approx(other.error, abs=1e-6)
    assert RECORDS not in found[True].snapshot().arrays


@pytest.mark.parametrize("kind", [Labels.BINARY, Labels.CLASSES])
def test_sums_are_the_same_to_the_bit_however_answers_are_cut(kind: Labels) -> None:
    random = np.random.default_rng(3)
    if kind is Labels.BINARY:
        answers, labels = random.random((3_000, 1)).astype(np.float32), random.integers(0, 2, (3_000, 1))
    else:
        answers = random.dirichlet([1.0] * 3, 3_000).astype(np.float32)
        labels = random.integers(0, 3, 3_000)

    def summed(cuts: list[int]) -> list[dict[str, list[float]]]:
        found = WindowedTallies(WINDOW_S, Clock())
        for first, last in pairwise([0, *cuts, 3_000]):
            rows = Answered(labels[first:last], answers[first:last])
            for made in (score_columns, truth_columns):
                found.add({made.__name__: tallies_of_all(made(rows, kind), last - first)})
        return [{name: one.tolist() for name, one in each.items()} for each in found.total.values()]

    assert summed([]) == summed([1, 700, 701, 1_500]) == summed([*range(1, 3_000, 7)])


def test_an_answer_next_to_a_half_is_on_its_side_of_the_bins() -> None:
    half, one = np.float32(0.5), np.float32(1.0)
    p = np.array([[np.nextafter(half, -one)], [half], [np.nextafter(half, one)], [0.0], [1.0]], np.float32)
    [found, _] = truth_columns(Answered(np.ones((5, 1), np.float32), p), Labels.BINARY)
    assert found.cells is not None
    assert (found.cells - ODDS_BINS).tolist() == [
        ODDS_BINS // 2 - 1,
        ODDS_BINS // 2 - 1,
        ODDS_BINS // 2,
        0,
        ODDS_BINS - 1,
    ]


def test_answers_that_wait_are_those_of_their_partitions_after_a_new_one_took_its_place() -> None:
    calibration = Calibration(BaselinePlan(labels=Labels.BINARY), WINDOW_S, Clock())
    for partition in (Partition("clicks", 0), Partition("views", 0)):
        call = AnswerLog.call(np.ones(1, np.float32), np.array([0.1], np.float32))
        facts: Any = SimpleNamespace(spans=[SimpleNamespace(index=0, partition=partition)])
        calibration.called(replace(call, facts=facts))
    found = calibration.figures()
    assert found is not None
    assert {one.partition for one in found.worst or ()} == {"clicks:0", "views:0"}


@pytest.mark.parametrize("kind", [Labels.BINARY, Labels.NUMBERS])
def test_the_chief_of_a_group_shows_the_calibration_of_one_worker(kind: Labels) -> None:
    random, clock = np.random.default_rng(4), Clock()
    alone, chief, member = (Calibration(BaselinePlan(labels=kind), WINDOW_S, clock) for _ in range(3))
    for call in range(40):
        for number, one in enumerate((chief, member)):
            answers = random.random(50).astype(np.float32)
            labels = (random.random(50) < answers).astype(np.float32)
            made = AnswerLog.call(labels, answers)
            facts: Any = SimpleNamespace(spans=[SimpleNamespace(index=0, partition=Partition("clicks", number))])
            made = replace(made, facts=facts)
            for each in (alone, one):
                each.called(made)
        if call % 3 == 0:
            for one in (alone, chief):
                one.figures()
            chief.take_shares([member.share()])
            assert member.figures() is None, "only the chief holds what all have tallied"
            clock.now += WINDOW_S / 10
    chief.take_shares([member.share(), PartState(facts={"worst": []})])
    assert chief.figures() == alone.figures()
    expected, found = alone.snapshot(), chief.snapshot()
    assert found.facts == expected.facts
    assert found.arrays.keys() == expected.arrays.keys()
    for name, array in expected.arrays.items():
        np.testing.assert_array_equal(found.arrays[name], array, name)
