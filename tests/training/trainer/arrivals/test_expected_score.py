"""What is expected of answers without labels is what they score once their labels have come."""

import numpy as np
import pytest

from millrace.training.telemetry.baseline import BaselinePlan
from millrace.training.telemetry.label_sums import Labels
from millrace.training.telemetry.tallies import Answered, Tallies, Values, tallies_of_all, truth_columns
from millrace.training.trainer.arrivals.arrival_score import FEWEST_EXPECTED, expected_scores
from millrace.training.trainer.arrivals.predictions import Predicted, Predictions
from tests.training.trainer_rig import P0, P1


def known_of(kind: Labels, labels: object, answers: Values) -> Tallies:
    return tallies_of_all(truth_columns(Answered(np.asarray(labels), answers), kind), len(answers))


def events(random: np.random.Generator, count: int, harder: float = 1.0) -> tuple[Values, Values]:
    """Return answers of a model that is too sure of itself, and what came true."""
    odds = random.normal(0, 2 / harder, (count, 1))
    return (1 / (1 + np.exp(-1.8 * odds))).astype(np.float32), (
        random.random((count, 1)) < 1 / (1 + np.exp(-odds))
    ).astype(np.float32)


@pytest.mark.parametrize("harder", [1.0, 2.5])
def test_events_are_expected_to_score_what_they_do_though_the_model_is_too_sure(harder: float) -> None:
    random = np.random.default_rng(5)
    answers, labels = events(random, 50_000)
    known = known_of(Labels.BINARY, labels, answers)
    waiting, later = events(random, 20_000, harder)
    found = expected_scores(waiting, known, BaselinePlan(labels=Labels.BINARY))
    p = waiting.astype(np.float64).clip(1e-7, 1 - 1e-7)
    assert found["accuracy"] == pytest.approx(((p > 0.5) == later).mean(), abs=0.015)
    assert found["log_loss"] == pytest.approx(-np.where(later > 0, np.log(p), np.log(1 - p)).mean(), abs=0.02)
    sure = np.where(p > 0.5, p, 1 - p).mean()
    assert abs(sure - found["accuracy"]) > 0.03, "what the model itself says is far off"


def test_classes_are_expected_by_how_often_the_answered_one_was_right_also_as_logits() -> None:
    random = np.random.default_rng(6)
    logits = random.normal(0, 1.5, (40_000, 4)).astype(np.float32)
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (shares.cumsum(axis=1) > random.random((len(shares), 1))).argmax(axis=1)
    half = len(labels) // 2
    known = known_of(Labels.CLASSES, labels[:half], shares[:half])
    actual = (shares[half:].argmax(axis=1) == labels[half:]).mean()
    for answers, plan in (
        (shares[half:], BaselinePlan(labels=Labels.CLASSES)),
        (logits[half:], BaselinePlan(labels=Labels.CLASSES, logits=True)),
    ):
        assert expected_scores(answers, known, plan) == {"accuracy": pytest.approx(actual, abs=0.01)}


def test_nothing_is_expected_of_numbers_of_too_few_labels_and_of_no_answers() -> None:
    answers, labels = events(np.random.default_rng(5), FEWEST_EXPECTED)
    plan = BaselinePlan(labels=Labels.BINARY)
    known = known_of(Labels.BINARY, labels, answers)
    assert {*expected_scores(answers, known, plan)} == {"accuracy", "log_loss"}
    assert expected_scores(answers[:0], known, plan) == {}
    assert expected_scores(np.full((3, 1), np.nan, np.float32), known, plan) == {}
    assert expected_scores(answers, known_of(Labels.BINARY, labels[1:], answers[1:]), plan) == {}
    assert expected_scores(answers, known, BaselinePlan(labels=Labels.NUMBERS)) == {}


def test_the_newest_of_each_partition_are_estimated() -> None:
    waiting = Predictions([(1,)])
    assert waiting.newest(4) is None
    for partition, first in ((P0, 0.0), (P1, 100.0)):
        for start in (0, 3):
            offsets = np.arange(start, start + 3)
            waiting.keep(partition, Predicted(offsets, [(first + offsets).astype(np.float32)[:, None]]))
    found = waiting.newest(8)
    assert found is not None
    assert sorted(found[:, 0].tolist()) == [2, 3, 4, 5, 102, 103, 104, 105]
    assert Predictions([(1,), (1,)]).newest(8) is None
