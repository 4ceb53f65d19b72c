"""A decoder that also reads the fields of `records.slices`, and refuses no record for them.

A field that only slices are made of decides nothing: a record that lacks it, or holds something else there, is learnt
like any other, and has no value for it. Such a chunk is decoded again without these fields, as a verdict on one field
hides those on others.
"""

from collections.abc import Sequence
from dataclasses import replace

from millrace.pipelines.formats.shared.paths import default_of, empty_column, is_envelope
from millrace.pipelines.formats.shared.protocol import DecodedValues, Decoder
from millrace.pipelines.schema import Schema


class SlicedDecoder:
    """Decodes with the slices' fields, or without those that would refuse a record."""

    def __init__(self, sliced: Decoder, plain: Decoder) -> None:
        self._sliced, self._plain = sliced, plain
        known = {field.source for field in plain.schema.fields}
        self._own = {
            field.source: field
            for field in sliced.schema.slices
            if field.source not in known and not is_envelope(field.source)
        }

    @property
    def schema(self) -> Schema:
        """The schema of the rows, with the slices."""
        return self._sliced.schema

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        """Decode any number of values."""
        found = self._sliced.decode(values)
        if not any(refusal.field in self._own for refusal in found.refused):
            return found
        plain = self._plain.decode(values)
        columns, rows = dict(plain.columns), plain.kept.searchsorted(found.kept)
        for source, field in self._own.items():
            column = columns[source] = empty_column(field.dtype, (len(plain.kept),))
            column.fill(default_of(field))
            column[rows] = found.columns[source]
        return replace(plain, columns=columns)
