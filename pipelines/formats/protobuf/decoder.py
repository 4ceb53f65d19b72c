"""Protobuf records, plain or in Confluent's wire format: messages of one type, or of those that a registry describes.

Confluent's format is a zero, the number of a schema, and which of its messages it is: how many indexes, then the
indexes, each as a zigzag varint; a zero alone is the first message. The records of a chunk are read in groups, one for
each message type, and each gives the same columns: a field that a version does not have is absent.

Runs on the decode pool's threads. What is kept are the readers of message types, which are immutable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from millrace.consumers.reasons import Reason
from millrace.pipelines.formats.protobuf.message_reader import MessageReader
from millrace.pipelines.formats.shared.arrow_columns import ColumnReader
from millrace.pipelines.formats.shared.descriptors import (
    Header,
    described,
    descriptor_set,
    header_of,
    indexes_of,
    message_at,
    message_of,
    number_of,
)
from millrace.pipelines.formats.shared.paths import distinct_fields
from millrace.pipelines.formats.shared.pieces import together, without_empty
from millrace.pipelines.formats.shared.protocol import DecodedValues, Refusal, SchemaFit, each_known
from millrace.pipelines.schema import Schema, Schemas


@dataclass(frozen=True, slots=True)
class _Unread:
    """Why no record of a header can be read."""

    reason: Reason
    detail: str | None = None


_MALFORMED = _Unread(Reason.MALFORMED)
Verdict = MessageReader | _Unread
"""What reads the records of a header, or why none can be read."""


class ProtobufDecoder:
    """Decodes messages."""

    def __init__(
        self,
        schema: Schema,
        *,
        file: Path | None = None,
        descriptors: bytes = b"",
        message: str | None = None,
        schemas: Schemas | None = None,
    ) -> None:
        """Take the file that describes the message, or the FileDescriptorSet itself, or the registry.

        Raise ConfigError where the message is not there, or a field cannot be read from it.
        """
        self.schema, self._schemas = schema, schemas
        self._reader = ColumnReader(distinct_fields(schema))
        # Set when all is known, and not before: another thread may ask meanwhile, and at worst does the same work.
        self._readers: dict[tuple[int, tuple[int, ...]] | None, MessageReader] = {}
        self._fits: dict[tuple[int, tuple[int, ...]], SchemaFit] = {}
        self._descriptors: dict[int, bytes | str] = {}
        """By the schema's number; a text says why its records cannot be read."""
        self._known: Any = None
        """The message as the settings describe it, where there is a registry too."""
        if schemas is None or file is not None:
            self._known = message_of(descriptors if file is None else descriptor_set(file), message)
            self._readers[None] = MessageReader(self._known, self._reader)

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        """Decode any number of values, also none. An empty value is refused, as in every format.

        Raise NotYetError while a schema is not known.
        """
        records, indices, refused = without_empty(values)
        pieces, groups = [self._reader.no_rows()], self._by_header(records)
        schemas = dict[int, tuple[SchemaFit, int]]()
        readers = each_known(groups, self._reader_of)
        for (header, rows), reader in zip(groups.items(), readers, strict=True):
            number = number_of(header) if header else None
            if isinstance(reader, _Unread):
                refused += [
                    Refusal(index, reader.reason, None, number, reader.detail) for index in indices[rows].tolist()
                ]
                continue
            messages = [records[row][len(header) :] for row in rows] if header else records
            read = [*reader.read(messages, indices[rows] if header else indices)]
            pieces += read
            verdicts = [refusal for piece in read for refusal in piece.refused]
            if number is not None:
                fit = self._fits[number, indexes_of(header)]
                first = int(indices[rows[0]])
                schemas[first] = fit, first
                details = [None if one.field is None else fit.fields[one.field].unfit for one in verdicts]
                verdicts = [
                    Refusal(one.index, one.reason, one.field, number, detail)
                    for one, detail in zip(verdicts, details, strict=True)
                ]
            refused += verdicts
        joined = together(pieces, tuple(sorted(refused, key=lambda refusal: refusal.index)))
        return replace(joined, schemas=tuple(schemas[first] for first in sorted(schemas))) if schemas else joined

    def _by_header(self, records: Sequence[bytes]) -> Mapping[Header, Sequence[int]]:
        """Return the rows of the records by what they begin with before the message."""
        if self._schemas is None:
            return {b"": range(len(records))} if records else {}
        groups: dict[Header, list[int]] = {}
        for row, record in enumerate(records):
            groups.setdefault(header_of(record), []).append(row)
        return groups

    def _reader_of(self, header: Header) -> Verdict:
        if self._schemas is None:
            return self._readers[None]
        if not header:
            return _MALFORMED
        number, indexes = number_of(header), indexes_of(header)
        if (number, indexes) in self._readers:
            return self._readers[number, indexes]
        descriptors = self._descriptors_of(number, self._schemas)
        if isinstance(descriptors, str):
            return _Unread(Reason.UNKNOWN_SCHEMA, descriptors)
        message = message_at(descriptors, indexes)
        if message is None:
            return _MALFORMED
        known = self._known if self._known is not None and self._known.full_name == message.full_name else None
        reader = MessageReader(message, self._reader, lenient=True, known=known)
        self._fits[number, indexes] = SchemaFit(number=number, name=message.full_name, fields=reader.fits())
        self._readers[number, indexes] = reader
        return reader

    def _descriptors_of(self, number: int, schemas: Schemas) -> bytes | str:
        """Return the descriptors of a schema; why not, where it is none of Protobuf. Raise NotYetError."""
        if number not in self._descriptors:
            registered = schemas.get(number)
            if registered is None:
                # Asked for again: it may be registered later.
                return f"the registry has no schema {number}"
            self._descriptors[number] = described(registered, number)
        return self._descriptors[number]
