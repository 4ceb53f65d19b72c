"""Reads the messages of one Protobuf type: ptars turns many into Arrow columns, and protobuf proposes what to look at.

Only what the fields ask for is parsed (`protobuf_message`). ptars refuses a chunk for one bad record, and names none.
Protobuf's parser is then asked about each record: first whether it is a message of any type, which takes half of the
time and finds records that are cut short, and where that is not enough whether it is one of this type. Those that it
refuses are parsed by ptars alone, and the rest together, in halves where that fails. So a record is refused if and only
if ptars refuses its own bytes alone: protobuf only proposes. The exception is a record of more than 16 KiB: protobuf
decides first, and then ptars. It follows groups in groups as deep as they go, which ends the process on a record that
is made for that; protobuf stops at a depth.

ptars holds the GIL: a chunk of 4,096 small records takes it for a millisecond. Runs on the decode pool's threads and
holds no state.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from operator import length_hint
from typing import Any, TypeAlias

import numpy as np
import ptars
import pyarrow as pa
from google.protobuf import message_factory
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError, Message

from consumers.errors import ConfigError
from consumers.reasons import Reason
from consumers.records import Int64s
from pipelines.decoders.arrow_columns import Show, arrow_type
from pipelines.decoders.column_reader import ColumnReader
from pipelines.decoders.field_fits import LONGEST_DETAIL, FieldFit
from pipelines.decoders.protobuf_arrays import ReadField, infinity_of, rows_of_two_members, rows_without_a_value
from pipelines.decoders.protobuf_message import AskedMessage, NoSuchFieldError
from pipelines.decoders.protocol import DecodedValues, Refusal
from pipelines.decoders.text import LARGEST, without
from pipelines.schema import Field

Judges: TypeAlias = Sequence[type[Message]]
"""Types as which protobuf is asked about records, one after the other."""
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
        bad = [row for row in np.flatnonzero(lengths > _LONG).tolist() if not _takes(self._message, records[row])]
        # One is certainly bad, so ptars need not be asked about all.
        read = self._sift if bad else self._read_or_split
        yield from read(records, indices, (Empty, self._message), bad)

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

    def _read_or_split(
        self, records: Sequence[bytes], indices: Int64s, judges: Judges, _bad: Sequence[int] = ()
    ) -> Iterator[DecodedValues]:
        """Yield what the records hold. `judges`: the types that are not yet tried; without any only halving is left."""
        batch = self._batch(records)
        if batch is not None:
            yield self._columns(self._as_it_ends(batch, records), indices)
        elif len(records) == 1:
            yield self._malformed(indices)
        else:
            yield from self._sift(records, indices, judges)

    def _sift(
        self, records: Sequence[bytes], indices: Int64s, judges: Judges, bad: Sequence[int] = ()
    ) -> Iterator[DecodedValues]:
        """Yield what records hold that ptars refuses together; those that are known to be bad it never gets."""
        if not judges:
            for half in _halves(records):
                yield from self._read_or_split(records[half], indices[half], ())
            return
        doubted = [row for row in _doubted(records, judges[0]) if row not in bad]
        bad = sorted([*bad, *(row for row in doubted if self._batch([records[row]]) is None)])
        if not bad:
            yield from self._sift(records, indices, judges[1:])
            return
        yield self._malformed(indices[bad])
        yield from self._read_or_split(without(records, bad), np.delete(indices, bad), judges[1:])

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


def _doubted(records: Sequence[bytes], judge: type[Message]) -> list[int]:
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


def _takes(judge: type[Message], record: bytes) -> bool:
    try:
        judge.FromString(record)
    except DecodeError:
        return False
    return True


def _halves(records: Sequence[bytes]) -> tuple[slice, slice]:
    return slice(len(records) // 2), slice(len(records) // 2, None)
