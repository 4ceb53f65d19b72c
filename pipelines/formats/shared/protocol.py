"""The Decoder protocol: from the bytes of records to columns and verdicts.

A decoder is a pure function of each record's own bytes: with any chunks and any neighbours, the columns and the verdict
are the same. It runs on a pool of threads, so it has no mutable state, and it releases the GIL where the format allows.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from millrace.consumers.reasons import Reason
from millrace.consumers.records import Int64s
from millrace.pipelines.formats.shared.field_fits import SchemaFit
from millrace.pipelines.schema import Column, Schema


@dataclass(frozen=True, slots=True)
class Refusal:
    """The verdict on one record that could not be decoded. It names a field, never a value."""

    index: int
    """The index of the record in the values that were passed in."""
    reason: Reason
    field: str | None = None
    """The record's name of the field at fault; None where it is not the fault of one field."""
    schema: int | None = None
    """The number of the schema that wrote the record; None where it names none."""
    detail: str | None = None
    """Where its schema is at fault, and not the record: how, in words. Every record of the schema is at fault then."""


@dataclass(frozen=True, slots=True)
class DecodedValues:
    """Columns of the records that decode, and verdicts on those that do not."""

    kept: Int64s
    """The index, in the values that were passed in, of each row of the columns; ascending."""
    columns: Mapping[str, Column]
    """One column a field of the value, keyed by `Field.source`; `len(kept)` rows each, C-contiguous."""
    refused: tuple[Refusal, ...]
    """Ascending by index; with `kept` it names every value exactly once."""
    lengths: Mapping[str, Int64s] = dataclasses.field(default_factory=dict)
    """The number of elements in the record, before any cut, row by row, for each source whose lists vary in length."""
    schemas: tuple[tuple[SchemaFit, int], ...] = ()
    """The schemas of a registry that wrote the records, each with the index of its first one; ascending by that."""


class Decoder(Protocol):
    """Decodes values by a schema."""

    @property
    def schema(self) -> Schema:
        """The schema that the decoder follows."""

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        """Decode any number of values, also none."""
