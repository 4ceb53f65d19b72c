"""Rows of JSON records that Python has parsed: for a few records, a seventh of what pyarrow takes for one.

Only values of which it is certain that `JsonDecoder` reads the very same are taken: one value a field, at the top of
the record, within its rules. For all others None is returned, and the decoder reads the text, and names what is wrong.
A property test holds both to each other, bit for bit. Pure functions of the records; imports no pyarrow.
"""

import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from millrace.pipelines.formats.shared.paths import default_of, distinct_fields, steps_of
from millrace.pipelines.formats.shared.protocol import DecodedValues
from millrace.pipelines.schema import Column, Field, Schema

FEW = 16
"""More records than this are read faster by pyarrow."""
_MINUS_ZERO = re.compile(rb"[\s:]-0(?![.eE\d])")
"""A whole number that is another float than 0, which Python does not tell apart."""
_INT64 = range(-(2**63), 2**63)
_EXACT = range(-(2**53), 2**53 + 1)
_LEAST, _MOST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
_LOW_BITS, _HALF = (1 << 29) - 1, 1 << 28
"""Of the 52 bits of a float64's fraction: those that a float32 lacks, and half of its last place."""


class ParsedRows:
    """Makes columns of records that Python has parsed."""

    def __init__(self, schema: Schema) -> None:
        fields = distinct_fields(schema)
        self._fields = [_plain_field(field) for field in fields]

    def decode(self, records: Sequence[Any], text: bytes) -> DecodedValues | None:
        """Return the columns that `JsonDecoder` makes of these records; None if that is not certain.

        `text` is where they stand, by which keys that a record repeats were found: such a record is no plain `dict`.
        """
        if len(records) > FEW or not all(map(_is_plain, records)) or b"\0" in text or _MINUS_ZERO.search(text):
            return None
        columns = dict[str, Column]()
        for field in self._fields:
            column = None if field is None else field.column(records)
            if field is None or column is None:
                return None
            columns[field.source] = column
        return DecodedValues(np.arange(len(records)), columns, ())


class _PlainField:
    """A field that is one value at the top of a record."""

    def __init__(self, field: Field, name: str) -> None:
        self.source, self._name, self._default = field.source, name, default_of(field)
        self._read: Callable[[Any], Any] = _READ.get(field.dtype, _whole)
        self._dtype: np.dtype[Any] = np.dtype(field.numpy_dtype)
        whole = np.iinfo(field.dtype) if self._dtype.kind in "iu" else None
        self._range = None if whole is None else range(int(whole.min), int(whole.max) + 1)
        # Rules hold of a number as the column has it.
        self._least, self._most = (None if each is None else self._rounded(each) for each in (field.min, field.max))
        self._listed = None if field.one_of is None else {self._rounded(each) for each in field.one_of}

    def column(self, records: Sequence[Mapping[str, Any]]) -> Column | None:
        """Return the field of all records; None if one is not certain."""
        values = list[Any]()
        for record in records:
            given = record.get(self._name)
            value = self._default if given is None else self._read(given)
            if value is None or (given is not None and not self._allowed(value)):
                return None
            values.append(value)
        column = np.empty(len(values), self._dtype)
        column[:] = values
        return column

    def _allowed(self, value: Any) -> bool:
        if self._range is not None and value not in self._range:
            return False
        if self._least is None and self._most is None and self._listed is None:
            return True
        rounded = self._rounded(value)
        return (
            (self._least is None or rounded >= self._least)
            and (self._most is None or rounded <= self._most)
            and (self._listed is None or rounded in self._listed)
        )

    def _rounded(self, value: Any) -> Any:
        if self._dtype.kind == "O":
            return value if isinstance(value, bytes) else str(value).encode()
        return self._dtype.type(value).item()


def _plain_field(field: Field) -> _PlainField | None:
    """Return a field as one that is read here; None if it is not."""
    steps = steps_of(field)
    if len(steps) > 1 or steps[0].lists or field.shape or field.pad is not None or field.dtype == "float16":
        return None
    return _PlainField(field, steps[0].name)


def _is_plain(record: Any) -> bool:
    """Return whether a record is one object of plain values, which both parsers take."""
    return type(record) is dict and all(
        value is None
        or value is True
        or value is False
        or (type(value) is int and value in _INT64)
        or (type(value) is float and math.isfinite(value))
        or (type(value) is str and _text(value) is not None)
        for value in record.values()
    )


def _text(value: Any) -> bytes | None:
    if type(value) is not str or "\0" in value:
        return None
    try:
        return value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return None


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


def _truth(value: Any) -> bool | None:
    return value if type(value) is bool else None


def _float64(value: Any) -> float | None:
    if type(value) is int:
        return float(value) if value in _EXACT else None
    return value if type(value) is float else None


def _float32(value: Any) -> float | None:
    """Return a float64 that rounds to the float32 that the text itself rounds to.

    Rounded twice, a text comes out otherwise only where the float64 lies in the middle between two float32.
    """
    number = _float64(value)
    if number is None or not number:
        return number
    if not _LEAST < abs(number) < _MOST:
        return None
    (bits,) = struct.unpack("<q", struct.pack("<d", number))
    return None if bits & _LOW_BITS == _HALF else number


_READ: Mapping[str, Callable[[Any], Any]] = {
    "float64": _float64,
    "float32": _float32,
    "bool": _truth,
    "string": _text,
}
"""What reads the values of a dtype; whole numbers are all others."""
