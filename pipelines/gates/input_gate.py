"""The gate of inputs: it keeps for the trainer a sample of the records that pass.

What a record says is seen here whole, before `preprocess`, windows and classes change it. Of each eight offsets one is
sampled, by a hash of these and their partition, so that the sample is the same in whatever chunks the records come. It
takes an eighth of what the decoded rows take, at most.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.consumers.records import Int64s, Partition
from millrace.pipelines.gates.watching_gate import WatchingGate
from millrace.pipelines.schema import PRESENT, Column, Field, Schema
from millrace.pipelines.stream.decode import NO_VALUE, Decoded, Refused
from millrace.pipelines.stream.offset_mix import one_of_each, salt_of

SHARE = 8
"""One of so many records is sampled."""
_MOST_ELEMENTS = 64
"""A field of more numbers, as an image, is watched by the mean of as many of them."""
_MOST_COLUMNS = 512
Hashes = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.floating[Any]]
Texts = npt.NDArray[np.object_]
_NARROW = frozenset({"float16", "float32", "int8", "int16", "uint8", "uint16", "bool"})


@dataclass(frozen=True, slots=True)
class WatchedColumn:
    """One column that is watched: a field, or an element of one."""

    name: str
    """As the model knows it; with its place, as `x[3]`, where it is an element."""
    source: str
    """The record's name of the field."""
    text: bool
    missing: float | bytes | None
    """What a record without it holds instead; None where it is set aside then."""


class _WatchedField(NamedTuple):
    """Columns that are watched, and what gives their values of some rows of a chunk."""

    columns: Sequence[WatchedColumn]
    values: Callable[[Decoded, Int64s], Column]


def _watched(schema: Schema) -> list[_WatchedField]:
    """Return what is watched of records of this schema, a bounded number of columns."""
    names = {field.name for field in (*schema.features, *schema.labels)}
    slices = [field for field in schema.slices if field.name not in names]
    # A label that is a feature as well, as one that lies ahead, is watched as that.
    inputs = {field.name for field in schema.inputs}
    labels = [field for field in schema.labels if field.name not in inputs]
    found = [*map(_of_field, (*schema.inputs, *labels)), *map(_of_slice, slices)]
    ends = np.cumsum([len(one.columns) for one in found])
    return [one for one, end in zip(found, ends.tolist(), strict=True) if end <= _MOST_COLUMNS]


def _of_field(field: Field) -> _WatchedField:
    if field.classes is not None or field.dtype == "string" or field.appearing is not None:
        return _of_text(field)
    # As the column holds it: 0.1 in float32 is not 0.1.
    missing = None if field.missing is None else float(np.dtype(field.dtype).type(field.missing))
    width = field.size
    if width > _MOST_ELEMENTS or field.ragged or field.pad is not None or not width:
        step, width, missing = max(1, -(-field.size // _MOST_ELEMENTS)), 1, None
    else:
        step = 0
    names = [field.name]
    if field.shape and not step:
        names = [field.name + "".join(f"[{i}]" for i in at) for at in np.ndindex(field.shape)]

    def values(decoded: Decoded, rows: Int64s) -> Column:
        column = _column(decoded, field.name)
        if column is None or not field.size:
            return np.full((len(rows), width), np.nan)
        if column.ndim == 1:
            found = column[rows]
        elif not step:
            # Rows are copied whole, which a list of places makes several times as slow.
            found = column.reshape(len(column), -1).take(rows, axis=0)
        else:
            with np.errstate(invalid="ignore"):
                found = column.reshape(len(column), -1)[:, ::step][rows].astype(np.float64).mean(axis=1)
        mask = decoded.labels.get(field.name + PRESENT)
        return found if mask is None else np.where(mask[rows].reshape(-1, *[1] * (found.ndim - 1)), found, np.nan)

    return _WatchedField([WatchedColumn(name, field.source, text=False, missing=missing) for name in names], values)


def _of_text(field: Field) -> _WatchedField:
    known = None if field.classes is None else np.array([one.encode() for one in field.classes], object)
    missing: bytes | None = None
    if field.missing is not None:
        missing = str(field.missing).encode() if known is None else known[int(field.missing)]

    def values(decoded: Decoded, rows: Int64s) -> Column:
        column = _column(decoded, field.name)
        if column is None or not field.size:
            return np.full(len(rows), b"", object)
        found = column.reshape(len(column), -1)[rows, 0]
        if known is not None and found.dtype != object:
            found = known[np.clip(found.astype(np.int64), 0, len(known) - 1)]
        mask = decoded.labels.get(field.name + PRESENT)
        return found if mask is None else np.where(mask[rows], found, b"")

    return _WatchedField([WatchedColumn(field.name, field.source, text=True, missing=missing)], values)


def _of_slice(field: Field) -> _WatchedField:
    def values(decoded: Decoded, rows: Int64s) -> Column:
        found = decoded.slices.get(field.name)
        if found is None or not found.values:
            return np.full(len(rows), b"", object)
        return np.array([value.encode() for value in found.values], object)[found.codes[rows]]

    return _WatchedField([WatchedColumn(field.name, field.source, text=True, missing=NO_VALUE.encode())], values)


def _column(decoded: Decoded, name: str) -> Column | None:
    return decoded.features.get(name, decoded.labels.get(name))


def number_dtype(schema: Schema) -> type[np.float32] | type[np.float64]:
    """Return in which precision the numbers are kept."""
    narrow = all(field.dtype in _NARROW or field.dtype == "string" for field in (*schema.inputs, *schema.labels))
    return np.float32 if narrow else np.float64


@dataclass(frozen=True, slots=True)
class InputSample:
    """Sampled records of one partition."""

    offsets: Int64s
    """Ascending."""
    hashes: Hashes
    """Below 2^64 / SHARE, evenly spread."""
    times: Int64s
    """Event times, milliseconds since 1970."""
    numbers: Sequence[Numbers]
    """[row, column] of the columns that are numbers, by field."""
    texts: Texts
    """[row, column] of those that are texts: bytes."""

    def rows(self, which: Int64s) -> tuple[Numbers, Texts]:
        """Return the values of the rows at these places."""
        numbers = [one.take(which, axis=0) for one in self.numbers]
        return (numbers[0] if len(numbers) == 1 else np.concatenate(numbers, axis=1)), self.texts.take(which, axis=0)


class UnreadTypes(NamedTuple):
    """What a record holds that nobody reads."""

    offset: int
    time_ms: int
    """Its event time."""
    types: Mapping[str, str]
    """By source."""


class Sampled(NamedTuple):
    """What is kept of a chunk."""

    sample: InputSample
    refused: Sequence[Refused]
    """The records that could not be decoded."""
    unread: Sequence[UnreadTypes]
    """Of records that were looked at."""
    times: Int64s | None = None
    """The event times of all records that were sampled, if `sample` holds only some of them."""


class SeenInputs(NamedTuple):
    """What has passed of one partition, from an offset to before another."""

    kept: Sampled
    rows: slice
    """The places in the sample."""
    start: int
    end: int

    @property
    def times(self) -> Int64s:
        """The event times of all that were sampled."""
        return self.kept.sample.times[self.rows] if self.kept.times is None else self.kept.times

    def refused(self) -> Sequence[Refused]:
        """Return the records that could not be decoded."""
        return [one for one in self.kept.refused if self.start <= one.offset < self.end]

    def unread(self) -> Sequence[UnreadTypes]:
        """Return what was found in records that were looked at."""
        return [one for one in self.kept.unread if self.start <= one.offset < self.end]


class InputGate(WatchingGate[Sampled, SeenInputs]):
    """Keeps a sample of the records that pass."""

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        watched = _watched(schema)
        self._numbers = [one for one in watched if not one.columns[0].text]
        self._texts = [one for one in watched if one.columns[0].text]
        self.numbers = [column for one in self._numbers for column in one.columns]
        self.texts = [column for one in self._texts for column in one.columns]
        self.dtype = number_dtype(schema)
        self._salts: dict[Partition, np.int64] = {}

    def keep(self, decoded: Decoded) -> tuple[Int64s, Sampled]:
        """Keep a sample of a chunk."""
        sample = self._sampled(decoded)
        unread = [
            UnreadTypes(int(decoded.offsets[row]), int(decoded.event_times[row]), types)
            for row, types in decoded.unread
        ]
        return sample.offsets, Sampled(sample, decoded.refused, unread)

    def piece_of(self, kept: Sampled, rows: slice, start: int, end: int) -> SeenInputs:
        """Return a part of a chunk."""
        return SeenInputs(kept, rows, start, end)

    def _sampled(self, decoded: Decoded) -> InputSample:
        salt = self._salts.get(decoded.partition)
        if salt is None:
            salt = self._salts[decoded.partition] = np.int64(salt_of(str(decoded.partition)))
        rows, hashes = one_of_each(decoded.offsets, SHARE, salt)
        numbers = [np.zeros((0, len(self.numbers)), self.dtype)]
        texts = np.empty((len(rows), len(self.texts)), object)
        # A chunk of which no record decodes has columns that cannot be read by row.
        if len(rows):
            numbers = [
                one.values(decoded, rows).reshape(len(rows), len(one.columns)).astype(self.dtype, copy=False)
                for one in self._numbers
            ] or [np.zeros((len(rows), 0), self.dtype)]
            for place, one in enumerate(self._texts):
                texts[:, place] = one.values(decoded, rows)
        return InputSample(decoded.offsets[rows], hashes // SHARE, decoded.event_times[rows], numbers, texts)
