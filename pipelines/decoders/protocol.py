"""The Decoder protocol: bytes of records in, columns and verdicts out.

A decoder is a pure function of each record's own bytes (any chunking, any neighbours: the same columns, the same
verdict). It runs in a pool of threads, so it holds no mutable state, and it leaves the GIL where the format allows.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from consumers.reasons import Reason
from consumers.records import Int64s
from pipelines.schema import Column, Schema


@dataclass(frozen=True, slots=True)
class Refusal:
    """The verdict on one record that could not be decoded. Names a field, never a value."""

    index: int
    """Which of the values that were handed in."""
    reason: Reason
    field: str | None = None
    """The record's name of the field at fault, where it is one field's fault."""


@dataclass(frozen=True, slots=True)
class DecodedValues:
    """Columns of the records that decode, and verdicts on those that do not."""

    kept: Int64s
    """Ascending indices, into the values handed in, of the rows that the columns hold."""
    columns: Mapping[str, Column]
    """One column a field of the schema, keyed by `Field.source`; `len(kept)` rows each, C-contiguous."""
    refused: tuple[Refusal, ...]
    """Ascending by index; with `kept` it names every value exactly once."""
    lengths: Mapping[str, Int64s] = dataclasses.field(default_factory=dict)
    """How many elements the record has, row by row, for each source whose lists vary in length; cut or not."""


class Decoder(Protocol):
    """Decodes values by a schema."""

    @property
    def schema(self) -> Schema:
        """What it decodes by."""

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        """Decode any number of values, none included."""
