"""What a batch does to the weights, recorded: the gradients that reach the optimizers, and what is assigned directly.

The proof compares these and not the weights after an update, because optimizers such as Adam divide a gradient by its
own size, so that a gradient twice as large gives the same weights. A gradient is taken before the optimizer clips it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from millrace.training.model.call.gradient_projection import NUMBERS

Pull = npt.NDArray[np.float64]
Pulls = Mapping[str, Pull]
"""By where it goes: the gradient, or the change of a weight that the step assigns by itself."""
_FLOOR = 1e-6
"""A variable whose whole pull is this small beside the largest one is rounding."""
_PROJECTED = 1.5
"""By how much lengths that are equal may differ once they are projected
(`training/model/call/gradient_projection.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBatch:
    """One batch, recorded."""

    pulls: Pulls
    loss: float
    graph: Any
    assigned: frozenset[str] = frozenset()
    """Weights and statistics that the step changed by itself."""

    def beyond(self, apart: "RecordedBatch") -> Pulls:
        """Return the pulls without those of another batch, such as one without rows."""
        return _difference(self.pulls, apart.pulls)


def together(one: Pulls, other: Pulls) -> Pulls:
    """Return the sum of two batches' pulls."""
    both = {place: one[place] + other[place] for place in one.keys() & other.keys()}
    return {**one, **other, **both}


def differing(one: Pulls, other: Pulls, tolerance: float, beside: Iterable[Pulls] = ()) -> list[str]:
    """Return the places where two pulls differ beyond rounding; `beside` are pulls whose rounding they share."""
    everything = [one, other, *beside]
    sizes = {place: max(_size(pulls.get(place)) for pulls in everything) for place in one.keys() | other.keys()}
    floor = _FLOOR * max(sizes.values(), default=0.0)
    gaps = {place: _size(_minus(one[place], other.get(place)) if place in one else other[place]) for place in sizes}
    wrong = [place for place, gap in gaps.items() if not gap <= tolerance * sizes[place] + floor]
    return sorted(wrong, key=lambda place: -gaps[place])


def ratio(one: Pulls, other: Pulls) -> float:
    """Return how many times as far `one` pulls in the direction of `other`; NaN where that pulls nowhere."""
    along = sum(float(np.vdot(one[place], other[place])) for place in one.keys() & other.keys())
    length = sum(float(np.vdot(pull, pull)) for pull in other.values())
    return along / length if length else float("nan")


def clips(batches: Sequence[tuple[Pulls, Pulls]], tolerance: float, *, alone: bool) -> bool:
    """Return whether clipping explains why the second pulls are shorter than the first, which reach no bound.

    The batches have equally many rows. A norm that is clipped comes out at the bound, so a batch that pulls harder is
    shortened by more; clipping by parts (values, variables, units) turns a gradient. Dividing by the rows that are
    present shortens all of these batches alike. `alone` says that nothing but rows pulls, such as a regularizer.
    """
    factors, lengths = list[float](), list[float]()
    for free, pulled in batches:
        factor = ratio(pulled, free)
        of_factor = {place: factor * pull for place, pull in free.items()}
        if not _length(_difference(pulled, of_factor)) <= tolerance * _length(pulled):
            return not (alone and any(_turned_back(free[place], pulled.get(place), tolerance) for place in free))
        factors.append(factor)
        lengths.append(_length(pulled))
    if max(factors) > 1 + tolerance or max(factors) - min(factors) <= tolerance * max(factors):
        return False
    shortened = [length for factor, length in zip(factors, lengths, strict=True) if factor < 1 - tolerance]
    return max(lengths) <= _PROJECTED * min(shortened)


def _turned_back(free: Pull, pulled: Pull | None, tolerance: float) -> bool:
    """Return whether some number has the other sign, which no clipping gives it; False where numbers are projected."""
    if pulled is None or pulled.size >= NUMBERS:
        return False
    floor = tolerance * np.abs(pulled).max(initial=0.0)
    return bool(np.any((np.abs(pulled) > floor) & (np.sign(pulled) == -np.sign(free))))


def _difference(one: Pulls, other: Pulls) -> Pulls:
    return {place: _minus(pull, other.get(place)) for place, pull in one.items()}


def _length(pulls: Pulls) -> float:
    return float(np.sqrt(sum(float(np.vdot(pull, pull)) for pull in pulls.values())))


def divides_by(graph: Any, sizes: Iterable[float]) -> bool:
    """Return whether one of these numbers is written into the graph, as the size of a batch that a step divides by."""
    wanted = [size for size in sizes if size]
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    for node in nodes:
        tensor = node.attr["value"].tensor if node.op == "Const" else None
        if tensor is None or tensor.tensor_shape.dim:
            continue
        if not ((dtype := tf.as_dtype(tensor.dtype)).is_floating or dtype.is_integer):
            continue
        value = float(np.real(tf.make_ndarray(tensor)))
        if any(np.isclose(value, size, rtol=1e-6) for size in wanted):
            return True
    return False


def _minus(pull: Pull, other: Pull | None) -> Pull:
    return pull if other is None else pull - other


def _size(pull: Pull | None) -> float:
    return 0.0 if pull is None else float(np.sqrt(np.sum(np.square(pull))))
