"""What a look at some records gives: their format, and their contents as Python objects, by source. Pure.

Nested records become flat rows: the values by the sources that the config would read them from. An object gives a
source for each of its members, a list of objects one for each member of its elements. Where a path holds an object in
one record and something else in another, or an object of very many names, as a map of ids is, the value stays as it is.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millrace.pipelines.formats.shared.paths import Path as SourcePath
from millrace.pipelines.formats.shared.paths import PathStep
from millrace.pipelines.schema import RegisteredSchema, Schemas

ENOUGH = 0.9
"""The share of records that a format must fit."""

Row = Mapping[str, Any]
ReadRow = Callable[[bytes], Row | None]
"""Gives what a record holds, by the names of its fields; None where it does not hold it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The contents of some records, as Python objects."""

    format: str
    rows: Sequence[Row]
    """Those that fit the format, by source."""
    looked_at: int
    section: Mapping[str, Any] = field(default_factory=dict)
    """What else the records' section says of the format."""
    nullable: frozenset[tuple[str, ...]] = frozenset()
    """What its schema lets be absent, with all within: names from the outermost on. Yet every record may have it."""
    hints: Mapping[str, str] = field(default_factory=dict)
    """What to say beside a setting of the section."""
    empty_is_absent: bool = False
    """Whether an empty text is one that the record lacks."""
    notes: tuple[str, ...] = ()
    """What else the user should know of the records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaHints:
    """What the user says of schemas that records are read by, but do not hold."""

    schemas: Schemas | None = None
    """Those of the registry; None where none is named."""
    registry: tuple[str, ...] = ()
    """Its URLs."""
    file: Path | None = None
    """A schema of Avro, a .proto file or a descriptor set."""
    written: str = ""
    """The file's name as the config has it."""
    message: str | None = None
    """Of Protobuf: the message's name."""


NO_HINTS = SchemaHints()


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSample:
    """Some records of a topic, and what is known of them."""

    values: Sequence[bytes]
    beside: Sequence[Row]
    """What Kafka has beside each value, by source."""
    columns: tuple[str, ...] = ()
    """The names of the columns, if the user has given them."""
    hints: SchemaHints = NO_HINTS
    described: bytes | None = None
    """The contents of the file of `hints`, if the records are looked at by it."""
    registered: Mapping[int, RegisteredSchema] = field(default_factory=dict)
    """The schemas of a registry by whose numbers the records begin."""


def joined(rows: Sequence[Row], beside: Sequence[Row]) -> list[Row]:
    """Return the rows with what is beside each."""
    return [{**row, **more} for row, more in zip(rows, beside, strict=True)]


def fitting(
    form: str,
    sample: DraftSample,
    read: ReadRow,
    section: Row | None = None,
    nullable: frozenset[tuple[str, ...]] = frozenset(),
) -> Look | None:
    """Return the look at records of a format; None where too few of them can be read so."""
    values = sample.values
    found = [(row, more) for row, more in zip(map(read, values), sample.beside, strict=True) if row is not None]
    if not found or len(found) < ENOUGH * len(values):
        return None
    rows = joined(by_source([row for row, _ in found]), [more for _, more in found])
    return Look(format=form, rows=rows, looked_at=len(values), section=section or {}, nullable=nullable)


def text_value(text: str) -> Any:
    """Return the number or truth value that a text says; the text where it says neither, None where it is empty."""
    if not text.strip():
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


Steps = tuple[PathStep, ...]
_MOST_NAMES = 50
"""An object of more names, over all records, is a map; its keys are named one by one by whoever wants them."""
_DEEPEST = 8


def by_source(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with a value for each source that any of them has, None where a row lacks it."""
    shapes = _Shapes()
    for row in rows:
        shapes.note((), row)
    leaves = {str(SourcePath(steps)): steps for steps in shapes.leaves(())}
    return [{source: _value_at(row, steps) for source, steps in leaves.items()} for row in rows]


class _Shapes:
    """What the paths of some records hold."""

    def __init__(self) -> None:
        self._names: defaultdict[Steps, dict[str, None]] = defaultdict(dict)
        self._others: set[Steps] = set()
        """Paths that hold something else than objects."""

    def note(self, steps: Steps, value: Any) -> None:
        """Note what a path holds, and the paths below it."""
        if isinstance(value, Mapping) and len(steps) < _DEEPEST:
            self._names[steps].update(dict.fromkeys(value))
            for name, inside in value.items():
                self.note((*steps, PathStep(name)), inside)
        elif isinstance(value, list) and any(isinstance(element, Mapping) for element in value):
            for element in value:
                self.note(_each(steps), element)
        elif value is not None and value != []:
            self._others.add(steps)

    def leaves(self, steps: Steps) -> Iterator[Steps]:
        """Yield the paths that hold values, in the order in which the records show them."""
        each = _each(steps)
        if self._opened(steps):
            for name in self._names[steps]:
                yield from self.leaves((*steps, PathStep(name)))
        elif each != steps and self._opened(each) and steps not in self._others and steps not in self._names:
            yield from self.leaves(each)
        else:
            yield steps

    def _opened(self, steps: Steps) -> bool:
        names = self._names.get(steps, {})
        few = not steps or len(names) <= _MOST_NAMES
        return bool(names) and few and "" not in names and steps not in self._others


def _each(steps: Steps) -> Steps:
    """Return the path of the elements of a list."""
    return (*steps[:-1], PathStep(steps[-1].name, steps[-1].lists + 1)) if steps and not steps[-1].lists else steps


def _value_at(value: Any, steps: Steps) -> Any:
    if not steps or not isinstance(value, Mapping):
        return value if not steps else None
    inside = value.get(steps[0].name)
    if steps[0].lists and isinstance(inside, list):
        return [_value_at(element, steps[1:]) for element in inside]
    return _value_at(inside, steps[1:])
