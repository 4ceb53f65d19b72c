"""The baseline is what a guesser of the base rate really scores, by Keras' own losses."""

from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import pytest

from training.telemetry.baseline import Baseline, LabelSums, guess_the_base_rate

pytestmark = pytest.mark.tensorflow

RANDOM = np.random.default_rng(5)
BITS = (RANDOM.random(500) < 0.3).astype(np.float32)
CLASSES = RANDOM.choice(4, 500, p=[0.1, 0.5, 0.15, 0.25])
NUMBERS = RANDOM.normal(3, 2, 500).astype(np.float32)


def _guessed(kind: Baseline, labels: npt.NDArray[Any]) -> dict[str, float]:
    return guess_the_base_rate(kind, LabelSums.over(kind, labels))


def test_of_two_sides_the_guesser_takes_the_more_frequent() -> None:
    guess = np.full_like(BITS, BITS.mean())
    loss = float(keras.losses.BinaryCrossentropy()(BITS[:, None], guess[:, None]))
    found = _guessed(Baseline.BINARY, BITS)
    assert found["accuracy"] == pytest.approx(max(BITS.mean(), 1 - BITS.mean()))
    assert found["loss"] == pytest.approx(loss, rel=1e-5)


def test_several_bits_a_record_are_guessed_each_by_itself() -> None:
    both = np.stack([BITS, 1 - BITS[::-1]], axis=1)
    one, other = _guessed(Baseline.BINARY, both[:, 0]), _guessed(Baseline.BINARY, both[:, 1])
    assert _guessed(Baseline.BINARY, both) == pytest.approx({key: (one[key] + other[key]) / 2 for key in one})


@pytest.mark.parametrize("kind", [Baseline.CLASSES, Baseline.ONE_HOT])
def test_of_several_classes_the_guesser_takes_the_most_frequent(kind: Baseline) -> None:
    labels = CLASSES if kind is Baseline.CLASSES else np.eye(4, dtype=np.float32)[CLASSES]
    shares = np.bincount(CLASSES) / len(CLASSES)
    guess = np.tile(shares, (len(CLASSES), 1)).astype(np.float32)
    found = _guessed(kind, labels)
    assert found["accuracy"] == pytest.approx(shares.max())
    assert found["loss"] == pytest.approx(float(keras.losses.SparseCategoricalCrossentropy()(CLASSES, guess)), rel=1e-5)


def test_of_numbers_the_guesser_takes_the_mean() -> None:
    guess = np.full_like(NUMBERS, NUMBERS.mean())
    assert _guessed(Baseline.SQUARES, NUMBERS) == pytest.approx(
        {"loss": float(keras.losses.MeanSquaredError()(NUMBERS[:, None], guess[:, None]))}, rel=1e-5
    )


@pytest.mark.parametrize(
    ("kind", "labels"),
    [(Baseline.BINARY, BITS), (Baseline.CLASSES, CLASSES), (Baseline.SQUARES, NUMBERS)],
)
def test_sums_of_pieces_are_the_sums_of_the_whole(kind: Baseline, labels: npt.NDArray[Any]) -> None:
    pieces = LabelSums()
    for piece in (labels[:1], labels[1:40], labels[40:40], labels[40:]):
        pieces.add(LabelSums.over(kind, piece))
    whole = LabelSums.over(kind, labels)
    assert pieces.count == whole.count
    assert guess_the_base_rate(kind, pieces) == pytest.approx(guess_the_base_rate(kind, whole))


def test_a_class_that_comes_late_is_counted_with_those_before() -> None:
    sums = LabelSums.over(Baseline.CLASSES, np.array([0, 0, 1]))
    sums.add(LabelSums.over(Baseline.CLASSES, np.array([7])))
    assert guess_the_base_rate(Baseline.CLASSES, sums)["accuracy"] == 0.5


def test_labels_that_are_always_the_same_leave_nothing_to_guess() -> None:
    assert _guessed(Baseline.BINARY, np.ones(5)) == {"accuracy": 1.0, "loss": 0.0}
    assert _guessed(Baseline.SQUARES, np.full(5, 2.0)) == {"loss": 0.0}


@pytest.mark.parametrize("kind", list(Baseline))
def test_without_labels_there_is_no_base_rate(kind: Baseline) -> None:
    assert _guessed(kind, np.zeros(0)) == {}


def test_sums_come_back_as_they_were() -> None:
    for kind, labels in ((Baseline.BINARY, BITS), (Baseline.CLASSES, CLASSES), (Baseline.SQUARES, NUMBERS)):
        sums = LabelSums.over(kind, labels)
        back = LabelSums.of(sums.count, sums.arrays())
        assert guess_the_base_rate(kind, back) == guess_the_base_rate(kind, sums)


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        ("binary_crossentropy", Baseline.BINARY),
        (keras.losses.BinaryCrossentropy(from_logits=True), Baseline.BINARY),
        (keras.losses.binary_crossentropy, Baseline.BINARY),
        ("sparse_categorical_crossentropy", Baseline.CLASSES),
        (keras.losses.SparseCategoricalCrossentropy(), Baseline.CLASSES),
        (keras.losses.CategoricalCrossentropy(), Baseline.ONE_HOT),
        ("mse", Baseline.SQUARES),
        (keras.losses.MeanSquaredError(), Baseline.SQUARES),
        (keras.losses.Huber(), Baseline.NONE),
        (lambda y, p: y - p, Baseline.NONE),
        ({"a": "mse", "b": "mse"}, Baseline.NONE),
        (None, Baseline.NONE),
    ],
)
def test_the_task_is_told_by_the_loss(loss: Any, kind: Baseline) -> None:
    assert Baseline.of(loss) is kind
