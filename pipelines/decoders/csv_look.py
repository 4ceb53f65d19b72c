"""Which CSV records hold a text where a number should be, by their bytes, for all of a chunk at once.

Pure functions. What is found are hints: such records are read as texts, and there a text is judged in any case.
"""

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from consumers.records import Int64s
from pipelines.decoders.csv_columns import CsvField
from pipelines.decoders.text import begins_of

Bytes = npt.NDArray[np.uint8]
_DIGITS, _FRACTION = b"0123456789+- \t", b".eE"


class CsvLook:
    """The columns that hold numbers."""

    def __init__(self, places: Sequence[CsvField], columns: int, delimiter: str, lists: str | None) -> None:
        self._columns, self._delimiter = columns, ord(delimiter)
        numbers = [place for place in places if place.field.dtype not in {"string", "bool"}]
        whole = [place for place in numbers if not place.field.dtype.startswith("float")]
        between = b"" if lists is None else lists.encode()
        self._other = _no_bytes_of(_DIGITS + _FRACTION + between + delimiter.encode() + b"\n")
        self._fraction = _no_bytes_of(_DIGITS + between)
        self._numbers = np.zeros(columns, np.bool_)
        self._numbers[_columns_of(numbers)] = True
        self._whole = _columns_of(whole)

    def suspects(self, records: Sequence[bytes], text: bytes) -> Int64s:
        """Return the records that are probably read as texts only, ascending; none where delimiters are in quotes."""
        codes, begins = np.frombuffer(text, np.uint8), begins_of(records)
        delimiters = np.flatnonzero(codes == self._delimiter)
        if len(delimiters) != len(records) * (self._columns - 1):
            return np.empty(0, np.int64)
        inner = delimiters.reshape(len(records), self._columns - 1)
        bounds = np.column_stack([begins[:-1] - 1, inner, begins[1:] - 1])
        found = np.zeros(len(records), np.bool_)
        others = np.flatnonzero(self._other[codes])
        rows, columns = np.divmod(bounds[:, 1:].ravel().searchsorted(others), self._columns)
        found[rows[self._numbers[columns]]] = True
        if self._whole:
            before = np.cumsum(self._fraction[codes], dtype=np.int32)
        for column in self._whole:
            starts, ends = bounds[:, column], bounds[:, column + 1]
            # The byte before the column counts at both ends: a delimiter, or the newline of another record.
            found |= before[ends - 1] != np.where(starts < 0, 0, before[starts])
        return np.flatnonzero(found)


def _columns_of(places: Collection[CsvField]) -> list[int]:
    return [int(column) for place in places for column in place.columns]


def _no_bytes_of(known: bytes) -> npt.NDArray[np.bool_]:
    others = np.ones(256, np.bool_)
    others[list(known)] = False
    return others
