"""Decoders: they turn the bytes of records into columns, one module for each format.

Call `make_decoder`. The module of a format, with its dependencies, is imported when that format is asked for.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import cast

from consumers.errors import ConfigError
from pipelines.decoders.protocol import DecodedValues, Decoder, Refusal
from pipelines.decoders.whole_fields import whole_complaint
from pipelines.schema import AvroLayout, CsvLayout, JsonLayout, ProtobufLayout, Schema

__all__ = ["FORMATS", "DecodedValues", "Decoder", "Refusal", "make_decoder"]

FORMATS: Mapping[str, str] = MappingProxyType(
    {
        "avro": "pipelines.decoders.avro:AvroDecoder",
        "bytes": "pipelines.decoders.whole_value:BytesDecoder",
        "csv": "pipelines.decoders.csv:CsvDecoder",
        "example": "pipelines.decoders.example:ExampleDecoder",
        "json": "pipelines.decoders.json:JsonDecoder",
        "protobuf": "pipelines.decoders.protobuf:ProtobufDecoder",
        "raw": "pipelines.decoders.raw:RawDecoder",
        "text": "pipelines.decoders.whole_value:TextDecoder",
    }
)
"""The decoder of each format, as module:class."""


PLAIN_CSV = CsvLayout()
NO_AVRO = AvroLayout()
NO_PROTOBUF = ProtobufLayout()
PLAIN_JSON = JsonLayout()
_FRAMED_JSON = "pipelines.decoders.framed_json:FramedJsonDecoder"


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
