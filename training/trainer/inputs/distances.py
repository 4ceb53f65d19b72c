"""How far a sample of records lies from those before it, field by field. Pure; runs anywhere, without TensorFlow.

Each distance is a difference of shares, from 0 to 1: of the values up to some value (Kolmogorov and Smirnov's), of a
text's value, of texts that were not there before, of records without the field. So it says how large a change is, not
how sure: more records make it no larger. What chance adds to it is bounded by `chance`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.pipelines.gates.input_gate import Numbers, Texts
from millrace.pipelines.schema import Column
from millrace.pipelines.shaping.followed_states import packed, unpacked

Floats = npt.NDArray[np.float64]
Bits = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]
_EDGES = 24
"""Values at which shares are compared: at the middle of as many equal parts of the values before."""
_FEWEST = 48
"""Fewer values of a field than this, now or before, say nothing."""
_SURE = 2.2
"""In standard errors of a share, by which chance alone differs at most; the least effect comes on top of it."""
COMPARED = 512
"""Rows of a sample that are compared, which NumPy sorts five times as fast, a value, as more of them."""
_FREQUENT = 32
POINTS = 64
"""Values of a sorted column that stand for all of them."""


class Cause(IntEnum):
    """What is different of a field."""

    MISSING = 0
    VALUES = 1
    UNSEEN = 2
    """Texts that the records before did not have."""
    LENGTH = 3
    CHARACTERS = 4
    REFUSED = 5
    """Records that are set aside for the field."""


def chance(one: Any, other: Any) -> Any:
    """Return by how much two samples of so many values of the same thing differ at most; each has some."""
    return _SURE * np.sqrt(1.0 / one + 1.0 / other)


@dataclass(frozen=True, slots=True)
class Columns:
    """The values of a sample by column: numbers, then the lengths of texts, then the means of their bytes."""

    values: Numbers
    """[column, row], ascending in each column; NaN, which stand last, are values that are missing."""
    present: Places
    """How many are not missing, by column."""
    texts: Sequence[Mapping[bytes, int]]
    """How often each value comes, of each column of texts."""
    rows: int

    @classmethod
    def of(cls, numbers: Numbers, texts: Texts) -> "Columns":
        """Return those of some rows: [row, column]."""
        values = np.ascontiguousarray(numbers.T)
        values.sort(axis=1)
        present = len(numbers) - np.isnan(values).sum(axis=1)
        return cls(values, present, [Counter(texts[:, at].tolist()) for at in range(texts.shape[1])], len(numbers))

    def column(self, at: int) -> Numbers:
        """Return the values of a column that are there, ascending."""
        return np.asarray(self.values[at, : self.present[at]])


@dataclass(frozen=True, slots=True)
class Digest:
    """What is kept of a sample for the reference."""

    points: Numbers
    """[column, point], ascending: values in the middle of as many equal parts; NaN in a column without any."""
    present: Places
    """How many values there were, by column."""
    texts: Sequence[Mapping[bytes, int]]
    rows: int

    @classmethod
    def of(cls, columns: Columns) -> "Digest":
        """Return that of a sample."""
        at = (columns.present[:, None] * _MIDDLES).astype(np.int64)
        return cls(np.take_along_axis(columns.values, at, axis=1), columns.present, columns.texts, columns.rows)

    def arrays(self, name: str) -> dict[str, Column]:
        """Return it as arrays of a checkpoint."""
        values = np.array([value for counts in self.texts for value in counts], object)
        counts = np.array([count for counts in self.texts for count in counts.values()], np.int64)
        return {
            f"{name}.points": self.points,
            f"{name}.present": self.present,
            f"{name}.rows": np.array([self.rows]),
            f"{name}.sizes": np.array([len(counts) for counts in self.texts], np.int64),
            f"{name}.counts": counts,
            **packed(f"{name}.values", values),
        }

    @classmethod
    def of_arrays(cls, name: str, arrays: Mapping[str, Any], texts: int) -> "Digest":
        """Return the digest that `arrays` has written, with so many columns of texts."""
        found: list[dict[bytes, int]] = [{} for _ in range(texts)]
        if texts:
            values, counts = unpacked(arrays, f"{name}.values", ()).tolist(), arrays[f"{name}.counts"].tolist()
            ends = np.cumsum(arrays[f"{name}.sizes"]).tolist()
            for at, end in enumerate(ends):
                first = ends[at - 1] if at else 0
                found[at] = dict(zip(values[first:end], counts[first:end], strict=True))
        points, present = (np.array(arrays[f"{name}.{column}"]) for column in ("points", "present"))
        return cls(points, present, found, int(arrays[f"{name}.rows"][0]))


_MIDDLES = (np.arange(POINTS) + 0.5) / POINTS


class Reference:
    """What records before were like, by the digests of some samples."""

    def __init__(self, digests: Sequence[Digest]) -> None:
        self.rows = sum(one.rows for one in digests)
        self.present: Places = np.sum([one.present for one in digests], axis=0)
        counts = zip(*(one.texts for one in digests), strict=True)
        self.texts: Sequence[Mapping[bytes, int]] = [_added(some) for some in counts]
        self.points = np.concatenate([one.points for one in digests], axis=1)
        self.points.sort(axis=1)
        there = self.points.shape[1] - np.isnan(self.points).sum(axis=1)
        at = (there[:, None] * (np.arange(_EDGES) + 0.5) / _EDGES).astype(np.int64)
        edges = np.take_along_axis(self.points, np.minimum(at, self.points.shape[1] - 1), axis=1)
        self.edges = np.concatenate([edges, np.nextafter(edges, edges.dtype.type(-np.inf))], axis=1)
        """[column, edge]: each edge, and the number just below it. So ties are compared from both sides."""
        self.up_to = np.zeros(self.edges.shape)
        """The share of values up to each of them."""
        for column in np.flatnonzero(there).tolist():
            self.up_to[column] = up_to(self.points[column, : there[column]], self.edges[column])

    def column(self, at: int) -> Numbers:
        """Return the points of a column, ascending."""
        points = self.points[at]
        return np.asarray(points[: len(points) - int(np.isnan(points).sum())])


def _added(counts: Iterable[Mapping[bytes, int]]) -> Mapping[bytes, int]:
    total = Counter[bytes]()
    for one in counts:
        total.update(one)
    return total


def up_to(values: Numbers, edges: Numbers) -> Floats:
    """Return the share of ascending values up to each edge."""
    return np.asarray(values.searchsorted(edges, "right") / len(values), np.float64)


class Distances(NamedTuple):
    """How far a sample lies from the reference, by column of numbers and of texts."""

    columns: Floats
    """Of the values of each column."""
    by_chance: Floats
    missing: Floats
    """How much the share without a value has changed, by column."""
    values: Floats
    """How much the share of a text has changed at most, by column of texts."""
    unseen: Floats
    """The share of texts that the reference does not have."""
    shares_by_chance: float
    """Of these three."""


def distances(now: Columns, then: Reference) -> Distances:
    """Compare a sample with what was before."""
    enough = (now.present >= _FEWEST) & (then.present >= _FEWEST)
    shares = then.up_to.copy()
    for column in np.flatnonzero(enough).tolist():
        shares[column] = up_to(now.column(column), then.edges[column])
    found = np.abs(shares - then.up_to).max(axis=1, initial=0.0)
    missing = np.abs(now.present / max(1, now.rows) - then.present / max(1, then.rows))
    values, unseen = np.zeros(len(now.texts)), np.zeros(len(now.texts))
    for column, (counts, known) in enumerate(zip(now.texts, then.texts, strict=True)):
        _, values[column] = most_changed(counts, now.rows, known, then.rows)
        unseen[column] = sum(count for value, count in counts.items() if value not in known) / max(1, now.rows)
    by_chance = np.where(enough, chance(np.maximum(now.present, 1), np.maximum(then.present, 1)), 1.0)
    return Distances(found, by_chance, missing, values, unseen, float(chance(max(1, now.rows), max(1, then.rows))))


def most_changed(
    now: Mapping[bytes, int], size: int, then: Mapping[bytes, int], before: int
) -> tuple[bytes | None, float]:
    """Return the frequent text whose share has changed most, and by how much."""
    frequent = dict.fromkeys(
        [*(v for v, _ in Counter(now).most_common(_FREQUENT)), *(v for v, _ in Counter(then).most_common(_FREQUENT))]
    )
    best, far = None, 0.0
    for value in frequent:
        apart = abs(now.get(value, 0) / max(1, size) - then.get(value, 0) / max(1, before))
        if apart > far:
            best, far = value, apart
    return best, far


def with_derived(numbers: Numbers, texts: Texts, absent: Sequence[bytes | None]) -> Numbers:
    """Return the numbers of some rows with the lengths of their texts, and the means of the texts' bytes, behind them.

    An empty text, and one that stands for a missing one, has neither.
    """
    if not texts.shape[1]:
        return numbers
    lengths = np.empty(texts.shape, numbers.dtype)
    means = np.empty(texts.shape, numbers.dtype)
    for column in range(texts.shape[1]):
        values: list[bytes] = texts[:, column].tolist()
        size = np.fromiter(map(len, values), np.int64, len(values))
        ends = np.cumsum(size)
        sums = np.concatenate([[0], np.cumsum(np.frombuffer(b"".join(values), np.uint8), dtype=np.int64)])
        gone = size == 0
        if absent[column] is not None:
            gone |= np.fromiter((value == absent[column] for value in values), np.bool_, len(values))
        lengths[:, column] = np.where(gone, np.nan, size)
        means[:, column] = np.where(gone, np.nan, (sums[ends] - sums[ends - size]) / np.maximum(size, 1))
    return np.concatenate([numbers, lengths, means], axis=1)


class Gained(NamedTuple):
    """Which rows have what there is more of now."""

    rows: Bits
    before: float
    """The share of such rows before."""
    less: bool = False
    """Whether it is what the rows do not have."""

    @classmethod
    def of(cls, has: Bits, before: float) -> "Gained":
        """Return that of rows that have something, of which there is more or less than before."""
        return cls(has, before) if has.mean() >= before else cls(~has, 1 - before, less=True)


def gained(values: Numbers, column: int, then: Reference) -> Gained:
    """Return which values are among those of which a column has more than before."""
    held = np.sort(values[~np.isnan(values)])
    apart = up_to(held, then.edges[column]) - then.up_to[column]
    at = int(np.abs(apart).argmax())
    edge, share = then.edges[column, at], float(then.up_to[column, at])
    with np.errstate(invalid="ignore"):
        return Gained(values <= edge, share) if apart[at] > 0 else Gained(values > edge, 1 - share)
