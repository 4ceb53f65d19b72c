"""Reads the messages of one Protobuf type: ptars turns many into Arrow columns, and protobuf judges.

Only what the fields ask for is parsed (`message`). A record is refused if and only if protobuf, or ptars,
refuses its own bytes alone. Both are needed: ptars takes a group that ends with another field's number, a tag of more
than 32 bits, and a packed list that ends within an element; protobuf takes a field with the number 0 in a message in a
message.

First ptars is asked about a chunk, then protobuf about its records joined, which are one message if each of them is
one: that costs a fourth of what the columns cost. Where one of the two refuses, protobuf is asked about each record,
and what it takes goes to ptars again, in halves while that refuses. Of a record of more than 16 KiB protobuf is asked
first: ptars follows groups in groups as deep as they go, which ends the process on a record that is made for that;
protobuf stops at a depth.

ptars holds the GIL: a chunk of 4,096 small records takes it for a millisecond. Runs on the decode pool's threads and
holds no state.

Of the columns comes an array for each field, of the type that its dtype has. A field of a message that is absent is
null, and so is a list without elements: the wire does not tell it from an absent one, and only a field with `pad` takes
it as an empty list.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import length_hint
from typing import Any

import numpy as np
import numpy.typing as npt
import ptars
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import message_factory
from google.protobuf.message import DecodeError, Message

from millrace.consumers.errors import ConfigError
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Int64s
from millrace.pipelines.formats.protobuf.message import (
    DURATION,
    TIMESTAMP,
    AskedMessage,
    MessagePath,
    MessageStep,
    NoSuchFieldError,
)
from millrace.pipelines.formats.shared.arrow_columns import (
    ColumnReader,
    Faults,
    Show,
    arrow_type,
    element_type,
    holds_infinity,
    in_lists_like,
)
from millrace.pipelines.formats.shared.pieces import LARGEST, without
from millrace.pipelines.formats.shared.protocol import LONGEST_DETAIL, DecodedValues, FieldFit, Refusal
from millrace.pipelines.schema import Field

_AT_ONCE = 256
"""Records that protobuf is asked about together: their bytes stay in memory until it has answered."""
_LONG = 16 << 10
"""Bytes of a record of which protobuf is asked first. A group in a group takes a byte, and its depth ends the stack."""


class MessageReader:
    """Reads the messages of one type."""

    def __init__(self, descriptor: Any, reader: ColumnReader, *, lenient: bool = False, known: Any = None) -> None:
        """Raise ConfigError where a field cannot be read from the message.

        `lenient`: such a field is absent in each record, or of a wrong type where the message has another one there.
        `known`: the message as the settings describe it, by whose numbers fields are found.
        """
        self._reader = reader
        self._lacking = dict[str, tuple[Show, str]]()
        fields = [*reader.fields.values()]
        asked = self._readable(descriptor, fields, known) if lenient else AskedMessage(descriptor, fields)
        self._asked = asked
        self._message = message_factory.GetMessageClass(asked.descriptor)
        options = ptars.PtarsConfig(map_value_nullable=True, confluent_wire_policy="raw")
        self._handler = ptars.HandlerPool([asked.descriptor.file], config=options).get_for_message(asked.descriptor)

    def read(self, records: Sequence[bytes], indices: Int64s) -> Iterator[DecodedValues]:
        """Yield what records hold, and why not, in order."""
        lengths = np.fromiter(map(len, records), np.int64, len(records))
        if len(records) > 1 and lengths.sum() > LARGEST:
            for half in _halves(records):
                yield from self.read(records[half], indices[half])
            return
        long = lengths > _LONG
        bad = [row for row in np.flatnonzero(long).tolist() if not _takes(self._message, records[row])]
        batch = None if bad else self._batch(records)
        if batch is None or not _takes_all(self._message, without(records, np.flatnonzero(long).tolist())):
            bad = _refused(records, self._message)
            yield self._malformed(indices[bad])
            yield from self._read_taken(without(records, bad), np.delete(indices, bad))
        else:
            yield self._columns(self._as_it_ends(batch, records), indices)

    def fits(self) -> dict[str, FieldFit]:
        """Return how the fields are read, by source."""
        fits = {path.field.source: FieldFit(place=path.place, kind=path.kind) for path in self._asked.paths}
        for source, (show, why) in self._lacking.items():
            if show is Show.GOOD and self._reader.fields[source].missing is not None:
                fits[source] = FieldFit(place=None, stand_in="its `missing` value")
            else:
                unfit = why.removeprefix(f"records: field {source!r}: ")[:LONGEST_DETAIL]
                fits[source] = FieldFit(place=None, unfit=unfit)
        return {source: fits[source] for source in self._reader.fields}

    def _readable(self, descriptor: Any, fields: Sequence[Field], known: Any) -> AskedMessage:
        """Return the message of the fields that can be read, and note the others."""
        readable = list[Field]()
        for field in fields:
            try:
                AskedMessage(descriptor, [*readable, field], known)
            except NoSuchFieldError as error:
                self._lacking[field.source] = Show.GOOD, str(error)
            except ConfigError as error:
                self._lacking[field.source] = Show.WRONG_TYPE, str(error)
            else:
                readable.append(field)
        return AskedMessage(descriptor, readable, known)

    def _read_taken(self, records: Sequence[bytes], indices: Int64s) -> Iterator[DecodedValues]:
        """Yield what records hold that protobuf takes, each of them: ptars may refuse some."""
        batch = self._batch(records)
        if batch is None and len(records) == 1:
            batch = self._batch([self._of_known_fields(records[0])])
        if batch is not None:
            yield self._columns(self._as_it_ends(batch, records), indices)
        elif len(records) == 1:
            yield self._malformed(indices)
        else:
            for half in _halves(records):
                yield from self._read_taken(records[half], indices[half])

    def _malformed(self, indices: Int64s) -> DecodedValues:
        none = self._reader.no_rows()
        refused = tuple(Refusal(index, Reason.MALFORMED) for index in indices.tolist())
        return DecodedValues(none.kept, none.columns, refused, none.lengths)

    def _batch(self, records: Sequence[bytes]) -> pa.RecordBatch | None:
        """Return a row for each record, or None where ptars refuses one."""
        try:
            return self._handler.list_to_record_batch([*records])
        except BaseException as error:
            # A panic of ptars is no Exception, and of the records alone: it must not end the process.
            if isinstance(error, ValueError) or type(error).__name__ == "PanicException":
                return None
            raise

    def _of_known_fields(self, record: bytes) -> bytes:
        """Return a record as protobuf writes it, without what nobody asks for: ptars refuses more within that."""
        message = self._message.FromString(record)
        message.DiscardUnknownFields()
        return bytes(message.SerializeToString())

    def _as_it_ends(self, batch: pa.RecordBatch, records: Sequence[bytes]) -> pa.RecordBatch:
        """Return the batch as the messages are when all is read: protobuf writes those again of which ptars has more.

        That is, of a oneof the last member alone, and of a map an empty message where it was left out.
        """
        rows = {int(row) for members in self._asked.oneofs for row in rows_of_two_members(batch, members)}
        rows |= {int(row) for way in self._asked.maps for row in rows_without_a_value(batch, way)}
        if not rows:
            return batch
        again = [*records]
        for row in rows:
            if _takes(self._message, records[row]):
                again[row] = self._message.FromString(records[row]).SerializeToString()
        ended = self._batch(again)
        return batch if ended is None else ended

    def _columns(self, batch: pa.RecordBatch, indices: Int64s) -> DecodedValues:
        read = {path.field.source: ReadField(path, batch) for path in self._asked.paths}
        arrays = {source: one.array for source, one in read.items()}
        found = {source: one.faults for source, one in read.items() if one.faults is not None}
        for source, (show, _) in self._lacking.items():
            arrays[source] = pa.nulls(len(indices), arrow_type(self._reader.fields[source]))
            if show is not Show.GOOD:
                found[source] = np.full(len(indices), show, np.uint8)
        return self._reader.read(arrays, indices, infinity_of(read), found)


def _refused(records: Sequence[bytes], judge: type[Message]) -> list[int]:
    """Return the rows that protobuf refuses as messages of a type."""
    found = list[int]()
    for first in range(0, len(records), _AT_ONCE):
        several = records[first : first + _AT_ONCE]
        left = iter(several)
        while length_hint(left):
            try:
                # All into one message: to make one for each takes twice as long.
                deque(map(judge().MergeFromString, left), maxlen=0)
            except DecodeError:
                found.append(first + len(several) - length_hint(left) - 1)
    return found


def _takes_all(judge: type[Message], records: Sequence[bytes]) -> bool:
    """Return whether protobuf takes each of these records, which ptars takes: so none reaches into the next one."""
    joined = (b"".join(records[first : first + _AT_ONCE]) for first in range(0, len(records), _AT_ONCE))
    return all(_takes(judge, several) for several in joined)


def _takes(judge: type[Message], record: bytes) -> bool:
    try:
        judge.FromString(record)
    except DecodeError:
        return False
    return True


def _halves(records: Sequence[bytes]) -> tuple[slice, slice]:
    return slice(len(records) // 2), slice(len(records) // 2, None)


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
            # Of a Timestamp the whole ones before it; a Duration is cut towards zero.
            fields = (pc.struct_field(values, [at]).fill_null(0) for at in (0, 1))
            seconds, nanos = (each.to_numpy(zero_copy_only=False) for each in fields)
            more = nanos // _NANOS if path.kind == TIMESTAMP else np.trunc(nanos / _NANOS).astype(np.int64)
            whole = np.clip(seconds, -_FAR_S, _FAR_S) * 1000 + more
            values = pa.array(whole, mask=values.is_null().to_numpy(zero_copy_only=False))
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
        return Reason.NOT_FINITE if holds_infinity(self._as_read[row].as_py()) else Reason.OUT_OF_RANGE


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
        return in_lists_like(array, _within(array.flatten(), MessageStep(here.name), rest))
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


def _relisted(lists: pa.Array, values: pa.Array) -> pa.Array:
    return in_lists_like(lists, _relisted(lists.flatten(), values)) if pa.types.is_list(lists.type) else values


def _flat(array: pa.Array) -> pa.Array:
    return _flat(array.flatten()) if pa.types.is_list(array.type) else array


def _rows(array: pa.Array) -> npt.NDArray[np.int64]:
    """Return the row of each value."""
    rows = np.arange(len(array))
    while pa.types.is_list(array.type):
        rows = np.repeat(rows, pc.fill_null(pc.list_value_length(array), 0).to_numpy())
        array = array.flatten()
    return rows


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
