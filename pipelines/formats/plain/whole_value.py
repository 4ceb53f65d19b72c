"""Records that are one value: a text, or any bytes, which one field reads as `$value`.

A text is UTF-8, which is checked for a chunk at a time; bytes are whatever the record holds. Pure; runs on the decode
pool's threads and holds no state.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millrace.consumers.reasons import Reason
from millrace.pipelines.formats.shared.paths import distinct_fields, empty_column
from millrace.pipelines.formats.shared.pieces import only_good
from millrace.pipelines.formats.shared.protocol import DecodedValues, Refusal
from millrace.pipelines.formats.shared.rules import words_not_allowed
from millrace.pipelines.formats.shared.text import is_utf8, joined
from millrace.pipelines.schema import Column, Schema


class BytesDecoder:
    """Takes values as they are."""

    def __init__(self, schema: Schema) -> None:
        """Take a schema whose only field of the value is the whole value."""
        self._schema = schema
        (self._field,) = distinct_fields(schema)

    @property
    def schema(self) -> Schema:
        """The schema that the decoder follows."""
        return self._schema

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
