"""Portraits: what the values of a field are like, in a few numbers, and sentences about how two of them differ.

Pure; runs anywhere, without TensorFlow.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from millrace.pipelines.gates.input_gate import Numbers
from millrace.training.trainer.inputs.distances import Cause, Columns, Floats, Reference, chance

LEVELS = 64
"""Parts of equal size by whose bounds numbers are told."""
QUANTILES = {"p05": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95}
_TOP = 20
_FAR = 0.25
"""In spreads between the quarters: a median that has moved as far says what has changed."""
_ALIKE = 0.15
_MOST_ALIKE = 0.4
"""How much shares may differ, beyond chance and at most, for a field to be as before."""
_MANY = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Portrait:
    """What the values of a field are like in a sample."""

    missing: float
    """The share of records without it."""
    distinct: int
    """Different values in the sample."""
    bounds: tuple[float, ...] = ()
    """Of numbers: the least, those below which 1, 2, … of 64 equal parts lie, and the greatest."""
    mean: float | None = None
    top: Mapping[bytes, float] = field(default_factory=dict)
    """Of texts: the shares of the most frequent."""
    length: float | None = None
    """Of texts: the median of their lengths."""

    @classmethod
    def of(cls, columns: Columns, numbers: int, at: int) -> Self:
        """Return that of the field at this place of a sample, which has so many that are numbers."""
        values = columns.column(at)
        return cls._of(values, columns.rows, len(values), None if at < numbers else columns.texts[at - numbers])

    @classmethod
    def of_reference(cls, reference: Reference, numbers: int, at: int) -> Self:
        """Return that of the field at this place of a reference."""
        texts = None if at < numbers else reference.texts[at - numbers]
        return cls._of(reference.column(at), reference.rows, int(reference.present[at]), texts)

    @classmethod
    def _of(cls, values: Numbers, rows: int, present: int, texts: Mapping[bytes, int] | None) -> Self:
        missing = 1 - present / max(1, rows)
        if texts is None:
            distinct = int((np.diff(values) > 0).sum()) + bool(len(values))
            mean = float(values.mean(dtype=np.float64)) if len(values) else None
            return cls(missing=missing, distinct=distinct, bounds=_bounds(values), mean=mean)
        frequent = sorted(texts.items(), key=lambda one: (-one[1], one[0]))[:_TOP]
        top = {value: count / max(1, rows) for value, count in frequent}
        length = float(np.median(values)) if len(values) else None
        return cls(missing=missing, distinct=len(texts), top=top, length=length)

    def quantile(self, share: float) -> float:
        """Return the number below which this share lies; there is at least one number."""
        return self.bounds[round(share * LEVELS)]

    def up_to(self, values: Floats) -> Floats:
        """Return the share of numbers up to each of these."""
        return np.asarray(np.interp(values, self.bounds, np.linspace(0, 1, len(self.bounds))))

    def resembles(self, other: Self, rows: int) -> bool:
        """Return whether this, of so many rows, is like another one of the same field."""
        alike = min(_MOST_ALIKE, _ALIKE + float(chance(rows, _MANY)))
        if abs(self.missing - other.missing) > alike:
            return False
        if self.bounds and other.bounds:
            mine, levels = np.array(self.bounds), np.linspace(0, 1, LEVELS + 1)
            theirs = np.array(other.bounds)
            # Between the bounds that are at most so many parts to the left, and to the right, of each.
            off = round(alike * LEVELS)
            inner = np.arange(off, LEVELS + 1 - off)
            return bool(
                len(levels) == len(mine)
                and (theirs[inner - off] <= mine[inner]).all()
                and (mine[inner] <= theirs[inner + off]).all()
            )
        every = {*self.top, *other.top}
        known = all(abs(self.top.get(value, 0.0) - other.top.get(value, 0.0)) <= alike for value in every)
        lengths = self.length, other.length
        return known and (None in lengths or 0.8 <= (lengths[0] or 1) / (lengths[1] or 1) <= 1.25)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "missing": self.missing,
            "distinct": self.distinct,
            "bounds": list(self.bounds),
            "mean": self.mean,
            "top": {value.decode("latin-1"): share for value, share in self.top.items()},
            "length": self.length,
        }

    @classmethod
    def of_json(cls, json: Mapping[str, Any]) -> Self:
        """Return what `to_json` has written."""
        top = {value.encode("latin-1"): share for value, share in json["top"].items()}
        return cls(**{**json, "bounds": tuple(json["bounds"]), "top": top})


def _bounds(values: Numbers) -> tuple[float, ...]:
    if not len(values):
        return ()
    at = np.rint(np.linspace(0, len(values) - 1, LEVELS + 1)).astype(np.int64)
    return tuple(values[at].astype(np.float64).tolist())


def apart(one: Portrait, other: Portrait) -> float:
    """Return how far two portraits of a field lie from each other, as a difference of shares, from 0 to 1."""
    found = abs(one.missing - other.missing)
    if one.bounds and other.bounds:
        edges = np.array([*one.bounds, *other.bounds])
        found = max(found, float(np.abs(one.up_to(edges) - other.up_to(edges)).max()))
    # Of an hour fewer of the frequent texts are known.
    for value in [*one.top, *other.top][:_TOP] if one.top and other.top else ():
        if value in one.top and value in other.top:
            found = max(found, abs(one.top[value] - other.top[value]))
    return found


def change_of(cause: Cause, then: Portrait, now: Portrait, text: tuple[str, float, float] | None = None) -> str:
    """Return what is different, as a clause; `text` says of what the share has changed."""
    if cause is Cause.MISSING:
        shares: tuple[str, float, float] | None = ("missing in", then.missing, now.missing)
    else:
        shares = text
    if shares is not None:
        return f"{shares[0]} {percent(shares[1])} → {percent(shares[2])} of the records"
    if cause is Cause.CHARACTERS:
        return "other characters than before"
    if cause is Cause.LENGTH:
        return f"median length {number(then.length)} → {number(now.length)}"
    return _numbers_changed(then, now)


def _numbers_changed(then: Portrait, now: Portrait) -> str:
    if not then.bounds or not now.bounds:
        return "other values than before"
    if now.bounds[0] == now.bounds[-1] and then.bounds[0] != then.bounds[-1]:
        return f"always {number(now.bounds[0])}, median before {number(then.quantile(0.5))}"
    names = {"median": 0.5, "quarter below": 0.25, "three quarters below": 0.75, "95 % below": 0.95, "5 % below": 0.05}
    spread = (then.quantile(0.75) - then.quantile(0.25)) or abs(then.quantile(0.5)) or 1.0
    moved = {name: abs(now.quantile(share) - then.quantile(share)) / spread for name, share in names.items()}
    # The median is what people read first.
    chosen = "median" if moved["median"] >= _FAR else max(moved, key=moved.__getitem__)
    if not moved[chosen]:
        return f"mean {number(then.mean)} → {number(now.mean)}"
    return f"{chosen} {number(then.quantile(names[chosen]))} → {number(now.quantile(names[chosen]))}"


def number(value: float | None) -> str:
    """Return a number as people read it."""
    if value is None:
        return "none"
    return f"{value:.0f}" if abs(value) >= 1000 and value == round(value) and abs(value) < 1e15 else f"{value:.3g}"


def percent(share: float) -> str:
    """Return a share as people read it."""
    return f"{100 * share:.3g} %" if share < 0.1 else f"{100 * share:.0f} %"
