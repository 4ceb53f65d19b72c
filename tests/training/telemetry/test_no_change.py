"""Guessing that nothing changes scores what Keras' metrics give to each partition's label of before."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import pytest

from millrace.training.checkpoints.parts import PartState
from millrace.training.commands import Save
from millrace.training.telemetry import no_change
from millrace.training.telemetry.label_sums import padded_sum
from millrace.training.telemetry.live_metrics import LiveSnapshot
from millrace.training.telemetry.no_change import LastLabels, repeated
from tests.training.telemetry.test_baseline import planned
from tests.training.trainer_rig import P0, P1, SHARE, Topic, running

pytestmark = pytest.mark.tensorflow

km = keras.metrics
RANDOM = np.random.default_rng(11)
ROWS = 400
WEIGHTS = RANDOM.choice([1.0, 10.0], ROWS).astype(np.float32)
TABLE = {3: P0, 5: P1}
PLACES = RANDOM.choice([3, 5], ROWS)
OFFSETS = np.arange(ROWS)
RUNS = np.repeat(RANDOM.choice(4, ROWS // 8), 8)
BITS = (RUNS > 1).astype(np.float32)[:, np.newaxis]
BOTH = np.concatenate([BITS, 1 - BITS[::-1]], axis=1)
WALK = np.exp(RANDOM.normal(size=(ROWS, 1)).cumsum(axis=0) / 5).astype(np.float32)
OF_BITS: list[Callable[[], Any]] = [
    lambda: km.BinaryAccuracy(name="accuracy"),
    lambda: km.AUC(name="auc"),
    lambda: km.Precision(name="precision"),
    lambda: km.Recall(name="recall"),
    lambda: km.MeanSquaredError(name="brier"),
]
OF_NUMBERS: list[Callable[[], Any]] = [
    lambda: km.MeanSquaredError(name="mse"),
    lambda: km.RootMeanSquaredError(name="rmse"),
    lambda: km.MeanAbsoluteError(name="mae"),
    lambda: km.MeanAbsolutePercentageError(name="mape"),
    lambda: km.LogCoshError(name="log_cosh"),
    lambda: km.MeanMetricWrapper(keras.losses.huber, name="huber", delta=0.3),
]


def repeats(plan: Any, labels: npt.NDArray[Any]) -> dict[str, float]:
    """Return the scores over all rows, which come in calls, shuffled in each; a restart is in the middle."""
    last, sums = LastLabels(), np.zeros(0)
    for number, call in enumerate(np.array_split(np.arange(ROWS), 7)):
        rows = RANDOM.permutation(call)
        pairs = last.follow(labels[rows], WEIGHTS[rows], TABLE, PLACES[rows], OFFSETS[rows])
        assert pairs is not None
        sums = padded_sum(sums, pairs.sums(plan.repeats))
        if number == 3:
            saved, last = last.snapshot(), LastLabels()
            last.restore(saved)
    assert sums[0] == ROWS - 2, "all but the first of each partition have one before them"
    return repeated(plan.repeats, sums)


def before(labels: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Return which rows have one before them in their partition, and its label."""
    rows, labels_before = list[int](), list[Any]()
    for place in TABLE:
        mine = np.flatnonzero(place == PLACES)
        rows += mine[1:].tolist()
        labels_before += list(labels[mine[:-1]])
    return np.array(rows), np.array(labels_before)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("loss", "labels", "metrics"),
    [
        ("binary_crossentropy", BITS, OF_BITS),
        ("binary_crossentropy", BOTH, OF_BITS),
        ("categorical_crossentropy", np.eye(4, dtype=np.float32)[RUNS], [lambda: km.CategoricalAccuracy(name="hit")]),
        ("mse", WALK, OF_NUMBERS),
    ],
    ids=["bits", "both", "one_of_four", "walk"],
)
def test_repeated_labels_score_what_keras_gives_them(
    loss: str, labels: npt.NDArray[Any], metrics: list[Callable[[], Any]], weighted: bool
) -> None:
    made = [make() for make in metrics]
    compiled = ([], tuple(made)) if weighted else (made, ())
    scores = repeats(planned(loss, compiled[0], labels, labels.shape[1], compiled[1]), labels)
    rows, guess = before(labels)
    for metric in (make() for make in metrics):
        metric.update_state(labels[rows], guess, sample_weight=WEIGHTS[rows] if weighted else None)
        assert scores[metric.name] == pytest.approx(float(metric.result()), rel=1e-4), metric.name
    if loss == "mse":
        of_loss = keras.losses.MeanSquaredError()(labels[rows], guess, sample_weight=WEIGHTS[rows])
        assert scores["loss"] == pytest.approx(float(of_loss), rel=1e-4), "the loss honours weights and counts rows"


def test_numbers_of_classes_are_compared_as_such_and_have_no_log_loss() -> None:
    plan = planned("sparse_categorical_crossentropy", ["accuracy"], RUNS, 4)
    rows, guess = before(RUNS)
    assert repeats(plan, RUNS) == {"accuracy": pytest.approx((RUNS[rows] == guess).mean())}


def test_the_log_loss_of_bits_is_that_of_knowing_how_often_they_stay() -> None:
    scores = repeats(planned("binary_crossentropy", [km.BinaryCrossentropy(name="log_loss")], BITS), BITS)
    rows, guess = before(BITS)
    stays = (BITS[rows] == guess).mean()
    constant = np.where(guess == 1, stays, 1 - stays)
    expected = keras.metrics.BinaryCrossentropy()
    expected.update_state(BITS[rows], constant)
    assert scores["log_loss"] == pytest.approx(float(expected.result()), rel=1e-4)


def test_a_checkpoint_from_before_holds_no_label_and_one_of_another_shape_is_not_compared() -> None:
    last = LastLabels()
    last.restore(PartState())
    args = np.ones(1), TABLE, np.array([3]), np.array([7])
    assert last.follow(np.ones((1, 2)), *args) is None
    assert last.follow(np.ones(1), *args) is None, "the label has another width now"
    nothing = np.zeros(0, np.int64)
    assert last.follow(np.zeros((0, 2)), nothing, TABLE, nothing, nothing) is None, "all rows were set aside"
    last.forget(P0)
    assert last.snapshot().arrays == {}


def test_the_label_of_before_is_known_over_a_kill_and_a_rewind(tmp_path: Path) -> None:
    topic = Topic(P0, P1)

    def live_after(settled: int) -> LiveSnapshot:
        with running(tmp_path, topic) as run:
            for partition in (P0, P1):
                run.reaches(settled, partition)
            run.ask(Save()) if settled == 2 * SHARE else None
            return run.live.look()

    for partition in (P0, P1):
        topic.produce(2 * SHARE, partition)
    live_after(2 * SHARE)
    for partition in (P0, P1):
        topic.produce(SHARE, partition)
    live = live_after(3 * SHARE)
    bits = {p: [topic.x(p, offset).sum() > 0 for offset in range(3 * SHARE)] for p in (P0, P1)}
    stays = [bits[p][at] == bits[p][at - 1] for p in (P0, P1) for at in range(2 * SHARE, 3 * SHARE)]
    assert live.records == len(stays), "those since the start"
    assert live.no_change["accuracy"] == pytest.approx(np.mean(stays))
    assert replace(live, baseline={"accuracy": 0.5}, no_change={"accuracy": 0.9}).ahead_of_guessing == pytest.approx(
        live.values["accuracy"] - 0.9
    )


@pytest.mark.parametrize("most", [1 << 18, 60])
@pytest.mark.parametrize(
    "runs", [[3], [3, 5], [5, 3, 5, 3], [3, 5] * 100], ids=["one", "two", "in turns", "row by row"]
)
def test_rows_in_runs_of_partitions_have_the_pairs_of_the_same_rows_shuffled(
    runs: list[int], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(no_change, "MOST_VALUES", most)
    count = 200 // len(runs)
    places, offsets = np.repeat(runs, count), np.arange(200)
    labels = offsets[:, np.newaxis].astype(np.float32)
    shuffled, found = RANDOM.permutation(200), list[set[tuple[float, float]]]()
    for order in (np.arange(200), shuffled):
        last = LastLabels()
        last.follow(-np.ones((2, 1)), np.ones(2), TABLE, np.array([3, 5]), np.array([-1, -1]))
        pairs = last.follow(labels[order], np.ones(200), TABLE, places[order], offsets[order])
        assert pairs is not None
        assert last.follow(labels[:0], np.ones(0), TABLE, places[:0], offsets[:0]) is None
        found.append({*zip(pairs.labels[:, 0].tolist(), pairs.before[:, 0].tolist(), strict=True)})
        expected = dict[float, float]()
        for place in set(runs):
            mine = offsets[places == place].tolist()
            expected |= dict(zip(mine, [-1, *mine[:-1]], strict=True))
        assert found[-1] <= set(expected.items())
        assert len(found[-1]) == (200 if most > 200 else 50)
    assert most < 200 or found[0] == found[1]


def test_a_run_of_a_partition_that_comes_behind_a_later_one_is_paired_by_offset() -> None:
    last, offsets = LastLabels(), np.array([*range(20, 40), *range(50, 70), *range(20)])
    pairs = last.follow(offsets[:, np.newaxis], np.ones(60), TABLE, np.repeat([3, 5, 3], 20), offsets)
    assert pairs is not None
    assert (pairs.labels - pairs.before == 1).all()
    assert len(pairs.labels) == 58, "all but the first of each partition"
