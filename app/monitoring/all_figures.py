"""The figures of all rooms: which there are, their places in `/status`, and their readings. Pure; runs anywhere.

Each room keeps the figures of its capability in a file of the name `figures.py`. They are found by that name, so that a
new capability names its figures nowhere else.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, Field, create_model

import millrace
from millrace.consumers.metric import Metric, NoMetric, PartFigures, Reported, metrics_of, numbers_without_metric


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


def by_label(short: str, values: Mapping[str, float]) -> Iterator[Reading]:
    """Yield one reading for each label."""
    for label, value in values.items():
        yield Reading(short, value, (label,))


Answer = TypeVar("Answer", bound=BaseModel)


@cache
def kinds() -> tuple[type[PartFigures], ...]:
    """Return the figures of every room."""
    (root,) = map(Path, millrace.__path__)
    # The folders of the product may be links, which Path.rglob would not follow.
    folders = sorted(Path(found) for found, _, files in os.walk(root, followlinks=True) if "figures.py" in files)
    modules = [import_module(".".join(["millrace", *folder.relative_to(root).parts, "figures"])) for folder in folders]
    return tuple(
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, PartFigures) and kind.__module__ == module.__name__
    )


def with_figures(within: str) -> Callable[[type[Answer]], type[Answer]]:
    """Return a decorator that gives a part of `/status` a field for all figures that it shows."""

    def extended(shape: type[Answer]) -> type[Answer]:
        added: dict[str, Any] = {}
        for kind in kinds():
            if kind.within == within:
                shown: Any = Mapping[str, kind] if kind.per else kind  # type: ignore[valid-type]
                added[kind.name] = (shown | None, Field(None, description=kind.__doc__))
        return create_model(shape.__name__, __base__=shape, __doc__=shape.__doc__, __module__=shape.__module__, **added)

    return extended


def places() -> Iterator[tuple[str, Metric | NoMetric]]:
    """Yield each number of figures in `/status`: its place, with `*` for any label, and its metric."""
    for kind in kinds():
        if kind.within is not None:
            whole = ".".join([*kind.within.split(), kind.name, *("*" for _ in kind.per.split())])
            for field, metric in metrics_of(kind).items():
                if not metric.elapsed and field in (one.name for one in fields(kind)):  # type: ignore[arg-type]  # each is a dataclass
                    yield f"{whole}.{field}{'.*' if len(metric.labels) > bool(kind.per) else ''}", metric
            for field, why in numbers_without_metric(kind).items():
                yield f"{whole}.{field}", why


def shown_within(within: str, figures: Mapping[str, Reported]) -> dict[str, Any]:
    """Return the fields of a part of `/status` that are figures."""
    names = {kind.name for kind in kinds() if kind.within == within}
    return {name: found for name, found in figures.items() if name in names}


def readings(figures: Iterable[Reported], at: float) -> Iterator[Reading]:
    """Yield the readings of all figures at this time, seconds since 1970; none of a value that is not known."""
    for found in figures:
        each = found.items() if isinstance(found, Mapping) else [("", found)]
        for label, one in each:
            labels = (label,) if label else ()
            for field, metric in metrics_of(type(one)).items():
                value = getattr(one, field)
                if metric.elapsed:
                    value = metric.unless if value is None else max(0.0, at - value)
                if isinstance(value, Mapping):
                    yield from (Reading(metric.short, inner, (*labels, key)) for key, inner in value.items())
                elif value is not None:
                    yield Reading(metric.short, value, labels)
