"""Reads the messages of one Protobuf type: ptars turns many into Arrow columns, and protobuf proposes what to look at.

Only what the fields ask for is parsed (`protobuf_message`). ptars refuses a chunk for one bad record, and names none.
Protobuf's parser is then asked about each record: those that it refuses are parsed by ptars alone, and the rest
together, in halves where that fails. So a record is refused if and only if ptars refuses its own bytes alone: protobuf
only proposes. The exception is a record of more than 16 KiB: protobuf decides first, and then ptars. It follows groups
in groups as deep as they go, which ends the process on a record that is made for that; protobuf stops at a depth.

ptars holds the GIL: a chunk of 4,096 small records takes it for a millisecond. Runs on the decode pool's threads and
holds no state.
"""

from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Any

import numpy as np
import ptars
import pyarrow as pa
from google.protobuf import message_factory
from google.protobuf.message import DecodeError

from consumers.errors import ConfigError
from consumers.reasons import Reason
from consumers.records import Int64s
from pipelines.decoders.arrow_columns import Show, arrow_type
from pipelines.decoders.column_reader import ColumnReader
from pipelines.decoders.field_fits import LONGEST_DETAIL, FieldFit
from pipelines.decoders.protobuf_arrays import ReadField, infinity_of, rows_of_two_members, rows_without_a_value
from pipelines.decoders.protobuf_message import AskedMessage, NoSuchFieldError
from pipelines.decoders.protocol import DecodedValues, Refusal
from pipelines.decoders.text import LARGEST
from pipelines.schema import Field

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
        options = ptars.PtarsConfig(
            timestamp_unit="ms", duration_unit="ms", map_value_nullable=True, confluent_wire_policy="raw"
        )
        self._handler = ptars.HandlerPool([asked.descriptor.file], config=options).get_for_message(asked.descriptor)

    def read(self, records: list[bytes], indices: Int64s) -> Iterator[DecodedValues]:
        """Yield what records hold, and why not, in order."""
        if max(map(len, records), default=0) > _LONG:
            sound = np.array([len(record) <= _LONG or self._parses(record) for record in records], np.bool_)
            yield self._malformed(indices[~sound])
            records, indices = list(compress(records, sound)), indices[sound]
        yield from self._read_or_split(records, indices, looked=False)

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

    def _read_or_split(self, records: list[bytes], indices: Int64s, *, looked: bool) -> Iterator[DecodedValues]:
        """Yield what the records hold, in order. `looked`: protobuf was asked about them, so only halving is left."""
        batch = self._batch(records)
        if batch is not None:
            yield self._columns(self._as_it_ends(batch, records), indices)
        elif len(records) == 1:
            yield self._malformed(indices)
        elif looked:
            for half in (slice(len(records) // 2), slice(len(records) // 2, None)):
                yield from self._read_or_split(records[half], indices[half], looked=True)
        else:
            sound = np.array([self._parses(record) or self._batch([record]) is not None for record in records])
            yield self._malformed(indices[~sound])
            yield from self._read_or_split(list(compress(records, sound)), indices[sound], looked=True)

    def _malformed(self, indices: Int64s) -> DecodedValues:
        none = self._reader.no_rows()
        refused = tuple(Refusal(index, Reason.MALFORMED) for index in indices.tolist())
        return DecodedValues(none.kept, none.columns, refused, none.lengths)

    def _batch(self, records: list[bytes]) -> pa.RecordBatch | None:
        """Return a row for each record, or None where ptars refuses one, or where they are too long for one batch."""
        if len(records) > 1 and sum(map(len, records)) > LARGEST:
            return None
        try:
            return self._handler.list_to_record_batch(records)
        except BaseException as error:
            # A panic of ptars is no Exception, and of the records alone: it must not end the process.
            if isinstance(error, ValueError) or type(error).__name__ == "PanicException":
                return None
            raise

    def _parses(self, record: bytes) -> bool:
        try:
            self._message.FromString(record)
        except DecodeError:
            return False
        return True

    def _as_it_ends(self, batch: pa.RecordBatch, records: list[bytes]) -> pa.RecordBatch:
        """Return the batch as the messages are when all is read: protobuf writes those again of which ptars has more.

        That is, of a oneof the last member alone, and of a map an empty message where it was left out.
        """
        rows = {int(row) for members in self._asked.oneofs for row in rows_of_two_members(batch, members)}
        rows |= {int(row) for way in self._asked.maps for row in rows_without_a_value(batch, way)}
        if not rows:
            return batch
        again = [*records]
        for row in rows:
            if self._parses(records[row]):
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
