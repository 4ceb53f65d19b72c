"""Protobuf records: ptars turns a chunk into Arrow columns, and protobuf's own parser says which records to look at.

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

import numpy as np
import ptars
import pyarrow as pa
from google.protobuf import message_factory
from google.protobuf.message import DecodeError

from consumers.reasons import Reason
from consumers.records import Int64s
from pipelines.decoders.column_reader import ColumnReader
from pipelines.decoders.pieces import together
from pipelines.decoders.protobuf_arrays import ReadField, infinity_of, rows_of_two_members, rows_without_a_value
from pipelines.decoders.protobuf_files import descriptor_set, message_of
from pipelines.decoders.protobuf_message import AskedMessage
from pipelines.decoders.protocol import DecodedValues, Refusal
from pipelines.decoders.sources import distinct_fields
from pipelines.decoders.text import LARGEST
from pipelines.schema import ProtobufLayout, Schema

_LONG = 16 << 10
"""Bytes of a record of which protobuf is asked first. A group in a group takes a byte, and its depth ends the stack."""


class ProtobufDecoder:
    """Decodes messages of one type."""

    def __init__(self, schema: Schema, layout: ProtobufLayout) -> None:
        """Raise ConfigError where the message is not there, or a field cannot be read from it."""
        self._schema = schema
        self._reader = ColumnReader(distinct_fields(schema))
        descriptors = layout.descriptors if layout.file is None else descriptor_set(layout.file)
        asked = AskedMessage(message_of(descriptors, layout.message), self._reader.fields.values())
        self._paths, self._oneofs, self._maps = asked.paths, asked.oneofs, asked.maps
        self._message = message_factory.GetMessageClass(asked.descriptor)
        options = ptars.PtarsConfig(
            timestamp_unit="ms", duration_unit="ms", map_value_nullable=True, confluent_wire_policy="raw"
        )
        self._handler = ptars.HandlerPool([asked.descriptor.file], config=options).get_for_message(asked.descriptor)

    @property
    def schema(self) -> Schema:
        """The schema that the decoder follows."""
        return self._schema

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        """Decode any number of values, also none. An empty value is refused, as in every format."""
        indices = np.arange(len(values))
        refused = [Refusal(index, Reason.EMPTY) for index, value in enumerate(values) if not value]
        records = [value for value in values if value]
        if refused:
            indices = np.setdiff1d(indices, np.array([one.index for one in refused]))
        if max(map(len, records), default=0) > _LONG:
            sound = np.array([len(record) <= _LONG or self._parses(record) for record in records], np.bool_)
            refused += [Refusal(index, Reason.MALFORMED) for index in indices[~sound].tolist()]
            records, indices = list(compress(records, sound)), indices[sound]
        pieces = [self._reader.no_rows(), *self._read_or_split(records, indices, looked=False)]
        every = [*refused, *(refusal for piece in pieces for refusal in piece.refused)]
        return together(pieces, tuple(sorted(every, key=lambda refusal: refusal.index)))

    def _read_or_split(self, records: list[bytes], indices: Int64s, *, looked: bool) -> Iterator[DecodedValues]:
        """Yield what the records hold, in order. `looked`: protobuf was asked about them, so only halving is left."""
        batch = self._batch(records)
        if batch is not None:
            yield self._columns(self._as_it_ends(batch, records), indices)
        elif len(records) == 1:
            empty = self._reader.no_rows()
            refusal = Refusal(int(indices[0]), Reason.MALFORMED)
            yield DecodedValues(empty.kept, empty.columns, (refusal,), empty.lengths)
        elif looked:
            for half in (slice(len(records) // 2), slice(len(records) // 2, None)):
                yield from self._read_or_split(records[half], indices[half], looked=True)
        else:
            sound = np.array([self._parses(record) or self._batch([record]) is not None for record in records])
            empty = self._reader.no_rows()
            refused = tuple(Refusal(index, Reason.MALFORMED) for index in indices[~sound].tolist())
            yield DecodedValues(empty.kept, empty.columns, refused, empty.lengths)
            yield from self._read_or_split(list(compress(records, sound)), indices[sound], looked=True)

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
        rows = {int(row) for members in self._oneofs for row in rows_of_two_members(batch, members)}
        rows |= {int(row) for way in self._maps for row in rows_without_a_value(batch, way)}
        if not rows:
            return batch
        again = [*records]
        for row in rows:
            if self._parses(records[row]):
                again[row] = self._message.FromString(records[row]).SerializeToString()
        ended = self._batch(again)
        return batch if ended is None else ended

    def _columns(self, batch: pa.RecordBatch, indices: Int64s) -> DecodedValues:
        read = {path.field.source: ReadField(path, batch) for path in self._paths}
        arrays = {source: one.array for source, one in read.items()}
        found = {source: one.faults for source, one in read.items() if one.faults is not None}
        return self._reader.read(arrays, indices, infinity_of(read), found)
