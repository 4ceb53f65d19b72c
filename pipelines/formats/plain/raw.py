"""Raw records: little-endian tensors, packed one after another in the schema's order.

A record is exactly as long as its fields, row-major, without padding or header: 4 bytes for a float32, 4 · n · m for a
float32 of shape [n, m], one byte (0 or 1) for a bool. Only records of that length are joined, so each row of the
joined bytes is one record and a neighbour cannot shift it. A single field is a view of the joined bytes; several
fields are copied once each. Runs on the decode pool's threads and holds no state.
"""

from collections.abc import Iterator, Sequence
from itertools import compress

import numpy as np
import numpy.typing as npt

from millrace.consumers.errors import ConfigError
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Int64s
from millrace.pipelines.formats.shared.paths import distinct_fields
from millrace.pipelines.formats.shared.pieces import without_empty
from millrace.pipelines.formats.shared.protocol import DecodedValues, Refusal
from millrace.pipelines.formats.shared.rules import broken_by_numbers
from millrace.pipelines.schema import Column, Field, Schema


class RawDecoder:
    """Decodes packed little-endian tensors."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._fields = distinct_fields(schema)
        self._row = np.dtype([(str(at), _stored(field), field.shape) for at, field in enumerate(self._fields)])
        if not self._row.itemsize:
            raise ConfigError("records: a raw record of this schema has no bytes; give a field at least one element")

    @property
    def schema(self) -> Schema:
        """The schema that the decoder follows."""
        return self._schema

    @property
    def record_bytes(self) -> int:
        """The length of a record."""
        return self._row.itemsize

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        """Decode any number of values, also none."""
        records, indices, refused = self._of_this_size(values)
        text = b"".join(records)
        rows = np.frombuffer(text, self._row, count=len(indices))
        good = np.ones(len(rows), dtype=bool)
        for at, field in enumerate(self._fields):
            for reason, bad in _faults(field, rows[str(at)]):
                refused += [Refusal(index, reason, field.source) for index in indices[good & bad].tolist()]
                good &= ~bad
        if not good.all():
            rows, indices = rows[good], indices[good]
        columns = {field.source: _column(field, rows[str(at)]) for at, field in enumerate(self._fields)}
        return DecodedValues(indices, columns, tuple(sorted(refused, key=lambda refusal: refusal.index)))

    def _of_this_size(self, values: Sequence[bytes | None]) -> tuple[Sequence[bytes], Int64s, list[Refusal]]:
        """Return the values that are as long as a row, with their indices, and a refusal of each other."""
        records, indices, refused = without_empty(values)
        size = self._row.itemsize
        if set(map(len, records)) <= {size}:  # a fifth of what looking at each costs
            return records, indices, refused
        fits = np.fromiter(map(len, records), np.int64, len(records)) == size
        refused += [Refusal(index, Reason.MALFORMED) for index in indices[~fits].tolist()]
        return [*compress(records, fits.tolist())], indices[fits], refused


def _stored(field: Field) -> np.dtype[np.generic]:
    """Return the dtype of the stored bytes. A bool is read as a byte, so that others than 0 and 1 are refused."""
    return np.dtype(np.uint8) if field.dtype == "bool" else np.dtype(field.dtype).newbyteorder("<")


def _faults(field: Field, stored: Column) -> Iterator[tuple[Reason, npt.NDArray[np.bool_]]]:
    """Yield the rows that a field refuses, by reason."""
    for reason, bad in _faulty_elements(field, stored):
        if bad.any():
            yield reason, np.logical_or.reduce(bad.reshape(len(stored), -1), axis=1)


def _faulty_elements(field: Field, stored: Column) -> Iterator[tuple[Reason, npt.NDArray[np.bool_]]]:
    if field.dtype == "bool":
        yield Reason.OUT_OF_RANGE, np.greater(stored, np.uint8(1))
    elif stored.dtype.kind == "f":
        yield Reason.NOT_FINITE, ~np.isfinite(stored)
    yield from broken_by_numbers(stored, field)


def _column(field: Field, stored: Column) -> Column:
    native = stored.astype(field.numpy_dtype.newbyteorder("="), copy=False) if field.dtype != "bool" else stored
    # Within packed rows a field is strided, and may begin at any byte.
    contiguous = np.require(native, requirements=("C", "ALIGNED"))
    return contiguous.view(np.bool_) if field.dtype == "bool" else contiguous
