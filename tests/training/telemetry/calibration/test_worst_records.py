"""The worst records are those of the greatest loss in the window, whatever calls they came in."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from millrace.consumers.records import Partition
from millrace.training.telemetry.calibration.worst_records import MOST_RECORDS, WorstRecords
from millrace.training.telemetry.label_sums import Labels
from millrace.training.telemetry.tallies import Answered
from tests.training.trainer_rig import Clock

PARTITIONS = {0: Partition("clicks", 0), 3: Partition("clicks", 1)}
ROWS = 5000
WINDOW_S = 600.0


def made(kind: Labels) -> tuple[Answered, Any]:
    """Return rows of two partitions, and the loss of each."""
    random = np.random.default_rng(7)
    places = random.choice([0, 3], ROWS), random.permutation(ROWS)
    p = random.random((ROWS, 2)).astype(np.float32)
    if kind is Labels.BINARY:
        y = (random.random((ROWS, 2)) < p).astype(np.float32)
        return Answered(y, p, lambda: places), -np.log(np.where(y > 0, p, 1 - p).min(axis=1).clip(1e-7))
    if kind is Labels.CLASSES:
        classes = (random.random(ROWS) < p[:, 0]).astype(np.int64)
        shares = p / p.sum(axis=1, keepdims=True)
        return Answered(classes, shares, lambda: places), -np.log(shares[np.arange(ROWS), classes].clip(1e-7))
    y = random.normal(size=(ROWS, 2)).astype(np.float32)
    return Answered(y, p, lambda: places), np.abs(p - y).max(axis=1)


@pytest.mark.parametrize("kind", [Labels.BINARY, Labels.CLASSES, Labels.NUMBERS])
def test_they_are_the_ten_of_the_greatest_loss_however_calls_are_cut(kind: Labels) -> None:
    rows, losses = made(kind)
    worst = WorstRecords(kind, WINDOW_S, Clock())
    cuts = [0, 3, 17, 900, 901, 3000, ROWS]
    partitions, offsets = rows.places()

    def cut(first: int, last: int) -> Answered:
        places = partitions[first:last], offsets[first:last]
        return Answered(rows.labels[first:last], rows.answers[first:last], lambda: places)

    for first, last in pairwise(cuts):
        worst.add(cut(first, last), PARTITIONS)
    due = np.argsort(-losses)[:MOST_RECORDS]
    found = worst.found()
    assert [(one.partition, one.offset) for one in found] == [
        (str(PARTITIONS[int(partitions[row])]), int(offsets[row])) for row in due
    ]
    assert [one.loss for one in found] == pytest.approx(losses[due].tolist(), rel=1e-3)


def test_a_record_that_was_learnt_twice_stands_there_once_and_an_old_one_no_more() -> None:
    clock = Clock()
    worst = WorstRecords(Labels.BINARY, WINDOW_S, clock)
    label = np.ones((1, 1), np.float32)
    place = np.zeros(1, np.int64)
    at_7, at_8 = (place, place + 7), (place, place + 8)
    for p in (0.001, 0.2):
        worst.add(Answered(label, np.full((1, 1), p, np.float32), lambda: at_7), PARTITIONS)
        clock.now += WINDOW_S / 20
    [one] = worst.found()
    assert (one.partition, one.offset) == ("clicks:0", 7)
    assert one.loss == pytest.approx(-np.log(0.001), rel=1e-3), "the worst of both"
    clock.now += 2 * WINDOW_S
    worst.add(Answered(label, np.full((1, 1), 0.9, np.float32), lambda: at_8), PARTITIONS)
    assert [one.offset for one in worst.found()] == [8]
    worst.clear()
    assert worst.found() == ()
