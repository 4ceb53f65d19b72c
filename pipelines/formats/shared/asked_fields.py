"""What fields ask of a nested record: a tree of the names on their paths. Pure; imports no pyarrow."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from millrace.consumers.errors import ConfigError
from millrace.pipelines.formats.shared.paths import PathStep, parse
from millrace.pipelines.schema import Field


@dataclass(slots=True)
class AskedField:
    """What is asked of the value under one name."""

    source: str
    """The first source that asks for it, by the schema's order: it is named where the value is at fault as a whole."""
    lists: int
    """How many lists are around each record, or around each element of the field."""
    leaf: Field | None = None
    """The field that is read from it; None where it is a record."""
    members: dict[str, "AskedField"] = field(default_factory=dict)
    """What is asked of the record, by name."""


def asked_of(fields: Iterable[Field]) -> dict[str, AskedField]:
    """Return what is asked of a record, by name. Raise ConfigError where two fields cannot both be read."""
    names: dict[str, AskedField] = {}
    for one in fields:
        _add(names, one)
    return names


def steps_of(one: Field) -> tuple[PathStep, ...]:
    """Return the steps to a field, with all the lists that it is in by its shape, the last ones around its elements."""
    path = parse(one.source)
    *outer, last = path.steps
    return (*outer, PathStep(last.name, len(one.shape) - path.lists + last.lists))


def _add(names: dict[str, AskedField], one: Field) -> None:
    *outer, last = steps_of(one)
    for step in outer:
        node = names.setdefault(step.name, AskedField(one.source, step.lists))
        _agree(node.leaf is None and node.lists == step.lists, node, one)
        names = node.members
    node = names.setdefault(last.name, AskedField(one.source, last.lists, one))
    _agree(node.leaf is not None and (node.leaf.dtype, node.lists) == (one.dtype, last.lists), node, one)


def _agree(agreed: bool, node: AskedField, one: Field) -> None:
    if not agreed:
        raise ConfigError(
            f"records: {node.source!r} and {one.source!r} do not agree on what the record holds there: a value, a "
            "record, or a list of how many dimensions; mend one of them"
        )
