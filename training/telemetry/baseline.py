"""The baseline: what guessing would score, knowing how the labels are distributed and nothing of a record.

A model that does not beat it has learnt nothing useful. Each score is compared with the guess that its metric rewards:
the base rate for accuracy and log loss, the mean for squares, the median for absolute errors, and so on. A metric that
honours the records' weights is compared with a guess over weighted labels, and so is the loss.

Owns the formulas. Pure; runs on any thread.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from millrace.training.telemetry.label_sums import ElementLoss, Floats, Labels, LabelSums
from millrace.training.telemetry.no_change import RepeatedScore

Guess = Callable[[LabelSums], float | None]


class GuessKind(StrEnum):
    """What a guess is, in the words that stand beside its score."""

    BASE_RATE = "base rate"
    GUESSING = "guessing"
    """At random, or the same for every record, whichever of them the metric rewards."""
    MEAN = "mean"
    MEDIAN = "median"
    CONSTANT = "best constant"


@dataclass(frozen=True, slots=True)
class GuessedScore:
    """How a score of the model is guessed."""

    name: str
    guess: Guess
    kind: GuessKind
    weighted: bool = False
    """Whether the metric honours the records' weights."""
    per_row: bool = False
    """Whether the metric divides by rows, as Keras' losses do, and not by their weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselinePlan:
    """What is summed up over the labels, and which scores are guessed from it."""

    labels: Labels = Labels.NONE
    scores: Sequence[GuessedScore] = ()
    quantiles: bool = False
    """Whether a guess needs the quantiles of the labels."""
    repeats: Sequence[RepeatedScore] = ()
    """Which scores are also guessed by repeating the label of before."""
    logits: bool = False
    """Whether the loss takes the model's answers for logits, not for probabilities."""

    def guessed(self, plain: LabelSums, weighted: LabelSums) -> dict[str, float]:
        """Return the guesses' scores by name; without those that the rows, or the labels, have none for."""
        scores = {}
        for score in self.scores:
            sums = weighted if score.weighted else plain
            value = score.guess(sums) if sums.weight > 0 else None
            if value is not None and np.isfinite(value):
                scores[score.name] = float(value) * (sums.weight / sums.rows if score.per_row else 1.0)
        return scores

    @property
    def kinds(self) -> Mapping[str, str]:
        """What each guess is, in words, by the name of the score."""
        return {score.name: str(score.kind) for score in self.scores}


# Classes


def binary_accuracy(sums: LabelSums) -> float:
    """Return the accuracy of always saying what is more frequent in each column."""
    return float(_sides(sums.shares).max(axis=0).mean())


def accuracy(sums: LabelSums) -> float:
    """Return the accuracy of always saying the most frequent class."""
    return float(sums.shares.max())


def top_k_accuracy(sums: LabelSums, k: int) -> float:
    """Return the accuracy of always naming the `k` most frequent classes."""
    return float(np.sort(sums.shares)[-k:].sum())


def binary_crossentropy(sums: LabelSums, smoothing: float = 0.0) -> float:
    """Return the log loss of always giving the base rate of each column."""
    return float(_entropy(_sides(sums.shares * (1 - smoothing) + smoothing / 2)).mean())


def crossentropy(sums: LabelSums, smoothing: float = 0.0) -> float:
    """Return the log loss of always giving the frequencies of the classes."""
    return float(_entropy(sums.shares * (1 - smoothing) + smoothing / len(sums.shares)))


def positive_rate(sums: LabelSums, column: int | None = None) -> float:
    """Return how often a column is 1, or all of them: the precision of any guess that ignores the record.

    It is the area under the precision-recall curve of such a guess, and the recall of one that says 1 as often.
    """
    return float(sums.shares.mean() if column is None else sums.shares[column])


def f_score(sums: LabelSums, beta: float, average: str | None, *, one_class: bool, column: int | None = None) -> float:
    """Return the F-score of always saying 1, or where only one class may be said, of always saying the best one."""
    shares = sums.shares
    by_class = (1 + beta**2) * shares / (beta**2 * shares + 1)
    # Always saying 1 has the precision p and the recall 1.
    if column is not None:
        return float(by_class[column])
    if average == "micro":
        share = shares.max() if one_class else shares.mean()
        return float(share if one_class else (1 + beta**2) * share / (beta**2 * share + 1))
    if average == "weighted":
        by_class = by_class * shares / max(shares.sum(), 1e-12) * len(shares)
    return float(by_class.max() / len(shares) if one_class else by_class.mean())


# Numbers


def variance(sums: LabelSums) -> float:
    """Return the mean square error of always guessing the mean."""
    return float(sums.variances.mean())


def deviation(sums: LabelSums) -> float:
    """Return the root mean square error of always guessing the mean."""
    return float(np.sqrt(sums.variances.mean()))


def absolute_deviation(sums: LabelSums) -> float | None:
    """Return the mean absolute error of always guessing the median."""
    sketch = sums.sketch
    if not sketch.values.size:
        return None
    gaps = np.abs(sketch.values - sketch.medians()[:, np.newaxis]) * sketch.weights
    return float((gaps.sum(axis=1) / sketch.weights.sum(axis=1)).mean())


def least_of(loss: ElementLoss) -> Guess:
    """Return the guess of the constant that this loss rewards most."""
    return lambda sums: sums.sketch.least(loss)


def huber(delta: float) -> ElementLoss:
    """Return Keras' Huber loss."""

    def loss(values: Floats, constant: Floats) -> Floats:
        gap = np.abs(values - constant)
        return np.where(gap <= delta, gap**2 / 2, delta * gap - delta**2 / 2)

    return loss


def log_cosh(values: Floats, constant: Floats) -> Floats:
    """Return Keras' log-cosh loss."""
    gap = constant - values
    return np.asarray(np.logaddexp(gap, -gap) - np.log(2.0))


def absolute_percentage(values: Floats, constant: Floats) -> Floats:
    """Return Keras' mean absolute percentage error."""
    return np.asarray(100 * np.abs(values - constant) / np.maximum(np.abs(values), 1e-7))


def constant(value: float) -> Guess:
    """Return a guess whose score does not depend on the labels."""
    return lambda _sums: value


def _sides(shares: Floats) -> Floats:
    return np.stack([shares, 1 - shares])


def _entropy(shares: Floats) -> Floats:
    """Return the entropy in nats, over the first axis; a class that never occurs adds nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(shares > 0, -shares * np.log(shares), 0.0)
    return np.asarray(terms.sum(axis=0))
