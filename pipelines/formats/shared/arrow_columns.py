"""From Arrow arrays, one for each source, to the columns of the good rows and verdicts on the others.

A column of numbers is a view of Arrow's memory; lists of a fixed shape are a reshaped view. Every columnar format
shares it: the format finds the arrays, of the types that `arrow_type` gives and null where a record lacks the field;
what their values mean is the same for all. Holds no state; runs on the decode pool's threads.

The rules of a field, `min`, `max` and `one_of`, are checked here too, for a whole column at once. Bounds and listed
numbers are first rounded to the dtype of the field, as the numbers of the records are: `max: 0.1` lets the float32
nearest to 0.1 pass. Compiled code judges plain records by the same rules (`plain_columns.h`).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.consumers.reasons import Reason
from millrace.consumers.records import Int64s
from millrace.pipelines.formats.shared.paths import default_of, empty_column, pad_of
from millrace.pipelines.formats.shared.pieces import only_good
from millrace.pipelines.formats.shared.protocol import DecodedValues, Refusal
from millrace.pipelines.schema import Column, DType, Field

Mask = npt.NDArray[np.bool_]


def broken_by_numbers(column: Column, field: Field) -> Iterator[tuple[Reason, Mask]]:
    """Yield the elements that break a rule, by reason. NaN breaks no bound; it has a reason of its own."""
    if field.min is not None:
        yield Reason.OUT_OF_RANGE, np.less(column, np.asarray(field.min, column.dtype))
    if field.max is not None:
        yield Reason.OUT_OF_RANGE, np.greater(column, np.asarray(field.max, column.dtype))
    if field.one_of is not None:
        yield Reason.NOT_ALLOWED, np.isin(column, np.array(field.one_of, column.dtype), invert=True)


def words_not_allowed(words: pa.Array, field: Field) -> Mask | None:
    """Return a mask of the texts that are not listed, or None where the field has no list. No text may be null."""
    if field.one_of is None:
        return None
    listed = pa.array([str(word).encode() for word in field.one_of], words.type)
    allowed: Mask = pc.is_in(words, value_set=listed).to_numpy(zero_copy_only=False)
    return ~allowed


def indices_of(column: Column, field: Field) -> Column:
    """Return the index of each text, in the field's dtype. The decoder has refused every text that is not listed."""
    listed = pa.array([text.encode() for text in field.classes or ()], pa.binary())
    indices = pc.index_in(pa.array(column.ravel(), pa.binary()), value_set=listed)
    shaped: Column = indices.to_numpy(zero_copy_only=False).astype(field.numpy_dtype).reshape(column.shape)
    return np.ascontiguousarray(shaped)


Faults = npt.NDArray[np.uint8]
"""A Show for each row."""


class Show(IntEnum):
    """The fault that a row of a column shows. Of several faults in one field the greatest is the verdict."""

    GOOD = 0
    NOT_ALLOWED = 1
    NOT_FINITE = 2
    OUT_OF_RANGE = 3
    INFINITE = 4
    """An infinity, written as such or overflowed: the text of the record shows which."""
    WRONG_SHAPE = 5
    MISSING = 6
    WRONG_TYPE = 7
    """Found by the code that reads the text; the columns of Arrow hold no value of a wrong type."""


REASONS: Mapping[int, Reason] = {
    Show.NOT_ALLOWED: Reason.NOT_ALLOWED,
    Show.NOT_FINITE: Reason.NOT_FINITE,
    Show.OUT_OF_RANGE: Reason.OUT_OF_RANGE,
    Show.WRONG_SHAPE: Reason.WRONG_SHAPE,
    Show.MISSING: Reason.MISSING,
    Show.WRONG_TYPE: Reason.WRONG_TYPE,
}
_SPARSE = 24
"""If more than one row in this many is at fault, the others are copied one by one."""
_SHOWS = {reason: show for show, reason in REASONS.items()}

_NO_FAULTS = np.zeros(0, np.uint8)
_PARSED = {"float16": pa.float32(), "float32": pa.float32(), "float64": pa.float64(), "bool": pa.bool_()}


def arrow_type(field: Field) -> pa.DataType:
    """Return the type to parse a field as: that of its elements, in a list for each dimension."""
    return in_lists(element_type(field), len(field.shape))


def element_type(field: Field) -> pa.DataType:
    """Return the type to parse an element of a field as: int64 for integers, so that one too large is no wrong type."""
    return pa.binary() if field.dtype == "string" else _PARSED.get(field.dtype, pa.int64())


def in_lists(arrow: pa.DataType, lists: int) -> pa.DataType:
    """Return the type of so many lists in each other of values of this type."""
    for _ in range(lists):
        arrow = pa.list_(arrow)
    return arrow


def read_column(
    read: pa.Array | pa.ChunkedArray, field: Field, default: np.generic | bytes | None
) -> tuple[Column, Faults | None]:
    """Return the column of a field, and the fault of each row, None if all are good. Rows at fault hold any value."""
    array = one_array(read)
    column, faults = _tensor(array, field, field.shape)
    if faults is not None and default is not None and array.null_count:
        absent = nulls(array)
        # The column is a view of Arrow's memory, which is read-only.
        column = column.copy()
        column[absent] = default
        faults[absent] = Show.GOOD
    return column, faults if faults is not None and faults.any() else None


def _tensor(array: pa.Array, field: Field, shape: tuple[int, ...]) -> tuple[Column, Faults | None]:
    if not shape:
        return scalars(array, field)
    inner, inner_faults = _tensor(array.flatten(), field, shape[1:])
    absent = nulls(array)
    lengths = _lengths(array, absent)
    good = (lengths == shape[0]) & ~absent
    if good.all():
        return inner.reshape(len(array), *shape), _worst(inner_faults, len(array))
    faults = np.zeros(len(array), np.uint8)
    faults[~good] = Show.WRONG_SHAPE
    faults[absent] = Show.MISSING
    # To add lengths up takes longer than all of the rest, and `flatten` leaves out what nulls have.
    begins = (
        np.cumsum(lengths) - lengths if array.null_count else array.offsets.to_numpy()[:-1] - array.offsets[0].as_py()
    )
    if inner_faults is not None:
        bad = np.flatnonzero(inner_faults != 0)
        rows = begins.searchsorted(bad, "right") - 1
        np.maximum.at(faults, rows[good[rows]], inner_faults[bad[good[rows]]])
    return of_one_length(inner, begins, good, shape[0]), faults


def of_one_length(values: Column, begins: Int64s, good: Mask, length: int) -> Column:
    """Return a column of the good rows' elements, which begin there; the other rows hold any value."""
    column: Column = np.empty((len(good), length, *values.shape[1:]), values.dtype)
    bad = np.flatnonzero(~good)
    if len(bad) > len(good) // _SPARSE:
        rows = np.flatnonzero(good)
        column[rows] = values[begins[rows][:, None] + np.arange(length)]
        return column
    # The elements of the good rows between two bad ones follow each other.
    flat, first = column.reshape(-1, *values.shape[1:]), 0
    for row in (*bad.tolist(), len(good)):
        if row > first:
            begin = int(begins[first])
            flat[first * length : row * length] = values[begin : begin + (row - first) * length]
        first = row + 1
    return column


def read_lists(
    read: pa.Array | pa.ChunkedArray, field: Field, default: np.generic | bytes | None, pad: np.generic | bytes
) -> tuple[Column, Faults | None, Int64s]:
    """Return as `read_column` does for lists of any length: padded or cut to the field's shape, and their own lengths.

    A default counts as a list of one element. Elements that are cut off are checked too.
    """
    array = one_array(read)
    inner, inner_faults = _tensor(array.flatten(), field, field.shape[1:])
    absent = nulls(array)
    lengths = _lengths(array, absent)
    column = empty_column(field.dtype, (len(array), *field.shape))
    column[...] = pad
    rows = np.repeat(np.arange(len(array)), lengths)
    places = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    kept = places < field.shape[0]
    column[rows[kept], places[kept]] = inner[kept]
    faults = np.where(absent, np.uint8(Show.MISSING), np.uint8(Show.GOOD))
    if (worst := _worst(inner_faults, len(rows))) is not None:
        np.maximum.at(faults, rows, worst)
    if default is not None:
        column[absent, 0] = default
        lengths[absent], faults[absent] = 1, Show.GOOD
    return column, faults if faults.any() else None, lengths


def in_lists_like(lists: pa.Array, values: pa.Array) -> pa.Array:
    """Return lists like these of other values, which stand for what `flatten` gives of them."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    ends = pc.cumulative_sum(lengths.cast(pa.int32()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return pa.ListArray.from_arrays(offsets, values, mask=lists.is_null() if lists.null_count else None)


def one_array(read: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column of a table as one array."""
    if isinstance(read, pa.Array):
        return read
    return read.chunk(0) if read.num_chunks == 1 else read.combine_chunks()


def _lengths(array: pa.Array, absent: Mask) -> Int64s:
    """Return the lengths of lists, 0 of a null: `flatten` leaves out what a null may have in Arrow's memory."""
    lengths: Int64s = np.diff(array.offsets.to_numpy()).astype(np.int64)
    if array.null_count:
        lengths[absent] = 0
    return lengths


def _worst(faults: Faults | None, rows: int) -> Faults | None:
    """Return the greatest fault of the elements of each row; None if there is none."""
    if faults is None or not faults.any():
        return None
    bad = np.flatnonzero(faults > 0)  # of booleans: of other bytes it takes ten times as long
    worst = np.zeros(rows, np.uint8)
    np.maximum.at(worst, bad // (faults.size // rows), faults.ravel()[bad])
    return worst


def scalars(array: pa.Array, field: Field) -> tuple[Column, Faults | None]:
    """Return a column of single values, and the fault of each; None if all are good."""
    faults: Faults | None = None
    if array.null_count:
        faults = nulls(array) * np.uint8(Show.MISSING)
        # What nulls hold does not matter, so they need no value of their own: Arrow takes long to fill one in.
        array = pa.Array.from_buffers(array.type, len(array), [None, *array.buffers()[1:]], 0, array.offset)
    read: Column = array.to_numpy(zero_copy_only=False)
    column, wrong = read, _NO_FAULTS
    if read.dtype.kind == "f":
        column, wrong = _floats(read, field.dtype)
    elif read.dtype.kind == "i":
        column, wrong = _integers(read, field.dtype)
    for shown in (wrong, *_broken_rules(array, column, field)):
        if shown.any():
            faults = shown if faults is None else np.maximum(faults, shown)
    return column, faults


def _broken_rules(array: pa.Array, column: Column, field: Field) -> Iterator[Faults]:
    """Yield the elements that break a rule of the field, rule by rule."""
    if field.dtype == "string":
        words = words_not_allowed(array, field)
        if words is not None:
            yield words * np.uint8(Show.NOT_ALLOWED)
        return
    for reason, broken in broken_by_numbers(column, field):
        yield broken * np.uint8(_SHOWS[reason])


def _floats(read: Column, dtype: DType) -> tuple[Column, Faults]:
    if dtype == "float16":
        with np.errstate(over="ignore"):
            column = read.astype(dtype)
    else:
        column = read
    finite = np.isfinite(column)
    if finite.all():
        return column, _NO_FAULTS
    shown, bad = np.zeros(len(read), np.uint8), np.flatnonzero(~finite)
    # A float16 may have been finite as it was read.
    infinite = np.where(np.isinf(read[bad]), np.uint8(Show.INFINITE), np.uint8(Show.OUT_OF_RANGE))
    shown[bad] = np.where(np.isnan(column[bad]), np.uint8(Show.NOT_FINITE), infinite)
    return column, shown


def _integers(read: Column, dtype: DType) -> tuple[Column, Faults]:
    if dtype == "int64":
        return read, _NO_FAULTS
    limits = np.iinfo(dtype)
    outside = np.less(read, limits.min) | np.greater(read, limits.max)
    return read.astype(dtype), outside.astype(np.uint8) * np.uint8(Show.OUT_OF_RANGE)


def nulls(array: pa.Array) -> Mask:
    """Return a mask of the elements that are null."""
    if not array.null_count:
        return np.zeros(len(array), dtype=bool)
    valid = array.buffers()[0]
    if valid is None:
        mask: Mask = array.is_null().to_numpy(zero_copy_only=False)
        return mask
    # Arrow has a bit for each element; to ask it for a mask takes three times as long.
    bits = np.unpackbits(np.frombuffer(valid, np.uint8), count=array.offset + len(array), bitorder="little")
    absent: Mask = bits[array.offset :] == 0
    return absent


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
            if found is not None and (own := found.get(source)) is not None:
                faults = own if faults is None else np.maximum(faults, own)
            if faults is None:
                continue
            rows = np.flatnonzero(good & (faults > 0))
            refused += [
                Refusal(index, infinity(row, field) if show == Show.INFINITE else REASONS[show], source)
                for row, index, show in zip(rows.tolist(), indices[rows].tolist(), faults[rows].tolist(), strict=True)
            ]
            good &= faults == 0
        return only_good(DecodedValues(indices, columns, tuple(refused), lengths), good)


def holds_infinity(value: Any) -> bool:
    """Return whether a value, or one in its lists, is infinite."""
    if isinstance(value, list):
        return any(map(holds_infinity, value))
    return isinstance(value, float) and math.isinf(value)
