"""JSON records: each record is one UTF-8 object, decoded a chunk at a time, without the GIL.

Runs on the decode pool's threads and holds no state. `docs/formats.md` has the table of verdicts.

Two parsers read a chunk. Compiled code (`plain_rows`) takes the records that are plain, each by its own bytes, and
gives their values as the other would; it refuses those that are certainly faulty, for the same reason. What it leaves
goes to pyarrow's parser, which decides: all of a chunk where the code was not compiled for this machine.

That parser reads a stream of objects and knows nothing of records, so counting rows proves nothing: `{"id":0}{"id":1}`,
an empty value and `{"id":2}` are three rows of three records. That each row is exactly one record, and the right one,
is shown for every text:

1. *Frame.* Every record that reaches the parser begins with `{`, ends with `}` and holds no NUL byte, which would end
   the parser's text there and hide what follows (`framing`). A newline is put after each.
2. *A seam lies between two values.* Take the newline after a record that another follows. It is not inside a string:
   the parser refuses a raw control character there. The byte before it is then the token `}`, which ends an object.
   Were that object inside another or inside a list, a `,`, `]` or `}` would have to follow; what follows is `{`, which
   the parser refuses. So no value is open at a seam, and every record is one or more whole values.
3. *Count.* The parser read all of the text, as no NUL ended it early, and one value makes one row. If n records make
   n rows, each record is one value, an object since it begins with `{`, and row i is record i.

Where the parser refuses the text or the rows are not n, the text is halved, and the halves go to the *same* parser,
down to single records: a record is refused if and only if its own bytes, alone, do not make one row. A record that
makes one row alone makes the same row in any text of such records: the parser carries nothing from one object to the
next (the types are given, fields that nobody asked for are skipped unread, and a byte order mark is skipped at the
start only, where a `{` stands).

A few records that are refused together are diagnosed (`faults`) before they are halved, and a few that the compiled
code leaves before they are parsed at all. Those are out of which the parser is certain to say the same: text that is
not JSON, or a value of another type than the parser was given. The reason of a refusal comes from the diagnosis in
any case, so the verdict is the same too.

UTF-8 is checked apart, since no parser does; a seam is ASCII, so joined text is UTF-8 if and only if each record
is. Depth costs the parser memory, not stack. A `null` between two objects makes the parser read before the beginning
of its stack, so the frame sorts it out. A record may repeat fields that the schema does not name, and not those that
it does.

A number beyond float64 in a field that nobody reads is the one thing that the parser refuses and that is valid JSON.
Such a record is parsed again with 0 in its place: a field that nobody reads keeps no record from being learnt, whether
it holds that or NaN.

Of a nested record only the names on the asked paths are read. Where a record, or one around it, is null, its fields are
null too: a null parent is a missing field.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from millrace.consumers.reasons import Reason
from millrace.consumers.records import Int64s
from millrace.pipelines.formats.json.faults import JsonAsked, diagnose, infinity_reason, without_large_numbers
from millrace.pipelines.formats.json.framing import framed
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
    default_of,
    distinct_fields,
    steps_of,
)
from millrace.pipelines.formats.shared.pieces import (
    LARGEST,
    is_utf8,
    joined,
    together,
)
from millrace.pipelines.formats.shared.plain_rows import PlainReader, RuledField, compiled
from millrace.pipelines.formats.shared.protocol import DecodedValues, Refusal
from millrace.pipelines.schema import Field, Schema

_MOST_ROWS = 50_000
"""Rows of one parse: pyarrow's parser refuses more than 100,000."""
_FEW = 256
"""The most records that are diagnosed one by one; more are parsed together, and halved if they are refused."""


class _JsonGroup(NamedTuple):
    """Framed records."""

    records: Sequence[bytes]
    indices: Int64s
    """The index of each record in the values that were passed in, ascending."""

    def where(self, kept: npt.NDArray[np.bool_]) -> "_JsonGroup":
        """Return those of a mask."""
        return _JsonGroup([*compress(self.records, kept)], self.indices[kept])


class _JsonRows(NamedTuple):
    """Records that are proven to be one row of the table each."""

    indices: Int64s
    records: Sequence[bytes]
    table: pa.Table


class JsonDecoder:
    """Decodes JSON objects."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._reader = ColumnReader(distinct_fields(schema))
        self._paths = ArrowPaths(self._reader.fields.values())
        self._asked = JsonAsked(self._reader.fields.values())
        self._plain = PlainReader("read_json", self._paths.schema, b",[", self._paths.plain) if compiled() else None
        self._parsed = pj.ParseOptions(explicit_schema=self._paths.schema, unexpected_field_behavior="ignore")

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        """Decode any number of values, also none."""
        pieces, left, indices = [self._reader.no_rows()], values, np.arange(len(values))
        refused = list[Refusal]()
        plain = self._plain.of(values) if self._plain is not None else None
        if plain is not None:
            pieces.append(self._columns(plain.indices, plain.table, lambda row: values[plain.indices[row]] or b""))
            left, indices = [values[at] for at in plain.left.tolist()], plain.left
            refused += plain.refused
        framing = framed(left)
        refused += [Refusal(int(indices[at]), reason) for at, reason in framing.refused]
        group = _JsonGroup(framing.records, indices[framing.rows])
        # What the compiled code leaves is refused more often than not: a few of it are not tried together before.
        sift = plain is not None and len(group.records) <= _FEW
        for outcome in self._sift(group) if sift else self._read_or_split(group):
            if isinstance(outcome, Refusal):
                refused.append(outcome)
            else:
                pieces.append(self._columns(outcome.indices, outcome.table, outcome.records.__getitem__))
        refused += (refusal for piece in pieces for refusal in piece.refused)
        refused.sort(key=lambda refusal: refusal.index)
        return together(pieces, tuple(refused))

    def _read_or_split(self, group: _JsonGroup, *, sifted: bool = False) -> Iterator[_JsonRows | Refusal]:
        """Yield the records that parse as rows, in order, and verdicts on the others."""
        if not group.records:
            return
        text = joined(group.records)
        one = len(group.records) == 1
        fits = one or (len(group.records) <= _MOST_ROWS and len(text) <= LARGEST)
        table = self._parse(group.records, text) if fits else None
        if table is not None:
            yield _JsonRows(group.indices, group.records, table)
        elif one:
            yield self._row_or_refusal(group)
        elif len(group.records) <= _FEW and not sifted:
            yield from self._sift(group)
        else:
            middle = len(group.records) // 2
            for half in (slice(middle), slice(middle, None)):
                part = _JsonGroup(group.records[half], group.indices[half])
                yield from self._read_or_split(part, sifted=sifted)

    def _sift(self, group: _JsonGroup) -> Iterator[_JsonRows | Refusal]:
        """Refuse those of a few records that the parser certainly refuses, and settle the rest."""
        kept = np.ones(len(group.records), np.bool_)
        for at, record in enumerate(group.records):
            fault = diagnose(record, self._asked)
            if fault.certain:
                kept[at] = False
                yield Refusal(int(group.indices[at]), fault.reason, fault.field)
        yield from self._read_or_split(group.where(kept), sifted=True)

    def _row_or_refusal(self, group: _JsonGroup) -> _JsonRows | Refusal:
        """Return the verdict on a record that the parser refuses, or its row without numbers that nobody reads."""
        (record,) = group.records
        fault = diagnose(record, self._asked)
        tame = without_large_numbers(record) if fault.unread else record
        table = self._parse([tame], joined([tame])) if tame != record else None
        if table is None:
            return Refusal(int(group.indices[0]), fault.reason, fault.field)
        return _JsonRows(group.indices, [tame], table)

    def _parse(self, records: Sequence[bytes], text: bytes) -> pa.Table | None:
        """Return a table with one row for each record, or None where there is none. `text` is the records, joined."""
        if not is_utf8(text):
            return None
        # One block, because the parser refuses an object that lies across two. One thread, because the pool has others.
        options = pj.ReadOptions(use_threads=False, block_size=len(text) + 1)
        try:
            table = pj.read_json(pa.BufferReader(text), read_options=options, parse_options=self._parsed)
        except pa.ArrowInvalid:
            return None
        return table if table.num_rows == len(records) else None

    def _columns(self, indices: Int64s, table: pa.Table, record: Callable[[int], bytes]) -> DecodedValues:
        """Read the columns of proven rows; `record` returns the record of one."""

        def infinity(row: int, field: Field) -> Reason:
            return infinity_reason(record(row), self._paths.steps[field.source])

        return self._reader.read(self._paths.arrays(table), indices, infinity)


class ArrowPaths:
    """The paths of some fields."""

    def __init__(self, fields: Iterable[Field]) -> None:
        """Raise ConfigError where two fields cannot both be read from a record."""
        fields = tuple(fields)
        self.asked: Mapping[str, AskedField] = asked_of(fields)
        self.schema = pa.schema([(name, _type(asked)) for name, asked in self.asked.items()])
        """The columns of a table of such records."""
        self.steps = {field.source: steps_of(field) for field in fields}
        names = {source: tuple(step.name for step in steps) for source, steps in self.steps.items()}
        by_names = Counter(names.values())
        self.plain = [
            RuledField(
                field,
                [names[field.source]],
                null_is_fault=default_of(field) is None,
                # Of records in lists each has values of its own, and of a list in two spellings each has rules.
                is_judged=by_names[names[field.source]] == 1
                and not any(step.lists for step in self.steps[field.source][:-1]),
            )
            for field in fields
        ]

    def arrays(self, table: pa.Table) -> dict[str, pa.Array | pa.ChunkedArray]:
        """Return the array of each field by source: its values, or lists of them, one dimension a list."""
        return {
            source: table.column(steps[0].name)
            if len(steps) == 1
            else _within(one_array(table.column(steps[0].name)), steps)
            for source, steps in self.steps.items()
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
