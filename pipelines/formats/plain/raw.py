"""Records without structure: raw tensors, one text, or bytes of any kind.

Raw records are little-endian tensors, packed one after another in the schema's order. A record is exactly as long as
its fields, row-major, without padding or header: 4 bytes for a float32, 4 · n · m for a float32 of shape [n, m], one
byte (0 or 1) for a bool. Only records of that length are joined, so each row of the joined bytes is one record and a
neighbour cannot shift it. A single field is a view of the joined bytes; several fields are copied once each.

A text is UTF-8, which is checked for a chunk at a time; bytes are what the record holds. One field reads them as
`$value`. All run on the decode pool's threads and hold no state.
"""

from collections.abc import Iterator, Sequence
from itertools import compress

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.consumers.errors import ConfigError
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Int64s
from millrace.pipelines.formats.shared.arrow_columns import broken_by_numbers, words_not_allowed
from millrace.pipelines.formats.shared.paths import distinct_fields, empty_column
from millrace.pipelines.formats.shared.pieces import is_utf8, joined, only_good, without_empty
from millrace.pipelines.formats.shared.protocol import DecodedValues, Refusal
from millrace.pipelines.schema import Column, Field, Schema


class RawDecoder:
    """Decodes packed little-endian tensors."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._fields = distinct_fields(schema)
        self._row = np.dtype([(str(at), _stored(field), field.shape) for at, field in enumerate(self._fields)])
        if not self._row.itemsize:
            raise ConfigError("records: a raw record of this schema has no bytes; give a field at least one element")

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
    found = [*broken_by_numbers(stored, field)]
    if field.dtype == "bool":
        found.insert(0, (Reason.OUT_OF_RANGE, np.greater(stored, np.uint8(1))))
    elif stored.dtype.kind == "f":
        found.insert(0, (Reason.NOT_FINITE, ~np.isfinite(stored)))
    for reason, bad in found:
        if bad.any():
            yield reason, np.logical_or.reduce(bad.reshape(len(stored), -1), axis=1)


def _column(field: Field, stored: Column) -> Column:
    native = stored.astype(field.numpy_dtype.newbyteorder("="), copy=False) if field.dtype != "bool" else stored
    # Within packed rows a field is strided, and may begin at any byte.
    contiguous = np.require(native, requirements=("C", "ALIGNED"))
    return contiguous.view(np.bool_) if field.dtype == "bool" else contiguous


class BytesDecoder:
    """Takes values as they are."""

    def __init__(self, schema: Schema) -> None:
        """Take a schema whose only field of the value is the whole value."""
        self.schema = schema
        (self._field,) = distinct_fields(schema)

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        """Decode any number of values, also none."""
        records = [value for value in values if value]
        indices = np.array([index for index, value in enumerate(values) if value], np.int64)
        refused = [Refusal(index, Reason.EMPTY) for index, value in enumerate(values) if not value]
        column: Column = empty_column("string", (len(records),))
        column[:] = records
        good = np.ones(len(records), np.bool_)
        malformed = self._malformed(records)
        refused += [Refusal(index, Reason.MALFORMED) for index in indices[malformed].tolist()]
        good[malformed] = False
        denied = words_not_allowed(pa.array(records, pa.binary()), self._field) if self._field.one_of else None
        if denied is not None:
            refused += [Refusal(at, Reason.NOT_ALLOWED, self._field.source) for at in indices[good & denied].tolist()]
            good &= ~denied
        ordered = tuple(sorted(refused, key=lambda refusal: refusal.index))
        return only_good(DecodedValues(indices, {self._field.source: column}, ordered), good)

    def _malformed(self, records: Sequence[bytes]) -> list[int]:
        """Return the rows that are not what the format says."""
        del records
        return []


class TextDecoder(BytesDecoder):
    """Takes values that are UTF-8."""

    def _malformed(self, records: Sequence[bytes]) -> list[int]:
        # A newline between two texts is a character of neither, so that together they are UTF-8 if each of them is.
        if is_utf8(joined(records)):
            return []
        return [row for row, record in enumerate(records) if not is_utf8(record)]
