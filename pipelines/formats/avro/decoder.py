"""Avro records, plain or in Confluent's wire format: decoded column by column with numpy, for many records at once.

A record is read by the schema that wrote it: the one of the settings, or the one whose number the record begins with.
The records of a chunk are read in groups, one for each schema; each gives the same columns, whatever its schema.

Runs on the decode pool's threads. What is kept are the plans of schemas, which are immutable.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.consumers.errors import ConfigError
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Int64s
from millrace.pipelines.formats.avro.lanes import Buffer, lanes_of
from millrace.pipelines.formats.avro.nodes import AvroNode
from millrace.pipelines.formats.avro.plans import Arrays, ColumnPlan, Known, Planner, Want
from millrace.pipelines.formats.avro.writer_schema import known_of, node_of, parsed
from millrace.pipelines.formats.shared.arrow_columns import ColumnReader, Faults, arrow_type
from millrace.pipelines.formats.shared.paths import distinct_fields, parse
from millrace.pipelines.formats.shared.pieces import LARGEST, together, without_empty
from millrace.pipelines.formats.shared.protocol import LONGEST_DETAIL, DecodedValues, Refusal, SchemaFit, each_known
from millrace.pipelines.schema import Field, RegisteredSchema, Schema, Schemas

_HEADER = 5
"""Bytes of Confluent's wire format before the value: a zero, and the number of the schema, big-endian."""


@dataclass(frozen=True, slots=True)
class _Writer:
    """How records of one schema are read."""

    node: AvroNode
    plan: ColumnPlan
    fit: SchemaFit | None = None
    """Of a schema of the registry: how the fields are read by it."""


class AvroDecoder:
    """Decodes Avro records."""

    def __init__(
        self, schema: Schema, writer: str | None = None, path: str = "", schemas: Schemas | None = None
    ) -> None:
        """Take the schema that wrote plain records, as JSON, and its file; with a registry they are the reader's."""
        self.schema, self._path, self._schemas = schema, path, schemas
        self._reader = ColumnReader(distinct_fields(schema))
        self._wants = [_want(field, schema.event_time) for field in self._reader.fields.values()]
        self._known: Mapping[tuple[str, ...], Known] = {}
        self._writers: dict[int | None, _Writer | str] = {}
        """By the schema's number; a text says why its records cannot be read."""
        if writer is not None:
            what = f"records.avro.schema_file: {path}"
            read, named = parsed(writer, what)
            if schemas is None:
                self._writers[None] = self._only_writer(node_of(read, named, what))
            else:
                self._known = known_of(read, named)
        elif schemas is None:
            raise ConfigError("records.avro.schema_file: Avro records are read by their schema; name its file")

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        """Decode any number of values, also none. Raise NotYetError while a schema is not known."""
        records, indices, refused = without_empty(values)
        lengths = np.fromiter(map(len, records), np.int64, len(records))
        # The bytes may be any: a NaN that signals, or a number too large, is found in its column, not by a warning.
        with np.errstate(invalid="ignore", over="ignore"):
            pieces = [self._part(records[part], lengths[part], indices[part]) for part in _parts(lengths)]
        for piece in pieces:
            refused += piece.refused
        refused.sort(key=lambda refusal: refusal.index)
        joined = together([self._reader.no_rows(), *pieces], tuple(refused))
        schemas = {fit.number: (fit, index) for piece in reversed(pieces) for fit, index in piece.schemas}
        return replace(joined, schemas=tuple(sorted(schemas.values(), key=lambda one: one[1]))) if schemas else joined

    def _part(self, records: Sequence[bytes], lengths: Int64s, indices: Int64s) -> DecodedValues:
        """Return the columns of records, none of which is empty."""
        buffer = Buffer(records, lengths)
        unknown = np.zeros(len(records), bool)
        groups: list[tuple[Int64s, Arrays]] = []
        by_writer = self._by_writer(buffer)
        writers = each_known((number for number, _ in by_writer), self._writer)
        for (number, rows), writer in zip(by_writer, writers, strict=True):
            if isinstance(writer, str):
                unknown[rows] = True
            else:
                groups.append((rows, _read(writer, buffer, rows, 0 if number is None else _HEADER)))
        good = ~(buffer.broken | unknown)
        kept = np.flatnonzero(good)
        arrays = {want.source: _in_order(groups, want, good) for want in self._wants}
        found: dict[str, Faults] = {source: shows[kept] for source, shows in buffer.shows.items()}

        def infinity(row: int, field: Field) -> Reason:
            large = buffer.overflows.get(field.source)
            return Reason.OUT_OF_RANGE if large is not None and large[kept[row]] else Reason.NOT_FINITE

        piece = self._reader.read(arrays, indices[kept], infinity, found)
        bad = [
            Refusal(index, Reason.UNKNOWN_SCHEMA if unknown[row] else Reason.MALFORMED)
            for row, index in zip(np.flatnonzero(~good).tolist(), indices[~good].tolist(), strict=True)
        ]
        refused = _explained((*piece.refused, *bad), indices, by_writer, writers)
        firsts = zip(writers, (int(indices[rows[0]]) for _, rows in by_writer), strict=True)
        schemas = [(one.fit, first) for one, first in firsts if isinstance(one, _Writer) and one.fit is not None]
        return DecodedValues(piece.kept, piece.columns, refused, piece.lengths, tuple(schemas))

    def _by_writer(self, buffer: Buffer) -> list[tuple[int | None, Int64s]]:
        """Return the numbers of schemas with their records; those without a number are broken."""
        every = np.arange(len(buffer.starts))
        if self._schemas is None:
            return [(None, every)]
        framed = (buffer.ends - buffer.starts >= _HEADER) & (buffer.data[buffer.starts] == 0)
        buffer.broken |= ~framed
        numbers = buffer.at_any_byte(">u4")[buffer.starts + 1].astype(np.int64)
        return [(int(number), np.flatnonzero(framed & (numbers == number))) for number in np.unique(numbers[framed])]

    def _writer(self, number: int | None) -> _Writer | str:
        if number not in self._writers:
            assert self._schemas is not None
            assert number is not None
            registered = self._schemas.get(number)
            if registered is None:
                # Asked for again: it may be registered later.
                return f"the registry has no schema {number}"
            self._writers[number] = self._writer_of(registered, number)
        return self._writers[number]

    def _writer_of(self, registered: RegisteredSchema, number: int) -> _Writer | str:
        """Return how records of a registered schema are read; why not, where it is none of Avro."""
        if registered.kind != "AVRO":
            return f"schema {number} is of {registered.kind}, not of AVRO"
        try:
            what = f"schema {number}"
            read, named = parsed(registered.text, what, [text for _, text in registered.references])
            node, planner = node_of(read, named, what), Planner(self._known)
            plan = planner.plan(node, self._wants)
        except ConfigError as error:
            return str(error).removesuffix("; mend it")[:LONGEST_DETAIL]
        name = str(read.get("name", "")) if isinstance(read, dict) else ""
        fields = {source: planner.fit(source, field.missing) for source, field in self._reader.fields.items()}
        return _Writer(node, plan, SchemaFit(number=number, name=name or "a value", fields=fields))

    def _only_writer(self, node: AvroNode) -> _Writer:
        """Return how all records are read; raise ConfigError for a field that the schema cannot give."""
        planner = Planner({})
        plan = planner.plan(node, self._wants)
        for source, field in self._reader.fields.items():
            if (unfit := planner.fit(source, field.missing).unfit) is not None:
                raise ConfigError(
                    f"records: {source!r} cannot be read as {field.dtype} of {self._path}: {unfit}; mend the field"
                )
        return _Writer(node, plan)


def _explained(
    refused: Sequence[Refusal],
    indices: Int64s,
    by_writer: Sequence[tuple[int | None, Int64s]],
    writers: Sequence[_Writer | str],
) -> tuple[Refusal, ...]:
    """Return the verdicts with the numbers of the schemas, and with what is wrong with these."""
    if not refused or not by_writer or by_writer[0][0] is None:
        return tuple(refused)
    group_of = np.full(len(indices), -1)
    for place, (_, rows) in enumerate(by_writer):
        group_of[rows] = place
    places = group_of[np.searchsorted(indices, [refusal.index for refusal in refused])].tolist()
    explained = list[Refusal]()
    for refusal, place in zip(refused, places, strict=True):
        writer = None if place < 0 else writers[place]
        detail = writer if isinstance(writer, str) else None
        if isinstance(writer, _Writer) and writer.fit is not None and refusal.field is not None:
            detail = writer.fit.fields[refusal.field].unfit
        number = None if place < 0 else by_writer[place][0]
        explained.append(Refusal(refusal.index, refusal.reason, refusal.field, number, detail))
    return tuple(explained)


def _want(field: Field, event_time: Field | None) -> Want:
    unit = None
    if event_time is not None and event_time.source == field.source:
        unit = "ms" if event_time.time is None else event_time.time.unit
    return Want(field.source, arrow_type(field), parse(field.source).steps, unit=unit)


def _parts(lengths: Int64s) -> list[slice]:
    """Return the records in parts whose bytes Arrow can count, one record at least in each."""
    numbers = np.cumsum(lengths) // LARGEST
    bounds = np.flatnonzero(np.diff(numbers, prepend=-1, append=-1)) if len(lengths) else np.zeros(1, np.int64)
    return [slice(int(start), int(end)) for start, end in itertools.pairwise(bounds)]


def _read(writer: _Writer, buffer: Buffer, rows: Int64s, header: int) -> Arrays:
    """Return the arrays of some records; what is left of a record behind its value makes it broken."""
    lanes = lanes_of(buffer, rows, header, writer.node.size)
    arrays = writer.plan.read(lanes)
    lanes.bury()
    left = lanes.pos != lanes.end
    if left.any():
        lanes.kill(left)
    return arrays


def _in_order(groups: Sequence[tuple[Int64s, Arrays]], want: Want, good: npt.NDArray[np.bool_]) -> pa.Array:
    """Return the rows of all groups in the order of the records, good ones only."""
    if not groups:
        return pa.nulls(0, want.type)
    if len(groups) == 1:
        rows, array = groups[0][0], groups[0][1][want.source]
    else:
        rows = np.concatenate([each for each, _ in groups])
        order = np.argsort(rows)
        array = pa.concat_arrays([arrays[want.source] for _, arrays in groups]).take(pa.array(order))
        rows = rows[order]
    kept = good[rows]
    return array if kept.all() else array.filter(pa.array(kept))
