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
ElementLoss = Callable[[Floats, float], Floats]
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
        if not self.values.size:
            return None
        columns = zip(self.values, self.weights, strict=True)
        return float(np.mean([_least(loss, values[weights > 0], weights[weights > 0]) for values, weights in columns]))


def _least(loss: ElementLoss, values: Floats, weights: Floats) -> float:
    def mean(constant: float) -> float:
        return float(np.average(loss(values, constant), weights=weights))

    # Between two of the values first, as a few outliers may lie so far out that halving the range would not come near.
    left, right = 0, len(values) - 1
    while right - left > 2:
        middle = (left + right) // 2
        if mean(values[middle]) <= mean(values[middle + 1]):
            right = middle + 1
        else:
            left = middle
    low, high = float(values[left]), float(values[right])
    for _ in range(_SEARCH_STEPS):
        third = (high - low) / 3
        if mean(low + third) <= mean(high - third):
            high -= third
        else:
            low += third
    return min(mean(low), mean(high), mean(float(values[left])), mean(float(values[right])))


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
