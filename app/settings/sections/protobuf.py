"""`records.protobuf`: of which message Protobuf records are. The decoder reads the descriptor."""

from pydantic import Field

from millrace.consumers.section import ConfigPath, Section
from millrace.pipelines.schema import ProtobufLayout, Schemas


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


def to_protobuf_layout(protobuf: ProtobufSettings, schemas: Schemas | None) -> ProtobufLayout:
    """Return the message that Protobuf records are of. `schemas`: those of the registry, where there is one."""
    return ProtobufLayout(file=protobuf.descriptor, message=protobuf.message, schemas=schemas)
