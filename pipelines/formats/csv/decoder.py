"""CSV records: each record is one row of columns; pyarrow reads a chunk at a time, without the GIL.

Runs on the decode pool's threads and holds no state. `docs/formats.md` has the table of verdicts.

Arrow's reader sees the joined text of a chunk and knows nothing of records. That each row is one record is proven
before it reads: `framing` lets a record pass only if its own bytes alone are exactly one row, with the right number
of columns, in which every quote that opens also closes. A newline is put after each record. It is outside of quotes, so
it ends a row, and n records make n rows. Where Arrow finds another number of rows, the chunk is halved, down to single
records, and a record that makes no row by itself is refused.

Arrow reads the columns by their types. If a single text is not a value of its type, Arrow refuses the whole text. That
is then read as texts, and `number_texts` converts each column and finds the elements that do not convert. A text that
Arrow's reader takes converts to the same value there, so the fault of a neighbour changes nothing.

Before all that, compiled code (`plain_rows`) takes the records that are plain, each by its own bytes, and gives their
values as Arrow would, so that only the others are framed and read by it: all of a chunk where the code was not compiled
for this machine.

An empty column means that the field is missing. An empty text in quotes is an empty text, and a missing number.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from millrace.consumers.reasons import Reason
from millrace.consumers.records import Int64s
from millrace.pipelines.formats.csv import CsvField, CsvSettings, places_of
from millrace.pipelines.formats.csv.framing import Dialect
from millrace.pipelines.formats.shared.arrow_columns import (
    REASONS,
    Faults,
    Show,
    element_type,
    nulls,
    one_array,
    read_column,
    read_lists,
    scalars,
)
from millrace.pipelines.formats.shared.number_texts import FALSE, TRUE, converted
from millrace.pipelines.formats.shared.paths import empty_column
from millrace.pipelines.formats.shared.pieces import (
    LARGEST,
    joined,
    only_good,
    together,
)
from millrace.pipelines.formats.shared.plain_rows import PlainReader, RuledField, compiled
from millrace.pipelines.formats.shared.protocol import DecodedValues, Refusal
from millrace.pipelines.schema import Column, Schema

_FEW = 256
"""Framed records that are read without Arrow's reader."""


class _CsvGroup(NamedTuple):
    """Framed records."""

    records: Sequence[bytes]
    indices: Int64s
    """The index of each record in the values that were passed in, ascending."""


class _CsvRows(NamedTuple):
    """Records that are proven to be one row of the table each."""

    indices: Int64s
    """The index of each record in the values that were passed in, ascending."""
    table: pa.Table
    typed: bool
    """Whether the columns of the table have the types of the fields; otherwise they are texts."""


class CsvDecoder:
    """Decodes CSV rows."""

    def __init__(self, schema: Schema, settings: CsvSettings) -> None:
        self.schema, self._settings = schema, settings
        self._places, count = places_of(schema, settings)
        self._dialect = Dialect(
            columns=count,
            delimiter=ord(settings.delimiter),
            quote=None if settings.quote is None else ord(settings.quote),
        )
        self._names = [str(column) for column in range(count)]
        self._read = [column for place in self._places for column in place.columns]
        texts = dict.fromkeys(self._read, pa.binary())
        types = {column: element_type(place.field) for place in self._places for column in place.columns}
        self._in_lists = {p.columns[0] for p in self._places if p.field.shape and settings.lists is not None}
        self._typed = self._options({**types, **dict.fromkeys(self._in_lists, pa.binary())})
        self._as_text = self._options(texts)
        self._plain = self._plain_reader(types, count) if compiled() else None

    def _plain_reader(self, types: Mapping[str, pa.DataType], count: int) -> PlainReader:
        """Return a reader of the columns, in which a list is one."""
        nodes = np.full(count, -1)  # of each column; the node of the row itself is 0
        columns = [(name, pa.list_(arrow) if name in self._in_lists else arrow) for name, arrow in types.items()]
        nodes[[int(name) for name in types]] = range(1, 1 + len(types))
        marks = (self._settings.delimiter, self._settings.quote, self._settings.lists)
        delimiter, quote, lists = (-1 if mark is None else ord(mark) for mark in marks)
        before = bytes({delimiter, *([] if lists < 0 else [lists])})
        fields = [
            RuledField(
                place.field,
                [(column,) for column in place.columns],
                # Nothing is a list without elements where lists vary in length.
                null_is_fault=place.default is None and place.pad is None,
                # Elements that are missing have their default where all of them are.
                is_judged=place.default is None or len(place.columns) == 1,
            )
            for place in self._places
        ]
        return PlainReader("read_csv", pa.schema(columns), before, fields, nodes, count, delimiter, quote, lists)

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        """Decode any number of values, also none."""
        fields = [place.field for place in self._places]
        none = {field.source: empty_column(field.dtype, (0, *field.shape)) for field in fields}
        varying = {field.source: np.empty(0, np.int64) for field in fields if field.pad is not None}
        pieces = [DecodedValues(np.empty(0, np.int64), none, (), varying)]
        plain = self._plain.of(values) if self._plain is not None else None
        left, numbers, refused = values, np.arange(len(values)), list[Refusal]()
        if plain is not None:
            pieces.append(self._columns(_CsvRows(plain.indices, plain.table, typed=True), values))
            left, numbers = [values[at] for at in plain.left.tolist()], plain.left
            refused += plain.refused
        records, indices, text, faults = self._dialect.framed(left)
        refused += [Refusal(int(numbers[fault.index]), fault.reason) for fault in faults]
        for outcome in self._read_or_split(_CsvGroup(records, numbers[indices]), text):
            if isinstance(outcome, Refusal):
                refused.append(outcome)
            else:
                pieces.append(self._columns(outcome, values))
        refused += (refusal for piece in pieces for refusal in piece.refused)
        return together(pieces, tuple(sorted(refused, key=lambda refusal: refusal.index)))

    def _read_or_split(self, group: _CsvGroup, text: bytes) -> Iterator[_CsvRows | Refusal]:
        """Yield the records as rows, in order, and a verdict on each record that Arrow does not read as one row."""
        count = len(group.records)
        if not count:
            return
        rows = self._parse(group, text) if count == 1 or len(text) <= LARGEST else None
        if rows is not None:
            yield rows
        elif count == 1:
            yield Refusal(int(group.indices[0]), Reason.MALFORMED)
        else:
            for half in (slice(count // 2), slice(count // 2, None)):
                part = _CsvGroup(group.records[half], group.indices[half])
                yield from self._read_or_split(part, joined(part.records))

    def _parse(self, group: _CsvGroup, text: bytes) -> _CsvRows | None:
        """Return a table with one row for each record, or None. `text` is the records, joined."""
        if len(group.records) <= _FEW and (self._settings.quote is None or self._settings.quote.encode() not in text):
            return self._texts_of(group)
        typed = self._rows_as(group, text, typed=True)
        return self._rows_as(group, text, typed=False) if typed is None else typed

    def _texts_of(self, group: _CsvGroup) -> _CsvRows:
        """Return a few framed records without quotes as texts, as Arrow reads them, which takes long to begin."""
        delimiter = self._settings.delimiter.encode()
        columns = [*zip(*(record.split(delimiter) for record in group.records), strict=True)]
        read = {name: pa.array([text or None for text in columns[int(name)]], pa.binary()) for name in self._read}
        return _CsvRows(group.indices, pa.table(read), typed=False)

    def _rows_as(self, group: _CsvGroup, text: bytes, *, typed: bool) -> _CsvRows | None:
        table = self._table(text, typed=typed)
        if table is None or table.num_rows != len(group.records):
            return None
        return _CsvRows(group.indices, table, typed)

    def _table(self, text: bytes, *, typed: bool) -> pa.Table | None:
        quote = self._settings.quote
        try:
            # One block, because the reader refuses a row that is longer than a block. One thread, because the pool has
            # others.
            return pcsv.read_csv(
                pa.BufferReader(text),
                read_options=pcsv.ReadOptions(
                    use_threads=False, block_size=len(text) + 1, column_names=self._names, encoding="utf8"
                ),
                parse_options=pcsv.ParseOptions(
                    delimiter=self._settings.delimiter,
                    quote_char=False if quote is None else quote,
                    newlines_in_values=quote is not None,
                    ignore_empty_lines=False,
                ),
                convert_options=self._typed if typed else self._as_text,
            )
        except pa.ArrowInvalid:
            return None

    def _options(self, types: dict[str, pa.DataType]) -> pcsv.ConvertOptions:
        return pcsv.ConvertOptions(
            column_types=types,
            include_columns=self._read,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=TRUE,
            false_values=FALSE,
            # The framing has checked it.
            check_utf8=False,
        )

    def _columns(self, rows: _CsvRows, values: Sequence[bytes | None]) -> DecodedValues:
        """Return the columns of the good rows, and verdicts on the others, each for its first field at fault."""
        columns: dict[str, Column] = {}
        lengths: dict[str, Int64s] = {}
        refused: list[Refusal] = []
        good = np.ones(len(rows.indices), dtype=bool)
        for place in self._places:
            source = place.field.source
            columns[source], faults, long = self._column(place, rows)
            if long is not None:
                lengths[source] = long
            if faults is not None:
                refused += self._verdicts(rows.indices, values, place, faults, good & (faults > 0))
                good &= faults == 0
        return only_good(DecodedValues(rows.indices, columns, tuple(refused), lengths), good)

    def _column(self, place: CsvField, rows: _CsvRows) -> tuple[Column, Faults | None, Int64s | None]:
        arrays = [one_array(rows.table.column(column)) for column in place.columns]
        if place.field.shape and self._settings.lists is not None:
            return _in_lists(place, arrays[0], self._settings.lists)
        if rows.typed:
            return *_side_by_side(place, arrays, []), None
        texts = [converted(array, element_type(place.field)) for array in arrays]
        return *_side_by_side(place, [text.values for text in texts], [text.wrong for text in texts]), None

    def _verdicts(
        self,
        indices: Int64s,
        values: Sequence[bytes | None],
        place: CsvField,
        faults: Faults,
        bad: npt.NDArray[np.bool_],
    ) -> Iterator[Refusal]:
        for index, fault in zip(indices[bad].tolist(), faults[bad].tolist(), strict=True):
            reason = self._infinity(values[index] or b"", place) if fault == Show.INFINITE else REASONS[fault]
            yield Refusal(index, reason, place.field.source)

    def _infinity(self, record: bytes, place: CsvField) -> Reason:
        """Return the reason for an infinity: written as such, or a finite number too large for the dtype."""
        quote = self._settings.quote
        if quote is None or quote.encode() not in record:
            texts = record.split(self._settings.delimiter.encode())
            named = any(b"n" in texts[int(column)].lower() for column in place.columns)
            return Reason.NOT_FINITE if named else Reason.OUT_OF_RANGE
        table = self._table(joined([record]), typed=False)
        texts = [table.column(column)[0].as_py() or b"" for column in place.columns] if table is not None else []
        return Reason.NOT_FINITE if any(b"n" in text.lower() for text in texts) else Reason.OUT_OF_RANGE


def _side_by_side(
    place: CsvField, arrays: Sequence[pa.Array], wrong: Sequence[Faults | None]
) -> tuple[Column, Faults | None]:
    """Read a field whose elements have a column each."""
    read = [scalars(array, place.field) for array in arrays]
    shown = [faults for faults in (*(faults for _, faults in read), *wrong) if faults is not None]
    rows = len(arrays[0])
    column = read[0][0] if not place.field.shape else np.stack([each for each, _ in read], axis=1)
    column = np.ascontiguousarray(column.reshape(rows, *place.field.shape))
    if not shown:
        return column, None
    faults: Faults = np.maximum.reduce(shown)
    if place.default is not None:
        absent = np.logical_and.reduce([nulls(array) for array in arrays])
        column, faults = column.copy(), np.where(absent, np.uint8(Show.GOOD), faults)
        column[absent] = place.default
    return column, faults if faults.any() else None


def _in_lists(place: CsvField, read: pa.Array, between: str) -> tuple[Column, Faults | None, Int64s | None]:
    """Read a field whose elements are in one column. An empty text is an empty list, or a missing one."""
    lists, wrong = (read, None) if pa.types.is_list(read.type) else _split(place, read, between)
    if place.pad is not None:
        column, faults, lengths = read_lists(_without_nulls(lists), place.field, place.default, place.pad)
    else:
        (column, faults), lengths = read_column(lists, place.field, place.default), None
    if wrong is None or not wrong.any():
        return column, faults, lengths
    by_row = np.zeros(len(lists), np.uint8)
    np.maximum.at(by_row, np.repeat(np.arange(len(lists)), np.diff(lists.offsets.to_numpy())), wrong)
    return column, by_row if faults is None else np.maximum(by_row, faults), lengths


def _split(place: CsvField, texts: pa.Array, between: str) -> tuple[pa.Array, Faults | None]:
    """Return the lists that texts hold, null where there is no text, and the fault of each element."""
    present = pc.if_else(pc.equal(pc.binary_length(texts), 0), pa.scalar(None, texts.type), texts)
    split = pc.split_pattern(present.cast(pa.string()), between)
    elements = split.flatten()
    values, wrong = converted(elements, element_type(place.field))
    absent = split.is_null() if split.null_count else None
    return pa.ListArray.from_arrays(split.offsets, values.cast(element_type(place.field)), mask=absent), wrong


def _without_nulls(lists: pa.Array) -> pa.Array:
    """Return the lists, an empty one in place of each null."""
    return pa.ListArray.from_arrays(lists.offsets, lists.values) if lists.null_count else lists
