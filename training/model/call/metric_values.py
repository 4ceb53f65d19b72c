"""Turns what metrics return (numbers, arrays, mappings of them) into one number for each name. Pure; runs anywhere.

An array is shown by its mean, under the metric's name, and by its components, as in `f1_score[2]`. All metrics together
have at most `MOST_COMPONENTS` of them; an array that no longer fits is shown by its mean alone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

MOST_COMPONENTS = 100


@dataclass(frozen=True, slots=True)
class Shown:
    """Where the value of one name comes from."""

    metric: str
    """The metric's name."""
    index: tuple[int, ...] | None = None
    """Its place in the metric's array; None for the whole metric."""
    key: str | None = None
    """Its key, where the metric returns a mapping."""


@dataclass(frozen=True, slots=True)
class ValueNames:
    """The names under which the results of the metrics are shown."""

    shown: Mapping[str, Shown]
    """An array of too many components is shown by its mean alone."""

    @classmethod
    def of(cls, results: Mapping[str, Any]) -> "ValueNames":
        """Name the values of results that have the shapes of all later ones."""
        shown, left = dict[str, Shown](), MOST_COMPONENTS
        for metric, key, value in _arrays(results):
            name = metric if key is None else key
            if name in shown:
                name = f"{metric}_{name}"
            shown[name] = Shown(metric, None, key)
            if 1 < value.size <= left:
                left -= value.size
                for index in np.ndindex(value.shape):
                    shown[f"{name}{list(index)}".replace(" ", "")] = Shown(metric, index, key)
        return cls(shown)

    def values(self, results: Mapping[str, Any]) -> dict[str, float]:
        """Return the value of each name."""
        arrays = {(metric, key): value for metric, key, value in _arrays(results)}
        return {name: _value(arrays[at.metric, at.key], at.index) for name, at in self.shown.items()}


def _arrays(results: Mapping[str, Any]) -> Iterator[tuple[str, str | None, npt.NDArray[np.float64]]]:
    for metric, result in results.items():
        if isinstance(result, Mapping):
            yield from ((metric, str(key), np.asarray(value, np.float64)) for key, value in result.items())
        else:
            yield metric, None, np.asarray(result, np.float64)


def _value(value: npt.NDArray[np.float64], index: tuple[int, ...] | None) -> float:
    if index is not None:
        return float(value[index])
    finite = value[np.isfinite(value)]
    # A class that never occurred may have no score, which says nothing about the others.
    return float(finite.mean()) if finite.size else float("nan")
