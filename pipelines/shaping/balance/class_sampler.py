"""Class sampler: it keeps, of each class, as many records as bring the classes to the shares that they are to have.

Whether a record is kept depends on its topic, partition and offset by a hash, and on how often each class came before,
in the partition. The rates change only between cells of offsets, so they do not depend on how records are cut. What is
kept weighs as much more as is left out of its class: so all that is summed by weight is of the stream as it is.

Owns the counts of one partition. Pure otherwise; runs anywhere.
"""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.consumers.records import Int64s, Partition
from millrace.pipelines.shaping.followed_states import Taken
from millrace.pipelines.shaping.options import PRIOR, BalanceOptions
from millrace.pipelines.stream.offset_mix import mix

CLASS = "class"
"""The column of a record's class: its place among the classes, or their number for any other."""
CELL = 1024
"""So many offsets have the same rates."""

Mask = npt.NDArray[np.bool_]


class Sample(NamedTuple):
    """Which records are kept."""

    kept: Mask
    weights: npt.NDArray[np.float32]
    """Of each record that is kept, by what its weight is multiplied. They average to 1."""


class ClassSampler:
    """How often each class came in a partition."""

    def __init__(self, options: BalanceOptions) -> None:
        self._options = options
        self._target = np.array([options.target[one] for one in options.classes])
        self.counts = np.zeros(len(self._target))
        """Of the cells before, decayed."""
        self.cell = -1
        self.seen = np.zeros(len(self._target), np.int64)
        """Of the present cell so far."""

    def take(self, taken: Taken) -> None:
        """Count records that follow those before."""
        for _, classes in self._cells(taken):
            self._count(classes)

    def sample(self, taken: Taken, salt: int) -> Sample:
        """Decide about records that follow those before, and count them."""
        rates, weights = np.empty(len(taken)), np.empty(len(taken))
        for here, classes in self._cells(taken):
            # The last one is that of other classes: they count as they come.
            balanced = np.append(self._weights(), 1.0)
            rates[here] = (balanced / balanced.max())[classes]
            weights[here] = (1 / balanced)[classes]
            self._count(classes)
        kept = _drawn(taken.offsets, salt) < rates
        return Sample(kept, weights[kept].astype(np.float32))

    def copy(self) -> "ClassSampler":
        """Return a copy that shares nothing that changes."""
        copied = ClassSampler(self._options)
        copied.counts, copied.cell, copied.seen = self.counts.copy(), self.cell, self.seen.copy()
        return copied

    def facts(self) -> dict[str, Any]:
        """Return the counts; JSON holds a float64 to the bit."""
        return {"cell": self.cell, "counts": self.counts.tolist(), "seen": self.seen.tolist()}

    def fill(self, facts: Any) -> None:
        """Take over what `facts` has returned."""
        self.cell = int(facts["cell"])
        self.counts = np.array(facts["counts"], np.float64)
        self.seen = np.array(facts["seen"], np.int64)

    def _cells(self, taken: Taken) -> Iterator[tuple[slice, npt.NDArray[Any]]]:
        """Yield the records of each cell, which is the present one meanwhile."""
        cells = taken.offsets // CELL
        ends = [*(np.flatnonzero(np.diff(cells)) + 1).tolist(), len(cells)]
        first = 0
        for end in ends if len(cells) else ():
            if (cell := int(cells[first])) != self.cell:
                self.counts = self.counts * 2.0 ** (-int(self.seen.sum()) / self._options.half_life) + self.seen
                self.seen = np.zeros_like(self.seen)
                self.cell = cell
            yield slice(first, end), taken.columns[CLASS][first:end]
            first = end

    def _count(self, classes: npt.NDArray[Any]) -> None:
        self.seen = self.seen + np.bincount(classes, minlength=len(self.seen) + 1)[: len(self.seen)]

    def _weights(self) -> npt.NDArray[np.float64]:
        shares: npt.NDArray[np.float64] = (self.counts + PRIOR * self._target) / (self.counts.sum() + PRIOR)
        return self._target / shares


def salt_of(partition: Partition) -> int:
    """Return by what the hashes of a partition differ from those of others."""
    return int.from_bytes(blake2b(str(partition).encode(), digest_size=8).digest(), "big", signed=True)


def _drawn(offsets: Int64s, salt: int) -> npt.NDArray[np.float64]:
    """Return a number from 0 to below 1 for each offset, as evenly spread as random ones."""
    with np.errstate(over="ignore"):
        mixed = mix(offsets + np.int64(salt))
    spread: npt.NDArray[np.float64] = (mixed.astype(np.uint64) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return spread
