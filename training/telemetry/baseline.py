"""The baseline: the score of always guessing the base rate. A model that does not beat it has learnt nothing useful.

Owns the sums of labels and the formulas that turn them into accuracies and losses. Pure; runs on any thread.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

MOST_CLASSES = 10_000


class Baseline(StrEnum):
    """The kind of task, as the model's loss shows it."""

    BINARY = "binary"
    ONE_HOT = "one_hot"
    CLASSES = "classes"
    SQUARES = "squares"
    NONE = "none"
    """Several outputs, or a loss of the user's own: there is no single base rate."""

    @classmethod
    def of(cls, loss: Any) -> "Baseline":
        """Return the task that the model's compiled loss implies."""
        name = (loss if isinstance(loss, str) else getattr(loss, "name", getattr(loss, "__name__", ""))) or ""
        return {
            "binary_crossentropy": cls.BINARY,
            "bce": cls.BINARY,
            "categorical_crossentropy": cls.ONE_HOT,
            "sparse_categorical_crossentropy": cls.CLASSES,
            "mse": cls.SQUARES,
            "mean_squared_error": cls.SQUARES,
        }.get(name, cls.NONE)


@dataclass(slots=True)
class LabelSums:
    """Sums over labels, from which means, variances and frequencies of classes follow."""

    count: int = 0
    total: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    squares: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    classes: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def over(cls, kind: Baseline, labels: npt.NDArray[Any]) -> "LabelSums":
        """Sum up the labels of rows that are present, [n, …]."""
        if kind is Baseline.NONE or not len(labels):
            return cls()
        if kind is Baseline.CLASSES:
            # Clipped: bincount refuses negative labels, and allocates as much as the greatest one says.
            counts = np.bincount(np.clip(labels.reshape(-1).astype(np.int64), 0, MOST_CLASSES))
            return cls(count=len(labels), classes=counts.astype(np.float64))
        flat = labels.reshape(len(labels), -1)
        squares = np.square(flat, dtype=np.float64).sum(axis=0) if kind is Baseline.SQUARES else np.zeros(flat.shape[1])
        return cls(count=len(labels), total=flat.sum(axis=0, dtype=np.float64), squares=squares)

    @classmethod
    def of(cls, count: int, arrays: Mapping[str, npt.NDArray[Any]]) -> "LabelSums":
        """Return the sums from the arrays of a checkpoint."""
        return cls(count, arrays["labels.total"], arrays["labels.squares"], arrays["labels.classes"])

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays that a checkpoint holds, beside the count."""
        return {"labels.total": self.total, "labels.squares": self.squares, "labels.classes": self.classes}

    def add(self, other: "LabelSums") -> None:
        """Add the sums of other rows."""
        self.count += other.count
        self.total = _padded_sum(self.total, other.total)
        self.squares = _padded_sum(self.squares, other.squares)
        self.classes = _padded_sum(self.classes, other.classes)


def _padded_sum(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    out = longer.copy()
    out[: len(shorter)] += shorter
    return out


def guess_the_base_rate(kind: Baseline, labels: LabelSums) -> dict[str, float]:
    """Return loss and accuracy of guessing the base rate; empty if the task or the rows have none."""
    if kind is Baseline.NONE or not labels.count:
        return {}
    if kind is Baseline.SQUARES:
        mean = labels.total / labels.count
        return {"loss": float(np.mean(labels.squares / labels.count - mean**2))}
    shares = (labels.classes if kind is Baseline.CLASSES else labels.total) / labels.count
    if kind is Baseline.BINARY:
        sides = np.stack([shares, 1 - shares])
        return {"accuracy": float(np.mean(sides.max(axis=0))), "loss": float(np.mean(_entropy(sides)))}
    return {"accuracy": float(shares.max()), "loss": float(_entropy(shares))}


def _entropy(shares: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the entropy in nats, over the first axis; a class that never occurs adds nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(shares > 0, -shares * np.log(shares), 0.0)
    return np.asarray(terms.sum(axis=0))
