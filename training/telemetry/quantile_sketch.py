"""A bounded, deterministic summary of weighted numbers, by column: their medians, and means of losses over them.

Equal values are kept as one, exactly, up to `MOST` of them. More are grouped into `MOST` groups of about the same
weight, each of which keeps the mean of its values. So a sum of absolute distances stays exact beside the middle group,
however far out the outliers are. Two summaries are merged by grouping their groups. Pure; runs on any thread.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MOST = 128
"""Groups of a column: their ranks are known to within 0.8 %."""
MOST_COLUMNS = 16
MOST_VALUES = 16_384
"""Values that one summary is made of; of more an even selection is taken, as sorting costs the trainer's time."""
Floats = npt.NDArray[np.float64]
ElementLoss = Callable[[Floats, Floats], Floats]
"""The losses of values [columns, n] by a constant of each column, [columns, 1]."""
_SEARCH_STEPS = 25


@dataclass(frozen=True, slots=True)
class QuantileSketch:
    """The groups of each column, in ascending order; what is left of the arrays has the weight 0."""

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
        step = -(-rows.size // MOST_VALUES)
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
    if len(values) > MOST:
        reached = np.cumsum(weights)
        group = np.minimum(((reached - weights / 2) / reached[-1] * MOST).astype(np.int64), MOST - 1)
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
