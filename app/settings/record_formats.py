"""The formats of records as settings name them, and the settings that a format has of its own."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticKnownError

from millrace.consumers.section import Section
from millrace.consumers.user_class import UserClass, named_or_class
from millrace.pipelines.formats import FORMATS
from millrace.pipelines.formats.avro import AvroSettings
from millrace.pipelines.formats.csv import CsvSettings
from millrace.pipelines.formats.protobuf import ProtobufSettings


def _spelt(value: Any) -> Any:
    """Refuse what is neither a format of ours nor meant as a class in a file, as every choice of names is refused."""
    if isinstance(value, UserClass) or (isinstance(value, str) and (value in FORMATS or ".py" in value)):
        return value
    *names, last = [repr(name) for name in FORMATS]
    raise PydanticKnownError("literal_error", {"expected": f"{', '.join(names)} or {last}"})


FormatName = Annotated[str | UserClass, *named_or_class(FORMATS, "./logfmt.py:LogFmt"), BeforeValidator(_spelt)]


class FormatSections(Section):
    """The format of records, and the settings of each format that has some, under its `section`."""

    format: FormatName | None = Field("json", description="The format of the records.")
    avro: AvroSettings = Field(AvroSettings(), description="The schema that reads Avro records.")
    protobuf: ProtobufSettings = Field(ProtobufSettings(), description="The message that Protobuf records hold.")
    csv: CsvSettings = Field(CsvSettings(), description="How the columns of a CSV record are read.")


FORMAT_SECTIONS = tuple(name for name in FormatSections.model_fields if name != "format")
