"""Options of the shaping: balance, reservoir, augment. Pure; runs anywhere, without TensorFlow."""

import inspect
import math
from collections.abc import Callable
from typing import Any

from pydantic import Field

from millrace.consumers.section import Count
from millrace.consumers.units import Share
from millrace.pipelines.shaping.shaper import ShapingSection

LABEL = "label"
PRIOR = 10.0
"""Records that count for the target's shares before any was seen. So the first weights are 1, and one record of a class
that was not seen yet cannot have any weight."""


def number_of(one: str) -> float:
    """Return the number that a class is; infinity where it is a text."""
    try:
        return float(one)
    except ValueError:
        return math.inf


class ReservoirSettings(ShapingSection):
    """A sample of the rows that were learnt; some of them are learnt again beside each batch."""

    of_rows = False
    alone = "a reservoir"

    size: Count | None = Field(
        None,
        ge=1,
        le=100_000_000,
        description="The number of rows that are remembered, a uniform sample of all learnt rows. They are held once, "
        "and are in each checkpoint. Null: no row is.",
        examples=[100_000],
    )
    share: Share = Field(
        0.2,
        gt=0,
        le=0.9,
        description="The share of remembered rows in the learning: with 0.2, or 20 %, one remembered row is learnt "
        "beside every four new rows.",
    )

    @property
    def used(self) -> bool:
        """Whether the settings ask for it."""
        return self.size is not None

    def beside(self, batch_size: int, replicas: int) -> int:
        """Return how many rows are learnt beside a batch, the same number on each replica."""
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
