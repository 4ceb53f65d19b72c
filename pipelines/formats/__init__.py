"""Formats: their decoders turn the bytes of records into columns; one folder for each.

Call `make_decoder`. The module of a format, with its dependencies, is imported when that format is asked for.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import cast

from millrace.consumers.errors import ConfigError
from millrace.pipelines.formats.plain.whole_fields import whole_complaint
from millrace.pipelines.formats.shared.protocol import DecodedValues, Decoder, Refusal
from millrace.pipelines.schema import AvroLayout, CsvLayout, JsonLayout, ProtobufLayout, Schema

__all__ = ["FORMATS", "DecodedValues", "Decoder", "Refusal", "make_decoder"]

FORMATS: Mapping[str, str] = MappingProxyType(
    {
        "avro": "millrace.pipelines.formats.avro.decoder:AvroDecoder",
        "bytes": "millrace.pipelines.formats.plain.whole_value:BytesDecoder",
        "csv": "millrace.pipelines.formats.csv.decoder:CsvDecoder",
        "example": "millrace.pipelines.formats.example.decoder:ExampleDecoder",
        "json": "millrace.pipelines.formats.json.decoder:JsonDecoder",
        "protobuf": "millrace.pipelines.formats.protobuf.decoder:ProtobufDecoder",
        "raw": "millrace.pipelines.formats.plain.raw:RawDecoder",
        "text": "millrace.pipelines.formats.plain.whole_value:TextDecoder",
    }
)
"""The decoder of each format, as module:class."""


PLAIN_CSV = CsvLayout()
NO_AVRO = AvroLayout()
NO_PROTOBUF = ProtobufLayout()
PLAIN_JSON = JsonLayout()
_FRAMED_JSON = "millrace.pipelines.formats.json.framed:FramedJsonDecoder"


def make_decoder(
    format: str,  # noqa: A002 - the setting's name
    schema: Schema,
    csv: CsvLayout = PLAIN_CSV,
    avro: AvroLayout = NO_AVRO,
    protobuf: ProtobufLayout = NO_PROTOBUF,
    json: JsonLayout = PLAIN_JSON,
) -> Decoder:
    """Return the decoder of a format. Raise ConfigError if there is none, or if it cannot decode the schema."""
    if format not in FORMATS:
        raise ConfigError(f"records.format: {format!r} is not a format; use one of {', '.join(FORMATS)}")
    if (complaint := whole_complaint(format, schema.fields)) is not None:
        raise ConfigError(f"records: {complaint}")
    framed = format == "json" and json.schemas is not None
    module, _, name = (_FRAMED_JSON if framed else FORMATS[format]).partition(":")
    decoder = cast("Callable[..., Decoder]", getattr(import_module(module), name))
    layouts: dict[str, CsvLayout | AvroLayout | ProtobufLayout | JsonLayout]
    layouts = {"csv": csv, "avro": avro, "protobuf": protobuf, **({"json": json} if framed else {})}
    return decoder(schema, layouts[format]) if format in layouts else decoder(schema)
