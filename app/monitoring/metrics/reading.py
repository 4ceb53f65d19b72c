"""A reading: one value of one metric. Pure; runs anywhere."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Distribution(NamedTuple):
    """How often what was seen fell into which bin."""

    bounds: tuple[float, ...]
    """Upper ones; the last bin has none."""
    counts: tuple[int, ...]
    total: float
    """All that was seen added up."""


class Reading(NamedTuple):
    """By the short name of the catalogue."""

    short: str
    value: float | Distribution
    labels: tuple[str, ...] = ()
    """The values of the labels that the catalogue names, in its order."""


def known(short: str, value: float | None, *labels: str) -> Iterator[Reading]:
    """Yield a reading, or nothing where the value is not known."""
    if value is not None:
        yield Reading(short, value, labels)


def one_of(short: str, chosen: str, every: Iterator[str]) -> Iterator[Reading]:
    """Yield 1 for the chosen label and 0 for each other, so that a query need not tell absent from false."""
    for each in every:
        yield Reading(short, float(each == chosen), (each,))


def by_label(short: str, values: Mapping[str, float]) -> Iterator[Reading]:
    """Yield one reading for each label."""
    for label, value in values.items():
        yield Reading(short, value, (label,))
