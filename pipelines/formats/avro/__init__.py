"""Avro: a plan made of the writer's schema reads whole chunks column by column."""

import shutil
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

_CARRIED = "schema.avsc"


class AvroSettings(Section):
    """The schema that reads Avro records."""

    schema_file: ConfigPath | None = Field(
        None,
        description="The file of the schema that wrote the records, as JSON. With a registry: the reader's schema, "
        "which gives aliases and defaults. Null: there is none.",
        examples=["./click.avsc"],
    )


class AvroFormat(Format):
    """Values of an Avro schema."""

    name = "avro"
    section = "avro"
    registry_kind = "AVRO"
    is_read_by_schema = True

    def fits(self, schema: Schema, settings: Any = None, *, registered: bool = False) -> None:
        if settings.schema_file is None and not registered:
            raise ConfigError(
                "records: Avro records are read by their schema; name its file, avro: {schema_file: ...}, or the "
                "registry, registry: {url: ...}"
            )

    def decoder(self, schema: Schema, settings: Any = None, schemas: Schemas | None = None) -> Decoder:
        path = None if settings is None else settings.schema_file
        try:
            text = None if path is None else path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = (error.strerror or "it cannot be opened").lower() if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigError(f"records.avro.schema_file: {path} cannot be read: {why}; put the schema there") from None
        decoder: Decoder = late("avro.decoder:AvroDecoder")(schema, text, str(path or ""), schemas)
        return decoder

    def schema_name(self, header: bytes, schemas: Schemas) -> str | None:
        registered = schemas.get(int.from_bytes(header[1:]))
        if registered is None or registered.kind != self.registry_kind:
            return None
        try:
            read, _ = late("avro.writer_schema:parsed")(
                registered.text, "it", [text for _, text in registered.references]
            )
        except ConfigError:
            return None
        return str(read.get("name", "")) if isinstance(read, dict) else ""

    def draft(self, sample: DraftSample) -> Look | None:
        described = sample.registered or sample.described is not None
        look: Look | None = late("avro.writer_schema:avro_look")(sample) if described else None
        return look

    def is_described_by(self, path: Path, text: bytes) -> bool:
        return path.suffix == ".avsc" or text.lstrip()[:1] in {b"{", b"["}

    def carried(self, settings: Any, folder: Path) -> Mapping[str, Any]:
        if settings.schema_file is None:
            return {}
        shutil.copyfile(settings.schema_file, folder / _CARRIED)
        return {"schema_file": _CARRIED}
