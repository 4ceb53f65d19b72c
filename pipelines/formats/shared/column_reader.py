"""From Arrow arrays, one for each source, to the columns of the good rows and verdicts on the others.

Every columnar format shares it: the format finds the arrays, of the types that `arrow_type` gives and null where a
record lacks the field; what their values mean is the same for all. Holds no state; runs on the decode pool's threads.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.consumers.reasons import Reason
from millrace.consumers.records import Int64s
from millrace.pipelines.formats.shared.arrow_columns import REASONS, Faults, Show, read_column, read_lists
from millrace.pipelines.formats.shared.pieces import only_good
from millrace.pipelines.formats.shared.protocol import DecodedValues, Refusal
from millrace.pipelines.formats.shared.sources import default_of, empty_column, pad_of
from millrace.pipelines.schema import Column, Field

Infinity: TypeAlias = Callable[[int, Field], Reason]
"""Of a row and a field that shows an infinity: whether it was written as such, or is a number too large."""


def written_as_such(row: int, field: Field) -> Reason:  # noqa: ARG001 - an Infinity
    """Return the reason for an infinity in a format that keeps the very bits of a number."""
    return Reason.NOT_FINITE


class ColumnReader:
    """Reads the fields of a schema, in its order."""

    def __init__(self, fields: Iterable[Field]) -> None:
        """Raise ConfigError where a default or a pad does not fit its field."""
        self.fields: Mapping[str, Field] = {field.source: field for field in fields}
        """By source, in the order of the schema: of several faults in a record the first is the verdict."""
        self._pads = {source: pad_of(field) for source, field in self.fields.items()}
        self._defaults = {source: default_of(field) for source, field in self.fields.items()}

    def no_rows(self) -> DecodedValues:
        """Return every column, empty: the first of the pieces that are joined."""
        columns = {source: empty_column(field.dtype, (0, *field.shape)) for source, field in self.fields.items()}
        lengths = {source: np.empty(0, np.int64) for source, pad in self._pads.items() if pad is not None}
        return DecodedValues(np.empty(0, np.int64), columns, (), lengths)

    def read(
        self,
        arrays: Mapping[str, pa.Array | pa.ChunkedArray],
        indices: Int64s,
        infinity: Infinity = written_as_such,
        found: Mapping[str, Faults] | None = None,
    ) -> DecodedValues:
        """Return the columns of the good rows, and a verdict on each other row, for its first field at fault.

        `arrays` has a row for each of `indices`, which are those of the values that were passed in. `found` has the
        faults by source that the format itself has found; the greatest of a row's counts.
        """
        columns: dict[str, Column] = {}
        lengths: dict[str, Int64s] = {}
        refused: list[Refusal] = []
        good = np.ones(len(indices), dtype=bool)
        for source, field in self.fields.items():
            default, pad = self._defaults[source], self._pads[source]
            if pad is None:
                columns[source], faults = read_column(arrays[source], field, default)
            else:
                columns[source], faults, lengths[source] = read_lists(arrays[source], field, default, pad)
            faults = _greater(faults, None if found is None else found.get(source))
            if faults is not None:
                refused += _verdicts(indices, field, faults, good & (faults > 0), infinity)
                good &= faults == 0
        return only_good(DecodedValues(indices, columns, tuple(refused), lengths), good)


def _greater(one: Faults | None, other: Faults | None) -> Faults | None:
    if one is None or other is None:
        return other if one is None else one
    greater: Faults = np.maximum(one, other)
    return greater


def _verdicts(
    indices: Int64s, field: Field, faults: Faults, bad: npt.NDArray[np.bool_], infinity: Infinity
) -> list[Refusal]:
    rows = np.flatnonzero(bad)
    return [
        Refusal(index, infinity(row, field) if show == Show.INFINITE else REASONS[show], field.source)
        for row, index, show in zip(rows.tolist(), indices[rows].tolist(), faults[rows].tolist(), strict=True)
    ]
