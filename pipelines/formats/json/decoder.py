"""JSON records: each record is one UTF-8 object; pyarrow parses a chunk at a time, without the GIL.

Runs on the decode pool's threads and holds no state. `docs/formats.md` has the table of verdicts.

The parser reads a stream of objects and knows nothing of records, so counting rows proves nothing: `{"id":0}{"id":1}`,
an empty value and `{"id":2}` are three rows of three records. That each row is exactly one record, and the right one,
is shown for every chunk:

1. *Frame.* Every record that reaches the parser begins with `{`, ends with `}` and holds no NUL byte, which would end
   the parser's text there and hide what follows (`framing`). A newline is put after each.
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

Refused records are found without halving where that is cheaper. `look` finds most of them in the bytes of the
chunk, before it is parsed if the frame has refused some, otherwise after the parser has stopped. Of those that are
left the parser names the row at which it stops, or the number; where it names nothing, or they are many, `faults`
diagnoses each. All are only hints. A record is refused on the word of the parser about its bytes alone,
or where the parser is certain to say the same: text that is not JSON, or a value of another type than the parser was
given. `Refusal`s come from `diagnose` in any case, so the verdict is the same too.

Of a nested record only the names on the asked paths are read. Where a record, or one around it, is null, its fields are
null too: a null parent is a missing field.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from millrace.consumers.records import Int64s
from millrace.pipelines.formats.json.faults import JsonAsked, Sure, diagnose, infinity_reason, without_large_numbers
from millrace.pipelines.formats.json.framing import FramedJson, framed
from millrace.pipelines.formats.json.look import JsonLook, suspects_of
from millrace.pipelines.formats.shared.arrow_columns import (
    ColumnReader,
    element_type,
    in_lists,
    in_lists_like,
    one_array,
)
from millrace.pipelines.formats.shared.paths import (
    AskedField,
    PathStep,
    asked_of,
    distinct_fields,
    steps_of,
)
from millrace.pipelines.formats.shared.pieces import (
    LARGEST,
    begins_of,
    is_utf8,
    joined,
    matching,
    not_utf8,
    text_without,
    together,
    without,
)
from millrace.pipelines.formats.shared.protocol import DecodedValues, Refusal
from millrace.pipelines.schema import Field, Schema

_MOST_ROWS = 50_000
"""Rows of one parse: the parser refuses more than 100,000."""
_SPARSE = 24
"""If more than one record in this many is refused, to diagnose all costs less than to parse on after each."""
_STOPPED_AT = re.compile(r" in row (\d+)$")
_NO_WHOLE_NUMBER = re.compile(r"Failed to convert JSON to u?int64, couldn't parse:(.+)$")


class _ParserStop(NamedTuple):
    """The parser has refused a text."""

    rows: Sequence[int] = ()
    """The rows that may be at fault: a hint, never a verdict."""
    reads_on: bool = False
    """Whether it is one row, and all before it would parse."""


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


class _Sifted:
    """Records of a group, from which those at fault are taken out; what is passed needs no other look."""

    def __init__(self, group: _JsonGroup, out: Sequence[int] = ()) -> None:
        self.records, self.indices = [*group.records], group.indices
        self.rest = np.ones(len(group.records), dtype=bool)
        self.rest[[*out]] = False
        self.passed = 0
        """Records of which the parser has passed all that are left."""
        self._most = (len(group.records) - len(out)) // _SPARSE

    def suspects(self, stop: _ParserStop) -> list[int] | None:
        """Return the records that may be at fault; None where none is known, or there are too many."""
        order = self._order()
        found = [int(order[row]) for row in stop.rows if row < len(order)]
        self._most -= len(found)
        if not found or self._most < 0:
            return None
        if stop.reads_on:
            self.passed = found[0] + 1
        return found

    def few(self, suspects: list[int]) -> list[int]:
        """Return the suspects that are left, or none of them where they are too many to be looked at one by one."""
        left = [at for at in suspects if self.rest[at]]
        return left if len(left) <= self._most else []

    def everyone(self) -> list[int]:
        """Return all records that are left."""
        return [int(at) for at in np.flatnonzero(self.rest)]

    def left(self, text: bytes | None = None, begins: Int64s | None = None) -> tuple[_JsonGroup, bytes]:
        """Return the records that are left, and as one text; `text` is that of all, where each is as it was."""
        out = np.flatnonzero(~self.rest)
        records = without(self.records, out.tolist())
        group = _JsonGroup(records, np.delete(self.indices, out))
        if text is None or begins is None:
            return group, joined(records)
        return group, text_without(text, begins, out.tolist())

    def not_passed(self) -> _JsonGroup:
        """Return those of them that the parser has not passed."""
        places = self._order()
        return _JsonGroup([self.records[at] for at in places.tolist()], self.indices[places])

    def _order(self) -> Int64s:
        return self.passed + np.flatnonzero(self.rest[self.passed :])


def _fits_one_parse(group: _JsonGroup, text: bytes) -> bool:
    return len(group.records) <= 1 or (len(group.records) <= _MOST_ROWS and len(text) <= LARGEST)


class JsonDecoder:
    """Decodes JSON objects."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._reader = ColumnReader(distinct_fields(schema))
        self._paths = ArrowPaths(self._reader.fields.values())
        self._asked = JsonAsked(self._reader.fields.values())
        self._look = JsonLook(self._asked.names)
        self._parsed = pj.ParseOptions(explicit_schema=self._paths.schema, unexpected_field_behavior="ignore")

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        """Decode any number of values, also none."""
        framing = framed(values)
        refused = [*framing.refused]
        pieces: list[DecodedValues] = []
        for outcome in self._outcomes(framing):
            if isinstance(outcome, Refusal):
                refused.append(outcome)
                continue
            piece = self._columns(outcome)
            pieces.append(piece)
            refused += piece.refused
        refused.sort(key=lambda refusal: refusal.index)
        return together([self._reader.no_rows(), *pieces], tuple(refused))

    def _outcomes(self, framing: FramedJson) -> Iterator[_JsonRows | Refusal]:
        """Yield the framed records that parse as rows, in order, and verdicts on the others.

        Where some are not framed, those of the others that are at fault are looked for before the parser is asked.
        """
        group = _JsonGroup(framing.records, np.arange(len(framing.records)))
        if not framing.refused:
            yield from self._read_or_split(group, framing.text, framing.begins)
            return
        sifted = _Sifted(group, [refusal.index for refusal in framing.refused])
        if _fits_one_parse(group, framing.text):
            yield from self._sift(sifted, framing.text, framing.begins)
            return
        left, text = sifted.left(framing.text, framing.begins)
        yield from self._read_or_split(left, text, begins_of(left.records))

    def _read_or_split(
        self, group: _JsonGroup, text: bytes, begins: Int64s, *, looked: bool = False
    ) -> Iterator[_JsonRows | Refusal]:
        """Yield the records that parse as rows, in order, and verdicts on the others.

        `looked`: these records were diagnosed before, and it did not help, so only halving is left.
        """
        if not group.records:
            return
        if not _fits_one_parse(group, text):
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
            yield from self._sift(_Sifted(group), text, begins)

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
            yield from self._read_or_split(part, joined(part.records), begins_of(part.records), looked=looked)

    def _sift(self, sifted: _Sifted, text: bytes, begins: Int64s) -> Iterator[_JsonRows | Refusal]:
        """Refuse the suspects that the parser refuses, and settle the rest. `text` is that of all, also those out."""
        tamed = False
        for at in sifted.few(suspects_of(text, begins, self._look)):
            verdict = self._suspected(sifted, at, looked=False)
            if isinstance(verdict, Refusal):
                yield verdict
            tamed |= isinstance(verdict, bytes)
        left, rest = sifted.left() if tamed else sifted.left(text, begins)
        if not left.records:
            return
        parsed = self._parse(left.records, rest)
        if isinstance(parsed, pa.Table):
            yield _JsonRows(left.indices, left.records, parsed)
            return
        yield from self._sift_on(sifted, parsed)

    def _sift_on(self, sifted: _Sifted, stop: _ParserStop) -> Iterator[_JsonRows | Refusal]:
        """Refuse the records that make the parser stop, one after the other, and settle the rest."""
        looked = False
        while True:
            suspects = sifted.suspects(stop)
            looked = suspects is None
            refused = 0
            for at in sifted.everyone() if suspects is None else suspects:
                verdict = self._suspected(sifted, at, looked=looked)
                refused += verdict is not None
                if isinstance(verdict, Refusal):
                    yield verdict
            if looked:
                break
            if not refused:  # where a record before it is several values, the row is that of another record
                sifted.passed, stop = 0, _ParserStop()
                continue
            after = sifted.not_passed()
            parsed = self._parse(after.records, joined(after.records))
            if isinstance(parsed, pa.Table):
                if sifted.passed:
                    break
                if after.records:
                    yield _JsonRows(after.indices, after.records, parsed)
                return
            stop = parsed
        left, text = sifted.left()
        yield from self._read_or_split(left, text, begins_of(left.records), looked=looked)

    def _suspected(self, sifted: "_Sifted", at: int, *, looked: bool) -> "Refusal | bytes | None":
        """Return the verdict on a suspect, or how it can be parsed; None where it is not at fault."""
        record = sifted.records[at]
        fault = diagnose(record, self._asked)
        if fault.unread and (tame := without_large_numbers(record)) != record:
            sifted.records[at] = tame
            return tame
        asked = fault.sure is Sure.LIKELY or (fault.sure is Sure.UNKNOWN and not looked)
        if fault.sure is Sure.CERTAIN or (asked and isinstance(self._parse([record], joined([record])), _ParserStop)):
            sifted.rest[at] = False
            return Refusal(int(sifted.indices[at]), fault.reason, fault.field)
        return None

    def _parse(self, records: Sequence[bytes], text: bytes) -> "pa.Table | _ParserStop":
        """Return a table with one row for each record, or where the parser stopped. `text` is the records, joined."""
        if not is_utf8(text):
            return _ParserStop(not_utf8(text, begins_of(records)))
        # One block, because the parser refuses an object that lies across two. One thread, because the pool has others.
        options = pj.ReadOptions(use_threads=False, block_size=len(text) + 1)
        try:
            table = pj.read_json(pa.BufferReader(text), read_options=options, parse_options=self._parsed)
        except pa.ArrowInvalid as error:
            words = str(error)
            if row := _STOPPED_AT.search(words):
                return _ParserStop([int(row[1])], reads_on=True)
            number = _NO_WHOLE_NUMBER.search(words)
            holds = None if number is None else matching(text, begins_of(records), re.escape(number[1]))
            return _ParserStop(() if holds is None else np.flatnonzero(holds).tolist())
        return table if table.num_rows == len(records) else _ParserStop()

    def _columns(self, rows: _JsonRows) -> DecodedValues:
        arrays = self._paths.arrays(rows.table)
        return self._reader.read(arrays, rows.indices, lambda row, _: infinity_reason(rows.records[row]))


class ArrowPaths:
    """The paths of some fields."""

    def __init__(self, fields: Iterable[Field]) -> None:
        """Raise ConfigError where two fields cannot both be read from a record."""
        fields = tuple(fields)
        self.asked: Mapping[str, AskedField] = asked_of(fields)
        self.schema = pa.schema([(name, _type(asked)) for name, asked in self.asked.items()])
        """The columns of a table of such records."""
        self._steps = {field.source: steps_of(field) for field in fields}

    def arrays(self, table: pa.Table) -> dict[str, pa.Array | pa.ChunkedArray]:
        """Return the array of each field by source: its values, or lists of them, one dimension a list."""
        return {
            source: table.column(steps[0].name)
            if len(steps) == 1
            else _within(one_array(table.column(steps[0].name)), steps)
            for source, steps in self._steps.items()
        }


def _type(asked: AskedField) -> pa.DataType:
    if asked.leaf is not None:
        return in_lists(element_type(asked.leaf), asked.lists)
    return in_lists(pa.struct([(name, _type(member)) for name, member in asked.members.items()]), asked.lists)


def _within(array: pa.Array, steps: Sequence[PathStep], lists: int | None = None) -> pa.Array:
    """Return what the steps lead to; the array holds the value of the first, in so many lists."""
    here, *rest = steps
    if not rest:
        return array
    if lists is None:
        lists = here.lists
    if lists:
        return in_lists_like(array, _within(array.flatten(), steps, lists - 1))
    member = array.type.get_field_index(rest[0].name)
    # Unlike `field`, this shows a member of a null as null.
    return _within(pc.struct_field(array, [member]), rest)
