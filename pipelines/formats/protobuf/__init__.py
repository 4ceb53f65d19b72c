"""Protobuf: messages of one type, by a descriptor that is given or that the registry has."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from millrace.consumers.errors import ConfigError
from millrace.consumers.section import ConfigPath, Section
from millrace.pipelines.formats.draft import DraftSample, Look
from millrace.pipelines.formats.format import Format, late
from millrace.pipelines.formats.shared.protocol import Decoder
from millrace.pipelines.schema import Schema, Schemas

_CARRIED = "messages.pb"


class ProtobufSettings(Section):
    """The message that Protobuf records hold."""

    descriptor: ConfigPath | None = Field(
        None,
        description="The file that describes the message: a .proto file, whose imports are looked for in its folder, "
        "or a descriptor set, as `protoc --include_imports --descriptor_set_out=FILE` writes it. With a "
        "registry: the reader's version, whose numbers find a field in versions that give it another name; "
        "null: fields are found by name.",
        examples=["./click.proto"],
    )
    message: str | None = Field(
        None,
        min_length=1,
        description="The name of the message, in full or its last parts. Null: the only message of the file.",
        examples=["shop.Click"],
    )


class ProtobufFormat(Format):
    """Messages."""

    name = "protobuf"
    section = "protobuf"
    registry_kind = "PROTOBUF"
    is_read_by_schema = True

    def fits(self, schema: Schema, settings: Any = None, *, registered: bool = False) -> None:
        if settings.descriptor is None and not registered:
            raise ConfigError(
                "records: Protobuf records are read by a descriptor; name its file, protobuf: {descriptor: ...}, or "
                "the registry, registry: {url: ...}"
            )
        if settings.descriptor is None and settings.message is not None:
            raise ConfigError(
                "records: the registry says which message a record is; write descriptor too, or leave message out"
            )

    def decoder(self, schema: Schema, settings: Any = None, schemas: Schemas | None = None) -> Decoder:
        decoder: Decoder = late("protobuf.decoder:ProtobufDecoder")(
            schema, file=settings.descriptor, message=settings.message, schemas=schemas
        )
        return decoder

    def header(self, value: bytes) -> bytes:
        begin: bytes = late("shared.descriptors:header_of")(value)
        return begin

    def schema_name(self, header: bytes, schemas: Schemas) -> str | None:
        name: str | None = late("shared.descriptors:message_name")(header, schemas)
        return name

    def draft(self, sample: DraftSample) -> Look | None:
        described = sample.registered or sample.described is not None
        look: Look | None = late("protobuf.rows:protobuf_look")(sample) if described else None
        return look

    def is_described_by(self, path: Path, text: bytes) -> bool:
        """Take whatever is no schema of Avro: a file that is neither is complained about as a descriptor."""
        return True

    def carried(self, settings: Any, folder: Path) -> Mapping[str, Any]:
        if settings.descriptor is None:
            return {}
        (folder / _CARRIED).write_bytes(late("shared.descriptors:descriptor_set")(settings.descriptor))
        return {"descriptor": _CARRIED}
