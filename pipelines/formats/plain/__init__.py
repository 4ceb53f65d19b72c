"""Records without structure: one value of fixed layout, one text, or bytes."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from millrace.consumers.errors import ConfigError
from millrace.pipelines.formats.draft import ENOUGH, DraftSample, Look, joined
from millrace.pipelines.formats.format import Format, late
from millrace.pipelines.formats.shared.made_up import made_up_columns
from millrace.pipelines.formats.shared.paths import VALUE, distinct_fields, is_envelope
from millrace.pipelines.formats.shared.protocol import Decoder
from millrace.pipelines.schema import Field, Schema, Schemas

_READABLE = re.compile(rb"\s*[^\x00-\x08\x0e-\x1f\x7f\s{\[][^\x00-\x08\x0e-\x1f\x7f]*")


class RawFormat(Format):
    """The fields' values one after another."""

    name = "raw"

    def fits(self, schema: Schema, settings: Any = None, *, registered: bool = False) -> None:
        for field in distinct_fields(schema):
            if field.dtype == "string":
                raise ConfigError(
                    f"records: {field.name!r} is a string, which raw records cannot hold; write format: json"
                )
            if field.pad is not None:
                raise ConfigError(
                    f"records: {field.name!r} varies in length, and a raw record has one; write format: json"
                )
            if field.missing is not None:
                raise ConfigError(
                    f"records: {field.name!r} has a missing value, yet raw records lack nothing; leave it out"
                )

    def decoder(self, schema: Schema, settings: Any = None, schemas: Schemas | None = None) -> Decoder:
        self.fits(schema)
        decoder: Decoder = late("plain.raw:RawDecoder")(schema)
        return decoder

    def part_of(self, field: Field, whole: Schema, settings: Any = None) -> tuple[Schema, Any]:
        """Return a schema of the whole record, in which the other fields are bytes that nothing can be wrong with."""
        others = {
            one.source: Field(
                name=one.source, source=one.source, dtype="uint8", shape=(one.size * one.numpy_dtype.itemsize,)
            )
            for one in distinct_fields(whole)
        }
        if field.source not in others:
            raise ConfigError(
                f"records.where: a raw record has no field {field.source!r} beside those of `records`; name one of them"
            )
        return Schema(features=tuple((others | {field.source: field}).values())), settings

    def generate(
        self,
        schema: Schema,
        random: np.random.Generator,
        count: int,
        settings: Any = None,
    ) -> Sequence[bytes]:
        columns = [
            column.astype(column.dtype.newbyteorder("<")) for column in made_up_columns(schema, random, count).values()
        ]
        return [b"".join(column[row].tobytes() for column in columns) for row in range(count)]


class _WholeFormat(Format):
    """Records that are one value, which one field reads as `$value`."""

    def whole_complaint(self, fields: Iterable[Field]) -> str | None:
        for field in fields:
            if is_envelope(field.source):
                continue
            read = field.as_read
            if field.source != VALUE:
                return (
                    f"{field.name!r} is read from a field of the value, and a {self.name} record has none; write "
                    f"field: {VALUE}, or $key, $header.NAME and the like"
                )
            if read.dtype != "string" or read.shape:
                return f"{field.name!r} is the value, which is one text; write dtype: string, without a shape"
            if read.missing is not None:
                return f"{field.name!r} has a missing value, and an empty record is set aside; leave it out"
        return None


class TextFormat(_WholeFormat):
    """Texts, in UTF-8."""

    name = "text"
    is_text = True

    def decoder(self, schema: Schema, settings: Any = None, schemas: Schemas | None = None) -> Decoder:
        decoder: Decoder = late("plain.raw:TextDecoder")(schema)
        return decoder

    def draft(self, sample: DraftSample) -> Look | None:
        """Take plain texts; what begins as JSON does is broken JSON, and no text."""
        is_utf8 = late("shared.pieces:is_utf8")
        texts = [value.decode() if is_utf8(value) and _READABLE.fullmatch(value) else None for value in sample.values]
        found = [({VALUE: text}, more) for text, more in zip(texts, sample.beside, strict=True) if text is not None]
        if len(found) < ENOUGH * len(sample.values):
            return None
        rows = joined([row for row, _ in found], [more for _, more in found])
        return Look(format=self.name, rows=rows, looked_at=len(sample.values))


class BytesFormat(_WholeFormat):
    """Any bytes, as an image's."""

    name = "bytes"

    def decoder(self, schema: Schema, settings: Any = None, schemas: Schemas | None = None) -> Decoder:
        decoder: Decoder = late("plain.raw:BytesDecoder")(schema)
        return decoder

    def draft(self, sample: DraftSample) -> Look | None:
        is_image = late("image.images:looks_like_an_image")
        found = [(value, more) for value, more in zip(sample.values, sample.beside, strict=True) if is_image(value)]
        rows = [{VALUE: value, **more} for value, more in found]
        enough = len(rows) >= ENOUGH * len(sample.values)
        return Look(format=self.name, rows=rows, looked_at=len(sample.values)) if enough else None
