"""The baseline equals the score of guessing the base rate, computed by Keras' own losses."""

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


def test_binary_baseline_guesses_the_more_frequent_label() -> None:
    guess = np.full_like(BITS, BITS.mean())
    loss = float(keras.losses.BinaryCrossentropy()(BITS[:, None], guess[:, None]))
    guessed = _guessed(Baseline.BINARY, BITS)
    assert guessed["accuracy"] == pytest.approx(max(BITS.mean(), 1 - BITS.mean()))
    assert guessed["loss"] == pytest.approx(loss, rel=1e-5)


def test_binary_baseline_guesses_each_label_of_a_record_separately() -> None:
    both = np.stack([BITS, 1 - BITS[::-1]], axis=1)
    first, second = _guessed(Baseline.BINARY, both[:, 0]), _guessed(Baseline.BINARY, both[:, 1])
    assert _guessed(Baseline.BINARY, both) == pytest.approx({key: (first[key] + second[key]) / 2 for key in first})


@pytest.mark.parametrize("kind", [Baseline.CLASSES, Baseline.ONE_HOT])
def test_baseline_of_several_classes_guesses_the_most_frequent(kind: Baseline) -> None:
    labels = CLASSES if kind is Baseline.CLASSES else np.eye(4, dtype=np.float32)[CLASSES]
    shares = np.bincount(CLASSES) / len(CLASSES)
    guess = np.tile(shares, (len(CLASSES), 1)).astype(np.float32)
    guessed = _guessed(kind, labels)
    assert guessed["accuracy"] == pytest.approx(shares.max())
    assert guessed["loss"] == pytest.approx(
        float(keras.losses.SparseCategoricalCrossentropy()(CLASSES, guess)), rel=1e-5
    )


def test_baseline_of_numbers_guesses_the_mean() -> None:
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


def test_a_class_that_appears_late_is_counted_with_earlier_ones() -> None:
    sums = LabelSums.over(Baseline.CLASSES, np.array([0, 0, 1]))
    sums.add(LabelSums.over(Baseline.CLASSES, np.array([7])))
    assert guess_the_base_rate(Baseline.CLASSES, sums)["accuracy"] == 0.5


def test_labels_that_are_always_the_same_leave_nothing_to_guess() -> None:
    assert _guessed(Baseline.BINARY, np.ones(5)) == {"accuracy": 1.0, "loss": 0.0}
    assert _guessed(Baseline.SQUARES, np.full(5, 2.0)) == {"loss": 0.0}


@pytest.mark.parametrize("kind", list(Baseline))
def test_without_labels_there_is_no_base_rate(kind: Baseline) -> None:
    assert _guessed(kind, np.zeros(0)) == {}


def test_sums_are_the_same_after_a_restore() -> None:
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
def test_the_loss_decides_the_task(loss: Any, kind: Baseline) -> None:
    assert Baseline.of(loss) is kind
