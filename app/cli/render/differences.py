"""The differences between two checkpoints, in words and as JSON. Pure; nothing is read here."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from millrace.app.monitoring.lineage_view import event_time_of, skips_of
from millrace.training.history.comparison import Comparison, Pair, VariableDifference
from millrace.training.history.lineage import CheckpointLineage

_WIDTH = 14
_SHORT = 12
VARIABLES = ("variable", "shape", "largest", "mean", "differing")


def as_json(found: Comparison) -> dict[str, Any]:
    """Return the whole comparison for a program."""
    return {
        "checkpoints": [lineage.found.number for lineage in found.lineages],
        "manifest": found.manifest,
        "made_with": found.made_with,
        "hyperparameters": found.hyperparameters,
        "history": found.history,
        "event_time": _pair_of(found, _event_time),
        "skips": _pair_of(found, _skips),
        "model": [_without_none(one) for one in found.model],
        "optimizer": [_without_none(one) for one in found.optimizer],
    }


def in_words(found: Comparison) -> Iterator[str]:
    """Give everything but the variables of the model, which are a table."""
    first, second = (lineage.found.number for lineage in found.lineages)
    yield _fact("checkpoints", f"{first} and {second}")
    for name, pair in found.manifest.items():
        yield _fact(name, _from_to(pair))
    for partition, facts in found.history.items():
        yield _fact(partition, ", ".join(f"{name} {_moved(pair)}" for name, pair in facts.items()))
    for label, read in (("event time", _event_time), ("skips", _skips)):
        pair = _pair_of(found, read)
        if pair[0] != pair[1]:
            yield _fact(label, _from_to((_listed(pair[0]), _listed(pair[1]))))
    for name, pair in {**found.made_with, **found.hyperparameters}.items():
        yield _fact(name, _from_to((_short(name, pair[0]), _short(name, pair[1]))))
    for one in found.optimizer:
        if one.values is not None and one.differing:
            yield _fact(one.name, _from_to(one.values))


def rows(found: Comparison) -> list[list[str]]:
    """Return the variables of the model, one per row."""
    return [[one.name, _shapes(one), *_figures(one)] for one in found.model]


def summary(found: Comparison) -> str:
    """Return how many variables differ."""
    same = sum(one.differing == 0 for one in found.model)
    others = len(found.optimizer)
    still = sum(one.differing == 0 for one in found.optimizer)
    return (
        f"{same} of {len(found.model)} variables of the model are the same, and {still} of {others} of the optimizer's"
    )


def _figures(one: VariableDifference) -> list[str]:
    if one.differing is None:
        return ["", "", "only one has it" if None in one.shapes else "other shapes"]
    if one.largest is None or one.mean is None:
        return ["not finite", "not finite", f"{one.differing:,}"]
    return [f"{one.largest:.3g}", f"{one.mean:.3g}", f"{one.differing:,}"]


def _shapes(one: VariableDifference) -> str:
    shapes = [f"{shape} {dtype}" for shape, dtype in zip(one.shapes, one.dtypes, strict=True) if shape is not None]
    return " and ".join(dict.fromkeys(shapes))


def _pair_of(found: Comparison, read: Any) -> Pair:
    first, second = found.lineages
    return read(first), read(second)


def _event_time(lineage: CheckpointLineage) -> Mapping[str, str] | None:
    span = event_time_of(lineage.event_span)
    return None if span is None else span.model_dump()


def _skips(lineage: CheckpointLineage) -> list[dict[str, Any]]:
    views = skips_of(lineage.orders, lineage.partitions) or []
    return [view.model_dump(exclude_none=True) for view in views]


def _listed(value: Any) -> str | None:
    if isinstance(value, Mapping):
        return " to ".join(value.values())
    if isinstance(value, Sequence):
        return ", ".join(f"{one['order']} ({one['passed']:,} of {one['offsets']:,} skipped)" for one in value)
    return None


def _from_to(pair: Pair) -> str:
    return " -> ".join("none" if value in (None, "") else str(value) for value in pair)


def _moved(pair: Pair) -> str:
    """Write a change as `120 -> 150 (+30)`."""
    before, after = ((value or 0) for value in pair)
    return f"{before:,} -> {after:,} ({after - before:+,})"


def _short(name: str, value: Any) -> Any:
    return value[:_SHORT] if name.endswith("sha256") and isinstance(value, str) else value


def _without_none(one: VariableDifference) -> dict[str, Any]:
    return {name: value for name, value in asdict(one).items() if value is not None}


def _fact(label: str, text: str) -> str:
    return f"{label:<{_WIDTH}}{text}" if len(label) < _WIDTH else f"{label}  {text}"
