"""CSV: one line a record. Its settings, and the columns that each field is read from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import pydantic

from millrace.consumers.errors import ConfigError
from millrace.consumers.section import Section
from millrace.pipelines.formats.draft import DraftSample, Look
from millrace.pipelines.formats.format import Format, late
from millrace.pipelines.formats.shared.made_up import made_up_columns
from millrace.pipelines.formats.shared.paths import default_of, distinct_fields, flat_names, pad_of
from millrace.pipelines.formats.shared.protocol import Decoder
from millrace.pipelines.schema import Field, Schema, Schemas


class CsvSettings(Section):
    """How the columns of a CSV record are read."""

    columns: tuple[Annotated[str, pydantic.Field(min_length=1)], ...] | None = pydantic.Field(
        None,
        min_length=1,
        description="The names of a record's columns in their order, as a header line has them; columns that no field "
        "reads are skipped. Null: the columns are the features in their order, labels, weight and event "
        "time, and no others.",
    )
    delimiter: str = pydantic.Field(",", description="The character between two columns.")
    quote: str | None = pydantic.Field(
        '"', description="The character that may stand around a column. Null: there is none."
    )
    lists: str | None = pydantic.Field(
        None,
        description="The character between the elements of a list that stands in one column. Null: each element has a "
        "column of its own, one after another.",
    )


@dataclass(frozen=True, slots=True)
class CsvField:
    """A field, and the columns that it is read from."""

    field: Field
    columns: tuple[str, ...]
    """The numbers of the columns, from 0."""
    default: np.generic | bytes | None
    pad: np.generic | bytes | None


def places_of(schema: Schema, settings: CsvSettings) -> tuple[tuple[CsvField, ...], int]:
    """Return the columns of each field, and the number of columns. Raise ConfigError for settings that does not fit."""
    marks = {"delimiter": settings.delimiter, "quote": settings.quote, "lists": settings.lists}
    for name, mark in marks.items():
        if mark is not None and (len(mark) != 1 or not mark.isascii() or mark in "\n\r\0"):
            raise ConfigError(f"records.csv.{name}: {mark!r} does not do; write one ASCII character that ends no line")
    given = [mark for mark in marks.values() if mark is not None]
    if len(set(given)) < len(given):
        raise ConfigError("records.csv: delimiter, quote and lists must be different characters")
    by_name = _by_name(schema)
    names = tuple(by_name) if settings.columns is None else settings.columns
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"records.csv.columns: {twice[0]!r} stands there twice; give each column a name of its own")
    if absent := [name for name in by_name if name not in names]:
        raise ConfigError(f"records.csv.columns: no column is named {absent[0]!r}; add it, or mend the field's name")
    at, count = {}, 0
    for name in names:
        width = _width(by_name[name], settings) if name in by_name else 1
        at[name] = tuple(str(count + more) for more in range(width))
        count += width
    return tuple(CsvField(field, at[name], default_of(field), pad_of(field)) for name, field in by_name.items()), count


def columns_of(schema: Schema, settings: CsvSettings, part: Schema) -> tuple[str, ...]:
    """Return the names of all columns for a schema that reads a part of the fields: the columns of others are skipped.

    A field of the part has one name, as in the layout, and a field that is skipped one for each of its columns.
    """
    places, count = places_of(schema, settings)
    names = {field.source: name for name, field in _by_name(part).items()}
    at = {int(place.columns[0]): place for place in places if place.field.source in names and place.columns}
    columns, column = list[str](), 0
    while column < count:
        place = at.get(column)
        columns.append(f"\0{column}" if place is None else names[place.field.source])
        column += 1 if place is None else len(place.columns)
    return tuple(columns)


def _by_name(schema: Schema) -> dict[str, Field]:
    by_source = {field.source: field for field in distinct_fields(schema)}
    return {name: by_source[source] for source, name in flat_names(by_source).items()}


def _width(field: Field, settings: CsvSettings) -> int:
    """Return how many columns a field takes. Raise ConfigError for one that the layout cannot hold."""
    if settings.lists is None and field.pad is not None:
        raise ConfigError(
            f"records: {field.name!r} varies in length, so its elements stand in one column; say by records.csv.lists "
            "what is between them"
        )
    if settings.lists is None or not field.shape:
        return field.size
    if len(field.shape) > 1:
        raise ConfigError(
            f"records: {field.name!r} has {len(field.shape)} dimensions, and a list in a CSV column has one; "
            "leave records.csv.lists out, and give each element a column"
        )
    return 1


class CsvFormat(Format):
    """Rows of columns."""

    name = "csv"
    section = "csv"
    is_text = True

    def fits(self, schema: Schema, settings: Any = None, *, registered: bool = False) -> None:
        places_of(schema, settings)

    def decoder(self, schema: Schema, settings: Any = None, schemas: Schemas | None = None) -> Decoder:
        decoder: Decoder = late("csv.decoder:CsvDecoder")(schema, CsvSettings() if settings is None else settings)
        return decoder

    def narrowed(self, settings: Any, whole: Schema, part: Schema) -> CsvSettings:
        narrowed: CsvSettings = settings.model_copy(update={"columns": columns_of(whole, settings, part)})
        return narrowed

    def part_of(self, field: Field, whole: Schema, settings: Any = None) -> tuple[Schema, Any]:
        """Return the schema of the field, and all columns by name."""
        csv = CsvSettings() if settings is None else settings
        known = {one.source for one in distinct_fields(whole)}
        if field.source not in known and csv.columns is None:
            raise ConfigError(
                f"records.where: {field.source!r} is no field of `records`, so its column is not known; list all "
                "columns in records.csv.columns"
            )
        joint = whole if field.source in known else replace(whole, features=(*whole.features, field))
        part = Schema(features=(field,))
        return part, self.narrowed(csv, joint, part)

    def draft(self, sample: DraftSample) -> Look | None:
        look: Look | None = late("csv.rows:look_at_rows")(sample)
        return look

    def generate(
        self, schema: Schema, random: np.random.Generator, count: int, settings: Any = None
    ) -> Sequence[bytes]:
        csv = CsvSettings() if settings is None else settings
        drawn = made_up_columns(schema, random, count)
        names, records = flat_names(drawn), list[bytes]()
        for row in range(count):
            texts = {names[source]: [*map(str, np.ravel(column[row]).tolist())] for source, column in drawn.items()}
            if csv.lists is not None:
                texts = {name: [csv.lists.join(each)] for name, each in texts.items()}
            columns = texts if csv.columns is None else csv.columns
            records.append(csv.delimiter.join(text for name in columns for text in texts.get(name, [""])).encode())
        return records
