"""Options of the shaping: balance, reservoir, augment. Pure; runs anywhere, without TensorFlow."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

LABEL = "label"
PRIOR = 10.0
"""Records that count for the target's shares before any was seen. So the first weights are 1, and one record of a class
that was not seen yet cannot have any weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceOptions:
    """The shares that the classes are to have in what is learnt."""

    target: Mapping[str, float]
    """By class, as text; they add up to 1."""
    by: str = LABEL
    """The label, or the name of one of several, or of a feature."""
    how: Literal["weight", "resample"] = "weight"
    """Whether classes get their shares by weights alone, or by leaving records out."""
    half_life: float = 100_000
    """After so many records a record counts half as much for the shares that the stream has."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes, as text; numbers by size."""
        return tuple(sorted(self.target, key=lambda one: (number_of(one), one)))


def number_of(one: str) -> float:
    """Return the number that a class is; infinity where it is a text."""
    try:
        return float(one)
    except ValueError:
        return math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservoirOptions:
    """A memory of what was learnt."""

    size: int
    """The most rows that it holds."""
    share: float
    """Of all rows that are learnt, how many are of the past."""
    rows: int | None = None
    """How many of them are learnt beside each batch; None for as many as make the share, 0 to remember alone."""

    def beside(self, batch_size: int, replicas: int) -> int:
        """Return how many rows are learnt beside a batch, the same number on each replica."""
        if self.rows is not None:
            return self.rows
        return max(1, round(self.share / (1 - self.share) * batch_size / replicas)) * replicas


Augment = Callable[..., Any]
SEED = "seed"
"""The parameter by which the user's `augment` asks for a seed."""


def takes_seed(augment: Augment) -> bool:
    """Return whether the function has a parameter of the name `seed`."""
    try:
        return SEED in inspect.signature(augment).parameters
    except ValueError:
        return False  # a callable that does not tell its signature
