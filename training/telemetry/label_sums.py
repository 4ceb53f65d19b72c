"""Sums over labels, from which the scores of guessing follow. Pure; runs on any thread."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.training.telemetry.quantile_sketch import QuantileSketch

MOST_CLASSES = 10_000
MOST_VALUES = 1 << 18
"""Labels of one call that are summed up; of more an even selection of the rows is taken, as in an autoencoder."""
Floats = npt.NDArray[np.float64]


class Labels(StrEnum):
    """What the labels are, as the model's loss and metrics show it."""

    BINARY = "binary"
    """0 or 1, in one column or several that do not exclude each other."""
    ONE_HOT = "one_hot"
    CLASSES = "classes"
    """The number of the class."""
    NUMBERS = "numbers"
    NONE = "none"
    """Several outputs, or a loss of the user's own: nobody can say what guessing would score."""


def _none() -> Floats:
    return np.zeros(0)


@dataclass(slots=True)
class LabelSums:
    """Sums over the labels of rows, each times the row's weight."""

    rows: int = 0
    weight: float = 0.0
    """The sum of the rows' weights."""
    total: Floats = field(default_factory=_none)
    squares: Floats = field(default_factory=_none)
    classes: Floats = field(default_factory=_none)
    sketch: QuantileSketch = field(default_factory=QuantileSketch.empty)

    @classmethod
    def over(
        cls,
        kind: Labels,
        labels: npt.NDArray[Any],
        weights: npt.NDArray[np.floating[Any]] | None = None,
        *,
        quantiles: bool = False,
    ) -> "LabelSums":
        """Sum up the labels of rows that are present, [n, …]; without weights each counts once."""
        if kind is Labels.NONE or not len(labels):
            return cls()
        step = -(-labels.size // MOST_VALUES)
        labels = labels[::step]
        w = np.ones(len(labels)) if weights is None else weights[::step].astype(np.float64)
        if kind is Labels.CLASSES:
            # Clipped: bincount refuses negative labels, and allocates as much as the greatest one says.
            numbers = np.clip(labels.reshape(len(labels), -1).astype(np.int64), 0, MOST_CLASSES)
            counts = np.bincount(numbers.reshape(-1), np.repeat(w, numbers.shape[1]))
            return cls(len(labels), float(w.sum()), classes=counts / numbers.shape[1])
        flat = labels.reshape(len(labels), -1)
        return cls(
            len(labels),
            float(w.sum()),
            total=np.einsum("i,ij->j", w, flat, dtype=np.float64, casting="unsafe"),
            squares=np.einsum("i,ij,ij->j", w, flat, flat, dtype=np.float64, casting="unsafe"),
            sketch=QuantileSketch.over(flat, w) if quantiles else QuantileSketch.empty(),
        )

    @classmethod
    def of(cls, arrays: Mapping[str, npt.NDArray[Any]], prefix: str, rows: int = 0) -> "LabelSums":
        """Return the sums from the arrays of a checkpoint; one of an earlier version has fewer of them.

        `rows` is what such a checkpoint has beside its arrays: it knows no weights.
        """

        def array(name: str) -> npt.NDArray[Any]:
            return arrays.get(f"{prefix}.{name}", np.zeros((0, 0) if name.startswith("sketch") else 0))

        counted = array("rows_and_weight")
        return cls(
            int(counted[0]) if counted.size else rows,
            float(counted[1]) if counted.size else float(rows),
            array("total"),
            array("squares"),
            array("classes"),
            QuantileSketch(array("sketch.values"), array("sketch.weights")),
        )

    def arrays(self, prefix: str) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays that a checkpoint holds, of earlier versions and of this one."""
        counted = np.array([self.rows, self.weight], np.float64)
        named = {"rows_and_weight": counted, "total": self.total, "squares": self.squares, "classes": self.classes}
        sketch = {"sketch.values": self.sketch.values, "sketch.weights": self.sketch.weights}
        return {f"{prefix}.{name}": array for name, array in {**named, **sketch}.items()}

    def equals(self, other: "LabelSums") -> bool:
        """Return whether all sums are the same."""
        mine, theirs = self.arrays(""), other.arrays("")
        return all(np.array_equal(array, theirs[name]) for name, array in mine.items())

    def add(self, *others: "LabelSums") -> None:
        """Add the sums of other rows. The arrays of before are not changed."""
        for other in others:
            self.rows += other.rows
            self.weight += other.weight
            self.total = _padded_sum(self.total, other.total)
            self.squares = _padded_sum(self.squares, other.squares)
            self.classes = _padded_sum(self.classes, other.classes)
        self.sketch = self.sketch.merged([other.sketch for other in others])

    @property
    def shares(self) -> Floats:
        """The frequency of each class, or of 1 in each column."""
        return (self.classes if len(self.classes) else self.total) / self.weight

    @property
    def variances(self) -> Floats:
        """The variance of each column."""
        return np.maximum(self.squares / self.weight - (self.total / self.weight) ** 2, 0.0)


def _padded_sum(a: Floats, b: Floats) -> Floats:
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    out = longer.copy()
    out[: len(shorter)] += shorter
    return out
