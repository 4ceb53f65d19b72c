"""From the columns of a decoded Protobuf message to an array for each field, of the type that its dtype has.

Pure functions. A field of a message that is absent is null, and so is a list without elements: the wire does not tell
it from an absent one, and only a field with `pad` takes it as an empty list.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.consumers.reasons import Reason
from millrace.pipelines.formats.protobuf.message import DURATION, TIMESTAMP, MessagePath, MessageStep
from millrace.pipelines.formats.shared.arrow_columns import Faults, Show, element_type
from millrace.pipelines.schema import Field

_RANGES_MS = {
    TIMESTAMP: (-62_135_596_800_000, 253_402_300_799_999),
    DURATION: (-315_576_000_000_999, 315_576_000_000_999),
}
"""What a time may be: the years 1 to 9999, and ten thousand years."""
_NANOS = 1_000_000
"""In a millisecond."""
_FAR_S = 10**15
"""Seconds beyond any time, whose milliseconds int64 still holds."""
_LARGEST = np.iinfo(np.int64).max


class ReadField:
    """A field of all records of a batch."""

    def __init__(self, path: MessagePath, batch: pa.RecordBatch) -> None:
        field, (first, *rest) = path.field, path.steps
        self._as_read = _within(_column(batch, first), first, rest)
        values = _flat(self._as_read)
        if path.kind in _RANGES_MS:
            values = _milliseconds(values, path.kind)
        found, self.array = _fault(values, path.kind), _relisted(self._as_read, _cast(values, path))
        self.faults: Faults | None = None
        """A Show for each row; None where there is none that the array does not show itself."""
        if found is not None:
            self.faults = np.zeros(len(batch), np.uint8)
            np.maximum.at(self.faults, _rows(self._as_read), found)
        if field.shape and field.pad is None:
            empty = pc.equal(pc.list_value_length(self.array), 0)
            self.array = pc.if_else(empty, pa.scalar(None, self.array.type), self.array)

    def infinity(self, row: int) -> Reason:
        """Return the reason for an infinity in a row: in the record, or made by a dtype that cannot hold the number."""
        return Reason.NOT_FINITE if _holds_infinity(self._as_read[row].as_py()) else Reason.OUT_OF_RANGE


def infinity_of(read: Mapping[str, ReadField]) -> Callable[[int, Field], Reason]:
    """Return what says the reason for an infinity in a row of a field."""
    return lambda row, field: read[field.source].infinity(row)


def rows_of_two_members(batch: pa.RecordBatch, members: Sequence[Sequence[MessageStep]]) -> npt.NDArray[np.int64]:
    """Return the rows where a oneof has more than one of its members: ptars keeps those that a later one replaces."""
    read = [_within(_column(batch, first), first, rest) for first, *rest in members]
    there = np.sum([_flat(one).is_valid().to_numpy(zero_copy_only=False) for one in read], axis=0)
    rows: npt.NDArray[np.int64] = np.unique(_rows(read[0])[there > 1])
    return rows


def rows_without_a_value(batch: pa.RecordBatch, way: Sequence[MessageStep]) -> npt.NDArray[np.int64]:
    """Return the rows where a map has a key whose message was left out, as it may be where it is empty."""
    first, *rest = way
    read = _within(_column(batch, first), first, rest)
    maps = _flat(read)
    absent = np.flatnonzero(maps.items.is_null().to_numpy(zero_copy_only=False))
    rows: npt.NDArray[np.int64] = _rows(read)[np.searchsorted(maps.offsets.to_numpy(), absent, side="right") - 1]
    return np.unique(rows)


def _column(batch: pa.RecordBatch, step: MessageStep) -> pa.Array:
    return batch.column(batch.schema.get_field_index(step.name))


def _within(array: pa.Array, here: MessageStep, rest: list[MessageStep]) -> pa.Array:
    """Return what the steps lead to; the array holds the value of the first."""
    if here.repeated:
        return _in_lists(array, _within(array.flatten(), MessageStep(here.name), rest))
    if here.key is not None:
        array = _of_key(array, here.key)
    if not rest:
        return array
    # Unlike `field`, this shows a member of a null as null.
    member = pc.struct_field(array, [array.type.get_field_index(rest[0].name)])
    return _within(member, rest[0], rest[1:])


def _of_key(maps: pa.Array, key: bool | int | str) -> pa.Array:
    """Return the value of a key in each map, null where a map has none; of several the last."""
    offsets = maps.offsets.to_numpy()
    found = np.flatnonzero(pc.equal(maps.keys, pa.scalar(key, maps.type.key_type)).to_numpy(zero_copy_only=False))
    found = found[(found >= offsets[0]) & (found < offsets[-1])]
    at = np.full(len(maps), -1, np.int64)
    at[np.searchsorted(offsets, found, side="right") - 1] = found
    return maps.items.take(pa.array(at, mask=at < 0))


def _in_lists(lists: pa.Array, values: pa.Array) -> pa.Array:
    """Return lists like these of other values, which stand for what `flatten` gives of them."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    ends = pc.cumulative_sum(lengths.cast(pa.int32()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return pa.ListArray.from_arrays(offsets, values, mask=lists.is_null() if lists.null_count else None)


def _relisted(lists: pa.Array, values: pa.Array) -> pa.Array:
    return _in_lists(lists, _relisted(lists.flatten(), values)) if pa.types.is_list(lists.type) else values


def _flat(array: pa.Array) -> pa.Array:
    return _flat(array.flatten()) if pa.types.is_list(array.type) else array


def _rows(array: pa.Array) -> npt.NDArray[np.int64]:
    """Return the row of each value."""
    rows = np.arange(len(array))
    while pa.types.is_list(array.type):
        rows = np.repeat(rows, pc.fill_null(pc.list_value_length(array), 0).to_numpy())
        array = array.flatten()
    return rows


def _milliseconds(times: pa.Array, kind: str) -> pa.Array:
    """Return times in milliseconds: of a Timestamp the whole ones before it, a Duration is cut towards zero."""
    seconds, nanos = (pc.struct_field(times, [at]).fill_null(0).to_numpy(zero_copy_only=False) for at in (0, 1))
    rest = nanos // _NANOS if kind == TIMESTAMP else np.trunc(nanos / _NANOS).astype(np.int64)
    whole = np.clip(seconds, -_FAR_S, _FAR_S) * 1000 + rest
    return pa.array(whole, mask=times.is_null().to_numpy(zero_copy_only=False))


def _fault(values: pa.Array, kind: str) -> Faults | None:
    """Return the values that int64 cannot hold, or that are no time; None where there are none."""
    outside = None
    if pa.types.is_uint64(values.type):
        outside = pc.greater(values, pa.scalar(_LARGEST, pa.uint64()))
    elif kind in _RANGES_MS:
        first, last = _RANGES_MS[kind]
        outside = pc.or_(pc.less(values, first), pc.greater(values, last))
    if outside is None or not pc.any(outside).as_py():
        return None
    mask: npt.NDArray[np.bool_] = outside.fill_null(fill_value=False).to_numpy(zero_copy_only=False)
    return mask * np.uint8(Show.OUT_OF_RANGE)


def _cast(values: pa.Array, path: MessagePath) -> pa.Array:
    wanted = element_type(path.field)
    if path.enum is not None and pa.types.is_binary(wanted):
        numbers = values.dictionary_encode()
        names = [path.enum.get(number, str(number).encode()) for number in numbers.dictionary.to_pylist()]
        return pa.array(names, pa.binary()).take(numbers.indices)
    return values if values.type == wanted else values.cast(wanted, safe=False)


def _holds_infinity(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_holds_infinity, value))
    return isinstance(value, float) and math.isinf(value)
