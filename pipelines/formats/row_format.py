"""A format that Python reads record by record: what a user writes for records of an own kind (docs/plugins.md).

`RowFormat` asks for two functions, one that reads a record and one that writes it. What the values mean is the same as
in every format: dtypes, shapes, defaults, rules and verdicts are checked a column at a time. Python reads one record
after another; who needs more speed extends `Format` itself and decodes a chunk at a time.
"""

import math
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from millrace.consumers.errors import ConfigError
from millrace.consumers.reasons import Reason
from millrace.pipelines.formats.format import Format
from millrace.pipelines.formats.shared.arrow_columns import ColumnReader, Faults, Show, arrow_type, holds_infinity
from millrace.pipelines.formats.shared.field_types import field_types
from millrace.pipelines.formats.shared.made_up import made_up_columns, made_up_records
from millrace.pipelines.formats.shared.number_texts import FALSE, TRUE
from millrace.pipelines.formats.shared.paths import PathStep, distinct_fields, flat_names, parse, steps_of
from millrace.pipelines.formats.shared.pieces import without_empty
from millrace.pipelines.formats.shared.protocol import DecodedValues, Decoder, Refusal
from millrace.pipelines.schema import Field, Schema, Schemas

_INTEGER = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|nan|inf|infinity)", re.IGNORECASE)
_INT64 = np.iinfo(np.int64)
_MOST_DIGITS = 1000
_FILLERS: Mapping[str, Any] = {"string": b"", "bool": False}
"""What stands for a value at fault, of the type that Arrow takes; 0 in the others."""
Read = Callable[[bytes], Mapping[str, Any]]


class RowFormat(Format):
    """A format of records that are read and written one by one."""

    names_fields = True
    is_flat: ClassVar[bool] = False
    """Whether a record holds single values by name, neither lists nor records in it."""

    @abstractmethod
    def read(self, value: bytes) -> Mapping[str, Any]:
        """Return what a record holds by name: numbers, texts, bytes, None, and lists and mappings of these.

        A text is read as a number where the field is one. Whatever it raises sets the record aside as malformed. It is
        called on several threads at once, and must depend on nothing but these bytes.
        """

    @abstractmethod
    def write(self, row: Mapping[str, Any]) -> bytes:
        """Return a record of such values: for `millrace prove`, and for `millrace validate`, which reads it back."""

    def fits(self, schema: Schema, settings: Any = None, *, registered: bool = False) -> None:
        """Refuse lists in a flat format."""
        for field in distinct_fields(schema) if self.is_flat else ():
            if field.shape:
                raise ConfigError(
                    f"records: {field.name!r} has a shape, and a record of format {self.name} holds single values; "
                    "leave the shape out"
                )

    def decoder(self, schema: Schema, settings: Any = None, schemas: Schemas | None = None) -> Decoder:
        """Return what decodes by `read`."""
        self.fits(schema)
        return RowDecoder(schema, self.read)

    def types(self, value: bytes, *, framed: bool) -> Mapping[str, str] | None:
        """Return the types of what `read` gives; a name with a dot may be one source or a path, so it is left out."""
        try:
            row = self.read(value)
            return field_types({name: one for name, one in row.items() if "." not in name})
        except Exception:  # noqa: BLE001 - the user's own code may raise anything, and return anything
            return None

    def generate(
        self, schema: Schema, random: np.random.Generator, count: int, settings: Any = None
    ) -> Sequence[bytes]:
        """Make records up by `write`."""
        if not self.is_flat:
            return [self.write(record) for record in made_up_records(schema, random, count)]
        drawn = made_up_columns(schema, random, count)
        names, columns = flat_names(drawn), {source: column.tolist() for source, column in drawn.items()}
        return [self.write({names[source]: column[row] for source, column in columns.items()}) for row in range(count)]


class RowDecoder:
    """Decodes one record after another."""

    def __init__(self, schema: Schema, read: Read) -> None:
        self.schema, self._read = schema, read
        self._reader = ColumnReader(distinct_fields(schema))
        self._steps = {source: steps_of(field) for source, field in self._reader.fields.items()}
        self._names = {source: parse(source).text for source in self._steps}

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        """Decode any number of values, also none."""
        records, indices, refused = without_empty(values)
        rows, kept = list[Mapping[str, Any]](), list[int]()
        for index, record in zip(indices.tolist(), records, strict=True):
            try:
                row = self._read(record)
            except Exception:  # noqa: BLE001 - the user's own code may raise anything
                row = None
            if isinstance(row, Mapping):
                rows.append(row)
                kept.append(index)
            else:
                refused.append(Refusal(index, Reason.MALFORMED))
        held, arrays, found = dict[str, list[Any]](), dict[str, pa.Array](), dict[str, Faults]()
        for source, field in self._reader.fields.items():
            shows = list[Show]()
            held[source] = [self._value(row, source, field, shows) for row in rows]
            arrays[source] = pa.array(held[source], arrow_type(field))
            found[source] = np.array(shows, np.uint8)

        def infinity(row: int, field: Field) -> Reason:
            return Reason.NOT_FINITE if holds_infinity(held[field.source][row]) else Reason.OUT_OF_RANGE

        piece = self._reader.read(arrays, np.array(kept, np.int64), infinity, found)
        verdicts = sorted((*refused, *piece.refused), key=lambda refusal: refusal.index)
        return DecodedValues(piece.kept, piece.columns, tuple(verdicts), piece.lengths)

    def _value(self, row: Mapping[str, Any], source: str, field: Field, shows: list[Show]) -> Any:
        """Return what a row holds for a field, as Arrow takes it, and add what is at fault in it."""
        faults = [Show.GOOD]
        name = self._names[source]
        held = row[name] if name in row else _at(row, self._steps[source], faults)
        value = _elements(held, field, len(field.shape), faults)
        shows.append(max(faults))
        return value


def _at(held: Any, steps: Sequence[PathStep], faults: list[Show]) -> Any:
    """Return what the steps lead to in a record; None where it lacks it."""
    if held is None or not steps:
        return held
    if not isinstance(held, Mapping):
        faults.append(Show.WRONG_TYPE)
        return None
    inside, lists = held.get(steps[0].name), steps[0].lists if len(steps) > 1 else 0
    return _each(inside, lists, steps[1:], faults)


def _each(held: Any, lists: int, steps: Sequence[PathStep], faults: list[Show]) -> Any:
    if held is None or not lists:
        return _at(held, steps, faults)
    if not isinstance(held, list | tuple):
        faults.append(Show.WRONG_TYPE)
        return None
    return [_each(one, lists - 1, steps, faults) for one in held]


def _elements(held: Any, field: Field, lists: int, faults: list[Show]) -> Any:
    if held is None:
        return None
    if not lists:
        value, fault = _element(held, field.dtype)
        faults.append(fault)
        return value if fault == Show.GOOD else _FILLERS.get(field.dtype, 0)
    if not isinstance(held, list | tuple):
        faults.append(Show.WRONG_TYPE)
        return None
    return [_elements(one, field, lists - 1, faults) for one in held]


def _element(held: Any, dtype: str) -> tuple[Any, Show]:
    """Return a value as Arrow takes it, and its fault."""
    if isinstance(held, str) and dtype != "string":
        return _number_in(held.strip(" \t"), dtype)
    try:
        if dtype == "string":
            held = held.encode() if isinstance(held, str) else held
            fits = isinstance(held, bytes)
        elif dtype == "bool" or isinstance(held, bool):
            fits = dtype == "bool" and isinstance(held, bool)
        elif dtype.startswith("float"):
            fits = isinstance(held, int | float)
            held = float(held) if fits else held
        else:
            fits = isinstance(held, int)
            if fits and not _INT64.min <= held <= _INT64.max:
                return None, Show.OUT_OF_RANGE
    except UnicodeEncodeError:  # half a surrogate pair
        return None, Show.WRONG_TYPE
    except OverflowError:  # an integer beyond any float
        return None, Show.OUT_OF_RANGE
    return held, Show.GOOD if fits else Show.WRONG_TYPE


def _number_in(text: str, dtype: str) -> tuple[Any, Show]:
    """Return the number or truth value that a text says; an empty text is a missing value, as in CSV."""
    if not text:
        return None, Show.GOOD
    if dtype == "bool":
        return text in TRUE, Show.GOOD if text in TRUE or text in FALSE else Show.WRONG_TYPE
    if dtype.startswith("float"):
        if not _FLOAT.fullmatch(text):
            return None, Show.WRONG_TYPE
        number = float(text)
        return number, Show.OUT_OF_RANGE if math.isinf(number) and "n" not in text.lower() else Show.GOOD
    if not _INTEGER.fullmatch(text):
        return None, Show.WRONG_TYPE
    # Python refuses to read an integer of thousands of digits.
    number = int(text) if len(text) < _MOST_DIGITS else _INT64.max + 1
    return number, Show.GOOD if _INT64.min <= number <= _INT64.max else Show.OUT_OF_RANGE
