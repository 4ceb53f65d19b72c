"""Formats: their decoders turn the bytes of records into columns; one folder for each.

`format_of` returns what the program asks of a format (`Format`), `make_decoder` its decoder for a schema. A format's
decoder, with its dependencies, is imported when a decoder is made.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from millrace.consumers.errors import ConfigError
from millrace.pipelines.formats.format import Format, late
from millrace.pipelines.formats.shared.protocol import DecodedValues, Decoder, Refusal
from millrace.pipelines.schema import Schema, Schemas

__all__ = ["FORMATS", "DecodedValues", "Decoder", "Format", "Refusal", "every_format", "format_of", "make_decoder"]

FORMATS: Mapping[str, str] = MappingProxyType(
    {
        "json": "json:JsonFormat",
        "avro": "avro:AvroFormat",
        "protobuf": "protobuf:ProtobufFormat",
        "csv": "csv:CsvFormat",
        "raw": "plain:RawFormat",
        "example": "example:ExampleFormat",
        "text": "plain:TextFormat",
        "bytes": "plain:BytesFormat",
    }
)
"""Each format, as module:class."""


@cache
def format_of(name: str) -> Format:
    """Return the format of a name. Raise ConfigError if there is none."""
    if name not in FORMATS:
        raise ConfigError(f"records.format: {name!r} is not a format; use one of {', '.join(FORMATS)}")
    found: Format = late(FORMATS[name])()
    return found


def every_format() -> Iterator[Format]:
    """Yield all formats, in the order of the table."""
    return map(format_of, FORMATS)


def make_decoder(form: str | Format, schema: Schema, settings: Any = None, schemas: Schemas | None = None) -> Decoder:
    """Return the decoder of a format. Raise ConfigError if there is none, or if it cannot decode the schema.

    `settings` are those of the format's section, `schemas` those of a registry.
    """
    found = format_of(form) if isinstance(form, str) else form
    if (complaint := found.whole_complaint(schema.fields)) is not None:
        raise ConfigError(f"records: {complaint}")
    return found.decoder(schema, settings, schemas)
