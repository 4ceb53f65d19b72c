"""What a look at some records gives: their format, and their contents as Python objects, by source. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millrace.app.tools.init.nested_rows import by_source
from millrace.pipelines.schema import Schemas

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
    columns: tuple[str, ...] = ()
    """Of CSV."""
    delimiter: str = ","
    named: bool = True
    """Whether the columns' names are the records' own."""
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


def joined(rows: Sequence[Row], beside: Sequence[Row]) -> list[Row]:
    """Return the rows with what is beside each."""
    return [{**row, **more} for row, more in zip(rows, beside, strict=True)]


def fitting(
    form: str, values: Sequence[bytes], beside: Sequence[Row], read: ReadRow, section: Row | None = None
) -> Look | None:
    """Return the look at records of a format; None where too few of them can be read so."""
    found = [(row, more) for row, more in zip(map(read, values), beside, strict=True) if row is not None]
    if not found or len(found) < ENOUGH * len(values):
        return None
    rows = joined(by_source([row for row, _ in found]), [more for _, more in found])
    return Look(format=form, rows=rows, looked_at=len(values), section=section or {})
