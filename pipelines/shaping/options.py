"""Options of the shaping: balance, reservoir, augment. Pure; runs anywhere, without TensorFlow."""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import Field

from millrace.consumers.errors import ConfigError
from millrace.consumers.section import Count
from millrace.consumers.units import Share
from millrace.pipelines.schema import Schema
from millrace.pipelines.shaping.shaper import ShapingSection

LABEL = "label"
_MOST_CLASSES = 100_000
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

    size: Count | None = Field(
        None,
        ge=1,
        le=100_000_000,
        description="The number of rows that are remembered, a uniform sample of all learnt rows. They are held once, "
        "by a group each worker's share, and are in each checkpoint. Null: no row is.",
        examples=[100_000],
    )
    share: Share = Field(
        0.2,
        gt=0,
        le=0.9,
        description="The share of remembered rows in the learning: with 0.2, or 20 %, one remembered row is learnt "
        "beside every four new rows.",
    )

    by: str | None = Field(
        None,
        min_length=1,
        description="label, or the name of one of several labels: each of its classes gets an equal share of the rows, "
        "and of a class they are a uniform sample, so that a rare class is remembered as well as others. The classes "
        "are the values of one_of, or from min to max. Null: rare classes are as rare among the rows.",
        examples=["label"],
    )

    @property
    def used(self) -> bool:
        """Whether the settings ask for it."""
        return self.size is not None

    def shaper(self, schema: Schema) -> None:
        """Raise ConfigError if the classes are not known; nothing is shaped before the blocks."""
        named = self.classes_of(schema)
        if self.size is not None and named is not None and self.size < len(named[1]):
            raise ConfigError(f"reservoir.size: {self.size} rows for {len(named[1])} classes; make it larger")

    def classes_of(self, schema: Schema) -> tuple[str, tuple[float, ...]] | None:
        """Return the name of the label and its classes, as the model gets them; None if no class is told from others.

        Raise ConfigError if that is no label, or one of which the classes are not known.
        """
        if self.by is None:
            return None
        labels = {field.name: field for field in schema.labels}
        if self.by == LABEL and len(labels) == 1:
            [label] = labels.values()
        elif self.by in labels:
            label = labels[self.by]
        else:
            raise ConfigError(f"reservoir.by: {self.by!r} is no label; there is {', '.join(labels) or 'none'}")
        label = label.as_learnt
        values: Sequence[Any] = label.one_of or ()
        if label.dtype == "bool":
            values = (0, 1)
        elif not values and "int" in label.dtype and label.min is not None and label.max is not None:
            values = range(int(label.min), int(label.max) + 1)
        if not values or label.dtype == "string" or len(values) > _MOST_CLASSES:
            raise ConfigError(
                f"reservoir.by: which classes {label.name} has is not known; list them in its one_of, or for whole "
                f"numbers give it min and max, for at most {_MOST_CLASSES:,} classes"
            )
        return label.name, tuple(sorted(map(float, values)))

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
