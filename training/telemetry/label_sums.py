"""Sums over labels, from which the scores of guessing follow. Pure; runs on any thread."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
MOST_GROUPS = 128
"""Groups of a column: their ranks are known to within 0.8 %."""
MOST_COLUMNS = 16
MOST_SKETCHED = 16_384
"""Values that one summary is made of; of more an even selection is taken, as sorting costs the trainer's time."""
ElementLoss = Callable[[Floats, Floats], Floats]
"""The losses of values [columns, n] by a constant of each column, [columns, 1]."""
_SEARCH_STEPS = 25


@dataclass(frozen=True, slots=True)
class QuantileSketch:
    """A bounded, deterministic summary of weighted numbers, by column: their medians, and means of losses over them.

    Equal values are kept as one, exactly, up to `MOST_GROUPS` of them. More are grouped into as many groups of about
    the same weight, each of which keeps the mean of its values. So a sum of absolute distances stays exact beside the
    middle group, however far out the outliers are. Two summaries are merged by grouping their groups. The groups of a
    column are in ascending order; what is left of the arrays has the weight 0.
    """

    values: Floats
    weights: Floats

    @classmethod
    def empty(cls) -> "QuantileSketch":
        """Return the summary of nothing."""
        return cls(np.zeros((0, 0)), np.zeros((0, 0)))

    @classmethod
    def over(cls, rows: npt.NDArray[np.generic], weights: Floats) -> "QuantileSketch":
        """Summarize rows [n, columns] with a weight each; of more than MOST_COLUMNS columns, nothing."""
        columns = rows.shape[1]
        if not columns or columns > MOST_COLUMNS:
            return cls.empty()
        step = -(-rows.size // MOST_SKETCHED)
        return _joined([_grouped(rows[::step, i].astype(np.float64), weights[::step]) for i in range(columns)])

    def merged(self, others: Sequence["QuantileSketch"]) -> "QuantileSketch":
        """Return the summary of the numbers of all."""
        filled = [sketch for sketch in (self, *others) if sketch.values.size]
        if not filled or len({len(sketch.values) for sketch in filled}) > 1:
            return filled[-1] if filled else self
        if len(filled) == 1:
            return filled[0]
        values = np.concatenate([sketch.values for sketch in filled], axis=1)
        weights = np.concatenate([sketch.weights for sketch in filled], axis=1)
        return _joined([_grouped(*column) for column in zip(values, weights, strict=True)])

    def medians(self) -> Floats:
        """Return the median of each column."""
        reached = np.cumsum(self.weights, axis=1)
        middle = (reached < reached[:, -1:] / 2).sum(axis=1)
        return np.asarray(self.values[np.arange(len(self.values)), middle])

    def least(self, loss: ElementLoss) -> float | None:
        """Return the least mean loss of any constant, as a mean over the columns; None for the summary of nothing.

        `loss` is the loss of values by a constant, and has one minimum.
        """
        filled = (self.weights > 0).any(axis=1) if self.values.size else np.zeros(0, bool)
        return float(_least(loss, self.values[filled], self.weights[filled]).mean()) if filled.any() else None


def _least(loss: ElementLoss, values: Floats, weights: Floats) -> Floats:
    """Return the least mean loss of each column. All columns are searched at once, as numpy's calls cost the time."""
    columns, total = np.arange(len(values)), weights.sum(axis=1)
    # What is left of a row has no weight, and must give no infinity either.
    values = np.where(weights > 0, values, values[:, :1])

    def means(constants: Floats) -> Floats:
        return np.asarray((loss(values, constants[:, np.newaxis]) * weights).sum(axis=1) / total)

    # Between two of the values first, as a few outliers may lie so far out that halving the range would not come near.
    left, right = np.zeros(len(values), np.int64), (weights > 0).sum(axis=1) - 1
    while (wide := right - left > 2).any():
        middle = (left + right) // 2
        beside = np.minimum(middle + 1, right)
        rises = means(values[columns, middle]) <= means(values[columns, beside])
        left, right = np.where(wide & ~rises, middle, left), np.where(wide & rises, beside, right)
    ends = values[columns, left], values[columns, right]
    low, high = ends
    for _ in range(_SEARCH_STEPS):
        third = (high - low) / 3
        lower, upper = low + third, high - third
        rises = means(lower) <= means(upper)
        low, high = np.where(rises, low, lower), np.where(rises, upper, high)
    return np.asarray(np.min([means(constants) for constants in (low, high, *ends)], axis=0))


def _grouped(values: Floats, weights: Floats) -> tuple[Floats, Floats]:
    known = np.isfinite(values) & (weights > 0)
    order = np.argsort(values[known], kind="stable")
    values, weights = values[known][order], weights[known][order]
    if len(values):
        starts = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
        values, weights = values[starts], np.add.reduceat(weights, starts)
    if len(values) > MOST_GROUPS:
        reached = np.cumsum(weights)
        group = np.minimum(((reached - weights / 2) / reached[-1] * MOST_GROUPS).astype(np.int64), MOST_GROUPS - 1)
        starts = np.flatnonzero(np.concatenate([[True], group[1:] != group[:-1]]))
        total = np.add.reduceat(weights, starts)
        values, weights = np.add.reduceat(values * weights, starts) / total, total
    return values, weights


def _joined(columns: Sequence[tuple[Floats, Floats]]) -> QuantileSketch:
    longest = max(len(values) for values, _ in columns)
    sketch = QuantileSketch(np.zeros((len(columns), longest)), np.zeros((len(columns), longest)))
    for place, (values, weights) in enumerate(columns):
        sketch.values[place, : len(values)], sketch.weights[place, : len(values)] = values, weights
    return sketch


MOST_CLASSES = 10_000
MOST_VALUES = 1 << 18
"""Labels of one call that are summed up; of more an even selection of the rows is taken, as in an autoencoder."""


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


def no_labels() -> Floats:
    """Return sums over nothing."""
    return np.zeros(0)


@dataclass(slots=True)
class LabelSums:
    """Sums over the labels of rows, each times the row's weight."""

    rows: int = 0
    weight: float = 0.0
    """The sum of the rows' weights."""
    total: Floats = field(default_factory=no_labels)
    squares: Floats = field(default_factory=no_labels)
    classes: Floats = field(default_factory=no_labels)
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
            # Clipped: bincount allocates as much as the greatest label says. A negative one is of no class.
            numbers = np.minimum(labels.reshape(len(labels), -1).astype(np.int64), MOST_CLASSES)
            counts = np.bincount(np.maximum(numbers, 0).ravel(), (w[:, None] * (numbers >= 0)).ravel())
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
            self.total = padded_sum(self.total, other.total)
            self.squares = padded_sum(self.squares, other.squares)
            self.classes = padded_sum(self.classes, other.classes)
        self.sketch = self.sketch.merged([other.sketch for other in others])

    @property
    def shares(self) -> Floats:
        """The frequency of each class, or of 1 in each column."""
        return (self.classes if len(self.classes) else self.total) / self.weight

    @property
    def variances(self) -> Floats:
        """The variance of each column."""
        return np.maximum(self.squares / self.weight - (self.total / self.weight) ** 2, 0.0)


def padded_sum(a: Floats, b: Floats) -> Floats:
    """Return the sum of two arrays, the shorter one with zeros behind it."""
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    out = longer.copy()
    out[: len(shorter)] += shorter
    return out
