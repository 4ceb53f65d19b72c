"""Selection: which records of a chunk match the conditions of `records.where`, found before any row is made of them.

The conditions are looked at one after the other: first those on what Kafka has beside the value, then those on the name
of the schema, then those on fields of the value, each in the order of the settings. A record that does not match one is
filtered: it is looked at no further. One whose field cannot be read, or that is no record at all, is refused as in
decoding, with the reason. A look depends on the bytes of the record alone.

A field of the value is read by a decoder of the format for that field alone. Formats that can tell at a glance that a
record holds another text (`Format.glance`) do so first.

Runs on the decode pool's threads; keeps nothing but names of schemas.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from millrace.consumers.errors import ConfigError
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Chunk, Int64s
from millrace.pipelines.formats.format import Format, Glance
from millrace.pipelines.formats.shared.paths import is_envelope
from millrace.pipelines.formats.shared.protocol import DecodedValues, Decoder, Refusal, each_known
from millrace.pipelines.schema import Field, Schema, Schemas
from millrace.pipelines.where.conditions import SCHEMA, Mask, WhereCondition

Where = Mapping[str, WhereCondition]


class Selected(NamedTuple):
    """What is left of a chunk."""

    chunk: Chunk
    """The records that match; it covers the same offsets."""
    filtered: Int64s
    """The offsets of those that do not, ascending."""
    refused: list[Refusal]
    """Those that no condition can be told of, by their index in the whole chunk."""


class _WhereLook(Protocol):
    """Evaluates one condition."""

    def __call__(self, chunk: Chunk) -> tuple[Mask, Sequence[Refusal]]:
        """Return which records match, and those of which that cannot be told."""
        ...


class SelectingDecoder:
    """A decoder of the records that match; `decode_chunk` asks it for them before it decodes."""

    def __init__(self, decoder: Decoder, looks: Sequence[_WhereLook]) -> None:
        self._decoder, self._looks = decoder, looks

    @property
    def schema(self) -> Schema:
        """The schema of the rows."""
        return self._decoder.schema

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        """Decode values of records that match."""
        return self._decoder.decode(values)

    def select(self, chunk: Chunk) -> Selected:
        """Return the records that match. Raise NotYetError while a schema is not known."""
        left, rows = chunk, np.arange(len(chunk))
        filtered, refused = [np.empty(0, np.int64)], list[Refusal]()
        for look in self._looks:
            if not len(left):
                break
            matches, unread = look(left)
            told = np.ones(len(left), np.bool_)
            told[[refusal.index for refusal in unread]] = False
            refused += [refusal._replace(index=int(rows[refusal.index])) for refusal in unread]
            filtered.append(left.offsets[told & ~matches])
            kept = np.flatnonzero(told & matches)
            if len(kept) < len(left):
                left, rows = left.at(kept), rows[kept]
        return Selected(left, np.sort(np.concatenate(filtered)), refused)


def selecting(
    decoder: Decoder, where: Where, form: Format, settings: Any = None, schemas: Schemas | None = None
) -> Decoder:
    """Return the decoder of the records that match; the decoder itself where nothing is asked for.

    `settings` are those of the format's section, `schemas` those of a registry. Raise ConfigError.
    """
    if not where:
        return decoder
    looks: list[_WhereLook] = []
    for source, condition in sorted(where.items(), key=lambda entry: _cost(entry[0])):
        if source == SCHEMA:
            looks.append(_SchemaLook(condition, form, schemas))
            continue
        field = condition.field(source, decoder.schema)
        if is_envelope(source):
            looks.append(_EnvelopeLook(condition, field))
        else:
            part, own = form.part_of(field, decoder.schema, settings)
            glance = (
                None if (texts := condition.texts) is None else form.glance(source, texts, framed=schemas is not None)
            )
            looks.append(_ValueLook(condition, source, form.decoder(part, own, schemas), glance))
    return SelectingDecoder(decoder, looks)


def check(where: Where, form: Format | None, whole: Schema, settings: Any = None, *, registered: bool = False) -> None:
    """Raise ConfigError where a condition does not fit the fields of the records, or their format if it is ours."""
    for source, condition in where.items():
        if source == SCHEMA:
            _check_schema(condition, form, registered=registered)
            continue
        field = condition.field(source, whole)
        if form is not None and not is_envelope(source):
            part, _ = form.part_of(field, whole, settings)
            if (complaint := form.whole_complaint(part.fields)) is not None:
                raise ConfigError(f"records.where: {complaint}")


def _check_schema(condition: WhereCondition, form: Format | None, *, registered: bool) -> None:
    if not registered or form is None:
        raise ConfigError(f"records.where: {SCHEMA} is the name of a schema of a registry; write records.registry")
    if condition.texts is None or condition.dtype is not None:
        raise ConfigError(f"records.where: {SCHEMA} is a name; write one, a list of names, or not with these")


def _cost(source: str) -> int:
    return 0 if is_envelope(source) and source != SCHEMA else 1 if source == SCHEMA else 2


@dataclass(frozen=True, slots=True)
class _ValueLook:
    """Reads a field of the value."""

    condition: WhereCondition
    source: str
    decoder: Decoder
    glance: Glance | None

    def __call__(self, chunk: Chunk) -> tuple[Mask, Sequence[Refusal]]:
        matches = np.full(len(chunk), self.condition.if_absent)
        values, rows = chunk.values, np.arange(len(chunk))
        if self.glance is not None:
            glanced, others_match = self.glance(values), self.condition.of_other_texts
            matches[glanced.others], matches[glanced.listed] = others_match, not others_match
            rows = np.flatnonzero(~(glanced.listed | glanced.others))
            if not len(rows):
                return matches, ()
            values = [values[row] for row in rows.tolist()]
        decoded = self.decoder.decode(values)
        matches[rows[decoded.kept]] = self.condition.holds(decoded.columns[self.source])
        return matches, _unread(decoded.refused, self.source, rows)


@dataclass(frozen=True, slots=True)
class _EnvelopeLook:
    """Reads what Kafka has beside the value."""

    condition: WhereCondition
    field: Field

    def __call__(self, chunk: Chunk) -> tuple[Mask, Sequence[Refusal]]:
        from millrace.pipelines.formats.shared.record_envelope import read_envelope  # noqa: PLC0415 - loads pyarrow

        read = read_envelope(chunk, [self.field])
        matches = np.full(len(chunk), self.condition.if_absent)
        matches[read.kept] = self.condition.holds(read.columns[self.field.source])
        return matches, _unread(read.refused, self.field.source, np.arange(len(chunk)))


def _unread(refused: Sequence[Refusal], source: str, rows: Int64s) -> list[Refusal]:
    """Return the verdicts on records whose field cannot be read; a field that is not there is no fault."""
    faults = [one for one in refused if one.reason is not Reason.MISSING or one.field != source]
    return [one._replace(index=int(rows[one.index])) for one in faults]


class _SchemaLook:
    """Compares the name of the schema of a registry, or of the message, in full or by its last parts."""

    def __init__(self, condition: WhereCondition, form: Format, schemas: Schemas | None) -> None:
        _check_schema(condition, form, registered=schemas is not None)
        assert schemas is not None
        self._condition, self._form, self._schemas = condition, form, schemas
        self._names = [text.decode() for text in condition.texts or ()]
        self._known: dict[bytes, bool] = {}
        """Of what records begin with, whether these match."""

    def __call__(self, chunk: Chunk) -> tuple[Mask, Sequence[Refusal]]:
        begins = [self._form.header(value) if value else b"" for value in chunk.values]
        headers = [header for header in dict.fromkeys(begins) if header]
        verdict: dict[bytes, bool | None] = dict(zip(headers, each_known(headers, self._matches), strict=True))
        found = [verdict.get(header) for header in begins]
        refused = [
            self._refusal(row, chunk.values[row], begins[row]) for row, match in enumerate(found) if match is None
        ]
        return np.array([match is True for match in found], np.bool_), refused

    def _matches(self, header: bytes) -> bool | None:
        """Return whether a schema matches; None where the registry has none of its number."""
        if header not in self._known:
            name = self._form.schema_name(header, self._schemas)
            if name is None:
                return None  # asked for again: it may be registered later
            listed = any(name == one or name.endswith(f".{one}") for one in self._names)
            self._known[header] = listed is not self._condition.of_other_texts
        return self._known[header]

    @staticmethod
    def _refusal(row: int, value: bytes | None, header: bytes) -> Refusal:
        if not value:
            return Refusal(row, Reason.EMPTY)
        if not header:
            return Refusal(row, Reason.MALFORMED)
        return Refusal(row, Reason.UNKNOWN_SCHEMA, schema=int.from_bytes(header[1:]))


def some_matching(where: Where, schema: Schema) -> Schema:
    """Return the schema of records to make up, of which some match. Raise ConfigError where none can be made up."""
    asked = {source: condition.field(source, schema) for source, condition in where.items() if source != SCHEMA}
    if beside := [source for source in where if source == SCHEMA or is_envelope(source)]:
        raise ConfigError(
            f"records.where: {beside[0]!r} is beside the value, and records that are made up have values alone; for a "
            "proof copy the config, and leave that condition out of the copy"
        )
    values = {source: where[source].examples for source in asked}

    def drawn(field: Field) -> Field:
        own = values.get(field.source, ())
        return replace(field, one_of=own) if own and field.one_of is None and field.example is None else field

    known = {field.source for field in schema.fields}
    more = tuple(
        drawn(field) for source, field in asked.items() if source not in known and where[source].present is not False
    )
    return replace(schema, features=(*map(drawn, schema.features), *more), labels=tuple(map(drawn, schema.labels)))
