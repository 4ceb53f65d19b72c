"""The balance of classes as the settings have it. Pure; runs anywhere; TensorFlow is not imported here."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

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
