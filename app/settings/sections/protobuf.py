"""`records.protobuf`: of which message Protobuf records are. The decoder reads the descriptor."""

from pydantic import Field

from millrace.consumers.section import ConfigPath, Section
from millrace.pipelines.schema import ProtobufLayout, Schemas


class ProtobufSettings(Section):
    """Of which message Protobuf records are."""

    descriptor: ConfigPath | None = Field(
        None,
        description="The file that describes the message: a .proto file, whose imports are looked for in its folder, "
        "or a descriptor set, as `protoc --include_imports --descriptor_set_out=FILE` writes it. With a registry: the "
        "reader's, by whose numbers fields are found in versions that call them otherwise; null finds them by name.",
        examples=["./click.proto"],
    )
    message: str | None = Field(
        None,
        min_length=1,
        description="The name of the message, whole or its end. Null: the only one that the file has.",
        examples=["shop.Click"],
    )


def to_protobuf_layout(protobuf: ProtobufSettings, schemas: Schemas | None) -> ProtobufLayout:
    """Return the message that Protobuf records are of. `schemas`: those of the registry, where there is one."""
    return ProtobufLayout(file=protobuf.descriptor, message=protobuf.message, schemas=schemas)
