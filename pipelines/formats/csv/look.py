"""Which CSV records hold a text where a number should be, by their bytes, for all of a chunk at once.

Pure functions. What is found are hints: such records are read as texts, and there a text is judged in any case.
"""

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from millrace.consumers.records import Int64s
from millrace.pipelines.formats.csv import CsvField
from millrace.pipelines.formats.shared.pieces import begins_of

_DIGITS, _FRACTION = b"0123456789+- \t", b".eE"
_OF_A_FRACTION, _OTHER, _WORD = 1, 2, 8
_WITHIN = np.array([(1 << 8 * size) - 1 for size in range(_WORD + 1)], np.uint64)
"""By a number of bytes: a word of eight bytes that has all bits of as many."""


class CsvLook:
    """The columns that hold numbers."""

    def __init__(self, places: Sequence[CsvField], columns: int, delimiter: str, lists: str | None) -> None:
        self._columns, self._delimiter = columns, ord(delimiter)
        numbers = [place for place in places if place.field.dtype not in {"string", "bool"}]
        whole = [place for place in numbers if not place.field.dtype.startswith("float")]
        self._marks = _marks_of((lists or "").encode(), delimiter.encode())
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
        marks = np.frombuffer(text.translate(self._marks) + bytes(_WORD), np.uint8)
        found = np.zeros(len(records), np.bool_)
        others = np.flatnonzero(marks == _OTHER)
        rows = begins.searchsorted(others, "right") - 1
        columns = (inner[rows] < others[:, None]).sum(axis=1)
        found[rows[self._numbers[columns]]] = True
        words = np.ndarray((len(text) + 1,), "<u8", marks, strides=(1,))
        for column in self._whole:
            starts = inner[:, column - 1] + 1 if column else begins[:-1]
            ends = inner[:, column] if column < self._columns - 1 else begins[1:] - 1
            found[_marked(words, starts, ends)] = True
        return np.flatnonzero(found)


def _marked(words: npt.NDArray[np.uint64], starts: Int64s, ends: Int64s) -> Int64s:
    """Return which of these places hold a mark, eight bytes of each at a time."""
    lengths = ends - starts
    found = np.flatnonzero(words[starts] & _WITHIN[np.minimum(lengths, _WORD)])
    longer = np.flatnonzero(lengths > _WORD)
    if not len(longer):
        return found
    return np.concatenate([found, longer[_marked(words, starts[longer] + _WORD, ends[longer])]])


def _columns_of(places: Collection[CsvField]) -> list[int]:
    return [int(column) for place in places for column in place.columns]


def _marks_of(between: bytes, delimiter: bytes) -> bytes:
    """Return what each byte is: part of a whole number, of a fraction, or of neither."""
    marks = bytearray([_OTHER]) * 256
    for code in _FRACTION + delimiter + b"\n":
        marks[code] = _OF_A_FRACTION
    for code in _DIGITS + between:
        marks[code] = 0
    return bytes(marks)
