"""What Kafka has beside the value, as columns: key, headers, timestamp, partition, offset and topic of a chunk.

Pure functions of each record's own envelope. A decoder knows values only, so that what it decodes does not depend on
where a record lies; the fields of the envelope are put beside its columns here, in any format alike. A field of text is
the bytes as they are. Numbers and truth values are read from text, by the rules of CSV columns.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from millrace.consumers.reasons import Reason
from millrace.consumers.records import Chunk, Headers, Int64s
from millrace.pipelines.formats.shared.arrow_columns import ColumnReader, Faults, Show, element_type
from millrace.pipelines.formats.shared.number_texts import converted
from millrace.pipelines.formats.shared.paths import Envelope, is_envelope, parse
from millrace.pipelines.formats.shared.pieces import is_utf8
from millrace.pipelines.formats.shared.protocol import DecodedValues, Refusal
from millrace.pipelines.schema import Field, Schema

_NUMBERS: Mapping[Envelope, Callable[[Chunk], Int64s]] = {
    Envelope.TIMESTAMP: lambda chunk: chunk.timestamps,
    Envelope.OFFSET: lambda chunk: chunk.offsets,
    Envelope.PARTITION: lambda chunk: np.full(len(chunk), chunk.partition.number, np.int64),
}
Texts = Sequence[bytes | None]


class _EnvelopeField(NamedTuple):
    """A field of the envelope, of every record of a chunk."""

    array: pa.Array
    wrong: Faults | None = None
    texts: Texts | None = None
    """What its numbers were read from; None where they are numbers in Kafka too."""


def with_envelope(chunk: Chunk, schema: Schema, decoded: DecodedValues) -> DecodedValues:
    """Return what was decoded of a chunk's values, with the fields of its envelope.

    Of a record at fault in both the first field in the schema's order is the verdict; a value that is no record at all
    comes before any field.
    """
    fields = {field.source: field.as_read for field in schema.fields if is_envelope(field.source)}
    beside = read_envelope(chunk, fields.values())
    if not decoded.refused and not beside.refused:
        return replace(decoded, columns={**decoded.columns, **beside.columns})
    good = np.zeros(len(chunk), np.bool_)
    good[decoded.kept] = True
    both = good.copy()
    both[[refusal.index for refusal in beside.refused]] = False
    of_values, of_envelope = both[decoded.kept], good[beside.kept]
    places = {field.source: place for place, field in reversed([*enumerate(schema.fields)])}
    refused: dict[int, Refusal] = {}
    for one in sorted(
        (*decoded.refused, *beside.refused), key=lambda one: (one.index, -1 if one.field is None else places[one.field])
    ):
        refused.setdefault(one.index, one)
    return DecodedValues(
        np.flatnonzero(both).astype(np.int64),
        {
            **{source: column[of_values] for source, column in decoded.columns.items()},
            **{source: column[of_envelope] for source, column in beside.columns.items()},
        },
        tuple(refused.values()),
        {source: lengths[of_values] for source, lengths in decoded.lengths.items()},
        decoded.schemas,
    )


def read_envelope(chunk: Chunk, fields: Iterable[Field]) -> DecodedValues:
    """Return columns of these fields of the envelope, which are as a record has them, and verdicts."""
    reader = ColumnReader(fields)
    headers = _headers(chunk.headers, reader.fields)
    read = {source: _field(chunk, field, headers) for source, field in reader.fields.items()}

    def infinity(row: int, field: Field) -> Reason:
        """Tell an infinity that was written as such from a number that is too large."""
        texts = read[field.source].texts
        text = texts[row] if texts is not None else None
        return Reason.NOT_FINITE if text is not None and b"n" in text.lower() else Reason.OUT_OF_RANGE

    arrays = {source: one.array for source, one in read.items()}
    wrong = {source: one.wrong for source, one in read.items() if one.wrong is not None}
    return reader.read(arrays, np.arange(len(chunk)), infinity, wrong)


def _headers(headers: Sequence[Headers], sources: Iterable[str]) -> Mapping[str, Texts]:
    """Return the last header of each name that is asked for, of every record."""
    names = [path.names[0] for path in map(parse, sources) if path.envelope is Envelope.HEADER]
    if not names:
        return {}
    # A dict keeps the last of those that have the same name.
    found = [dict(each) if each else {} for each in headers]
    return {name: [each.get(name) for each in found] for name in names}


def _field(chunk: Chunk, field: Field, headers: Mapping[str, Texts]) -> _EnvelopeField:
    path = parse(field.source)
    arrow = element_type(field)
    if path.envelope is not None and path.envelope in _NUMBERS:
        numbers = pa.array(_NUMBERS[path.envelope](chunk))
        return _EnvelopeField(numbers if arrow == numbers.type else numbers.cast(arrow, safe=False))
    if path.envelope is Envelope.TOPIC:
        return _EnvelopeField(pa.repeat(pa.scalar(chunk.partition.topic.encode(), pa.binary()), len(chunk)))
    texts = chunk.keys if path.envelope is Envelope.KEY else headers[path.names[0]]
    words = pa.array(texts, pa.binary())
    if field.dtype == "string":
        return _EnvelopeField(words)
    readable = [text if text is None or is_utf8(text) else None for text in texts]
    values, wrong = converted(pa.array(readable, pa.binary()), arrow)
    if readable.count(None) > words.null_count:
        marks = [text is not None and same is None for text, same in zip(texts, readable, strict=True)]
        marked = np.array(marks, np.uint8) * np.uint8(Show.WRONG_TYPE)
        wrong = marked if wrong is None else np.maximum(marked, wrong)
    return _EnvelopeField(values, wrong, texts)
