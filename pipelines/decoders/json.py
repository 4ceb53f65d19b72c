"""JSON records: each record is one UTF-8 object; pyarrow parses a chunk at a time, without the GIL.

Runs on the decode pool's threads and holds no state. `docs/formats.md` has the table of verdicts.

The parser reads a stream of objects and knows nothing of records, so counting rows proves nothing: `{"id":0}{"id":1}`,
an empty value and `{"id":2}` are three rows of three records. That each row is exactly one record, and the right one,
is shown for every chunk:

1. *Frame.* Every record that reaches the parser begins with `{`, ends with `}` and holds no NUL byte, which would end
   the parser's text there and hide what follows (`json_framing`). A newline is put after each.
2. *A seam lies between two values.* Take the newline after a record that another follows. It is not inside a string:
   the parser refuses a raw control character there. The byte before it is then the token `}`, which ends an object.
   Were that object inside another or inside a list, a `,`, `]` or `}` would have to follow; what follows is `{`, which
   the parser refuses. So no value is open at a seam, and every record is one or more whole values.
3. *Count.* The parser read all of the text, as no NUL ended it early, and one value makes one row. If n records make
   n rows, each record is one value, an object since it begins with `{`, and row i is record i.

Where the parser refuses the text or the rows are not n, the chunk is halved, and the halves go to the *same* parser,
down to single records: a record is refused if and only if its own bytes, alone, do not make one row. A record that
makes one row alone makes the same row in any text of such records: the parser carries nothing from one object to the
next (the types are given, fields that nobody asked for are skipped unread, and a byte order mark is skipped at the
start only, where a `{` stands).

UTF-8 is checked apart, since the parser does not; a seam is ASCII, so joined text is UTF-8 if and only if each record
is. Depth costs the parser memory, not stack. A `null` between two objects makes the parser read before the beginning
of its stack, so the frame sorts it out. A record may repeat fields that the schema does not name, and not those that
it does.

A number beyond float64 in a field that nobody reads is the one thing that the parser refuses and that is valid JSON.
Such a record is parsed again with 0 in its place: a field that nobody reads keeps no record from being learnt, whether
it holds that or NaN.

Refused records are found without halving where that is cheaper: the parser names the row at which it stops, or, where
they are many, `json_faults` diagnoses each. Both are only hints. A record is refused on the word of the parser about
its bytes alone, or where the parser is certain to say the same: text that is not JSON, or a value of another type than
the parser was given. `Refusal`s come from `diagnose` in either case, so the verdict is the same too.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from consumers.records import Int64s
from pipelines.decoders.arrow_paths import ArrowPaths
from pipelines.decoders.column_reader import ColumnReader
from pipelines.decoders.json_faults import JsonAsked, Sure, diagnose, infinity_reason, without_large_numbers
from pipelines.decoders.json_framing import framed
from pipelines.decoders.pieces import together
from pipelines.decoders.protocol import DecodedValues, Refusal
from pipelines.decoders.sources import distinct_fields
from pipelines.decoders.text import LARGEST, is_utf8, joined
from pipelines.schema import Schema

_MOST_ROWS = 50_000
"""Rows of one parse: the parser refuses more than 100,000."""
_SPARSE = 24
"""If more than one record in this many is refused, to diagnose all costs less than to parse on after each."""
_STOPPED_AT = re.compile(r" in row (\d+)$")


class _ParserStop(NamedTuple):
    """The parser has refused a text."""

    row: int | None
    """The row at which the parser says that it stopped: a hint, never a verdict."""


class _JsonGroup(NamedTuple):
    """Framed records."""

    records: Sequence[bytes]
    indices: Int64s
    """The index of each record in the values that were passed in, ascending."""


class _JsonRows(NamedTuple):
    """Records that are proven to be one row of the table each."""

    indices: Int64s
    records: Sequence[bytes]
    table: pa.Table


class JsonDecoder:
    """Decodes JSON objects."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._reader = ColumnReader(distinct_fields(schema))
        self._paths = ArrowPaths(self._reader.fields.values())
        self._asked = JsonAsked(self._reader.fields.values())
        self._parsed = pj.ParseOptions(explicit_schema=self._paths.schema, unexpected_field_behavior="ignore")

    @property
    def schema(self) -> Schema:
        """The schema that the decoder follows."""
        return self._schema

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        """Decode any number of values, also none."""
        records, indices, text, refused = framed(values)
        pieces: list[DecodedValues] = []
        for outcome in self._read_or_split(_JsonGroup(records, indices), text):
            if isinstance(outcome, Refusal):
                refused.append(outcome)
                continue
            piece = self._columns(outcome)
            pieces.append(piece)
            refused += piece.refused
        refused.sort(key=lambda refusal: refusal.index)
        return together([self._reader.no_rows(), *pieces], tuple(refused))

    def _read_or_split(self, group: _JsonGroup, text: bytes, *, looked: bool = False) -> Iterator[_JsonRows | Refusal]:
        """Yield the records that parse as rows, in order, and verdicts on the others.

        `looked`: these records were diagnosed before, and it did not help, so only halving is left.
        """
        if not group.records:
            return
        if len(group.records) > 1 and (len(group.records) > _MOST_ROWS or len(text) > LARGEST):
            yield from self._halves(group, looked=looked)
            return
        parsed = self._parse(group.records, text)
        if isinstance(parsed, pa.Table):
            yield _JsonRows(group.indices, group.records, parsed)
        elif len(group.records) == 1:
            yield from self._read_or_refuse(group)
        elif looked:
            yield from self._halves(group, looked=True)
        else:
            yield from self._sift(group, parsed)

    def _read_or_refuse(self, group: _JsonGroup) -> Iterator[_JsonRows | Refusal]:
        """Yield the verdict on one record that the parser refuses, or its row without the numbers that nobody reads."""
        (record,) = group.records
        fault = diagnose(record, self._asked)
        tame = [without_large_numbers(record)] if fault.unread else []
        parsed = self._parse(tame, joined(tame)) if tame and tame != [record] else None
        if isinstance(parsed, pa.Table):
            yield _JsonRows(group.indices, tame, parsed)
        else:
            yield Refusal(int(group.indices[0]), fault.reason, fault.field)

    def _halves(self, group: _JsonGroup, *, looked: bool) -> Iterator[_JsonRows | Refusal]:
        middle = len(group.records) // 2
        for half in (slice(middle), slice(middle, None)):
            part = _JsonGroup(group.records[half], group.indices[half])
            yield from self._read_or_split(part, joined(part.records), looked=looked)

    def _sift(self, group: _JsonGroup, stop: _ParserStop) -> Iterator[_JsonRows | Refusal]:
        """Refuse the suspects that the parser refuses, and settle the rest."""
        stops = self._stops(group.records, stop)
        everyone = stops is None
        rest = np.ones(len(group.records), dtype=bool)
        records = [*group.records]
        for at in range(len(records)) if stops is None else stops:
            record = records[at]
            fault = diagnose(record, self._asked)
            if fault.unread:
                records[at] = without_large_numbers(record)
                continue
            asked = fault.sure is Sure.LIKELY or (fault.sure is Sure.UNKNOWN and not everyone)
            if fault.sure is Sure.CERTAIN or (
                asked and isinstance(self._parse([record], joined([record])), _ParserStop)
            ):
                yield Refusal(int(group.indices[at]), fault.reason, fault.field)
                rest[at] = False
        left = [records[at] for at in np.flatnonzero(rest).tolist()]
        looked = everyone or left == [*group.records]
        yield from self._read_or_split(_JsonGroup(left, group.indices[rest]), joined(left), looked=looked)

    def _stops(self, records: Sequence[bytes], stop: _ParserStop) -> list[int] | None:
        """Return the rows that the parser names, parsing on after each; None if it names none, or too many."""
        rows: list[int] = []
        while len(rows) < len(records) // _SPARSE:
            start = rows[-1] + 1 if rows else 0
            if stop.row is None or start + stop.row >= len(records):
                return None
            rows.append(start + stop.row)
            rest = records[rows[-1] + 1 :]
            parsed = self._parse(rest, joined(rest))
            if isinstance(parsed, pa.Table):
                return rows
            stop = parsed
        return None

    def _parse(self, records: Sequence[bytes], text: bytes) -> "pa.Table | _ParserStop":
        """Return a table with one row for each record, or where the parser stopped. `text` is the records, joined."""
        if not is_utf8(text):
            return _ParserStop(None)
        # One block, because the parser refuses an object that lies across two. One thread, because the pool has others.
        options = pj.ReadOptions(use_threads=False, block_size=len(text) + 1)
        try:
            table = pj.read_json(pa.BufferReader(text), read_options=options, parse_options=self._parsed)
        except pa.ArrowInvalid as error:
            row = _STOPPED_AT.search(str(error))
            return _ParserStop(int(row[1]) if row else None)
        return table if table.num_rows == len(records) else _ParserStop(None)

    def _columns(self, rows: _JsonRows) -> DecodedValues:
        arrays = self._paths.arrays(rows.table)
        return self._reader.read(arrays, rows.indices, lambda row, _: infinity_reason(rows.records[row]))
