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
    """A reading, or none where the value is not known yet or does not exist."""
    if value is not None:
        yield Reading(short, value, labels)


def one_of(short: str, chosen: str, every: Iterator[str]) -> Iterator[Reading]:
    """1 for what is the case, 0 for what is not, so that nobody has to tell what is not there from what is not so."""
    for each in every:
        yield Reading(short, float(each == chosen), (each,))


def by_label(short: str, values: Mapping[str, float]) -> Iterator[Reading]:
    """One reading for each."""
    for label, value in values.items():
        yield Reading(short, value, (label,))
