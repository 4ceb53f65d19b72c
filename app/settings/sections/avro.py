"""`records.avro`: by which schema Avro records are read. `to_avro_layout` reads the schema's file."""

from pydantic import Field

from millrace.consumers.errors import ConfigError
from millrace.consumers.section import ConfigPath, Section
from millrace.pipelines.schema import AvroLayout, Schemas


class AvroSettings(Section):
    """The schema that reads Avro records."""

    schema_file: ConfigPath | None = Field(
        None,
        description="The file of the schema that wrote the records, as JSON. With a registry: the reader's schema, "
        "which gives aliases and defaults. Null: there is none.",
        examples=["./click.avsc"],
    )


def to_avro_layout(avro: AvroSettings, schemas: Schemas | None) -> AvroLayout:
    """Return the schemas that Avro records are read by; raise ConfigError where the file cannot be read.

    `schemas`: those of the registry, where there is one.
    """
    path = avro.schema_file
    if path is None:
        return AvroLayout(schemas=schemas)
    try:
        return AvroLayout(schema=path.read_text("utf-8"), path=str(path), schemas=schemas)
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror or "it cannot be opened").lower() if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"records.avro.schema_file: {path} cannot be read: {why}; put the schema there") from None
