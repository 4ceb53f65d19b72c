"""What the rest of the program asks of a format of records: what it may hold, its decoder, a draft, made-up records.

Each format is one object, in the folder of its name (raw, text and bytes share `plain`; `image` is of fields, and no
format); `millrace.pipelines.formats` has the table of them. Settings of its own are its `section`, and a field of
`RecordsSettings`. A format imports what decodes and what drafts only when it is asked to: that a config file names a
format loads no parser.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.consumers.errors import ConfigError
from millrace.pipelines.formats.draft import DraftSample, Look
from millrace.pipelines.formats.shared.paths import VALUE
from millrace.pipelines.formats.shared.protocol import Decoder
from millrace.pipelines.schema import Field, Schema, Schemas


class Glanced(NamedTuple):
    """What a glance at records tells of the text that a field of each holds: of a record in neither, nothing."""

    listed: npt.NDArray[np.bool_]
    """Those that hold one of the texts that it looks for, if they are records at all."""
    others: npt.NDArray[np.bool_]
    """Those that hold another text."""


Glance = Callable[[Sequence[bytes | None]], Glanced]
HEADER = 5
"""Bytes of Confluent's wire format before the value: a zero, and the number of the schema, big-endian."""


class Format(ABC):
    """A format of records. A subclass says what is its own."""

    name: ClassVar[str] = ""
    """As `records.format` has it; the name of the class for a user's own."""
    section: ClassVar[str | None] = None
    """The name of its own settings within `records`; None for a format without any."""
    registry_kind: ClassVar[str | None] = None
    """The kind of its schemas in a registry; None where its records cannot name one."""
    is_read_by_schema: ClassVar[bool] = False
    """Whether records cannot be read without the schema that wrote them."""
    names_fields: ClassVar[bool] = False
    """Whether each record names its fields, so that `types` can tell those that nobody reads."""
    looks: ClassVar[int] = 512
    """One of so many records is given to `types`, so that this costs less than 1 % of decoding them."""
    loads_tensorflow: ClassVar[bool] = False
    """Whether its decoder imports TensorFlow."""
    is_text: ClassVar[bool] = False
    """Whether a record is a text, as a request for a prediction may hold it."""

    def __init_subclass__(cls) -> None:
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def whole_complaint(self, fields: Iterable[Field]) -> str | None:
        """Return what is wrong with fields that read the value as a whole, or do not; None where nothing is."""
        for field in fields:
            if field.source == VALUE:
                return (
                    f"{field.name!r} is the whole value, and format: {self.name} reads fields of it; name one, or "
                    "write format: text"
                )
        return None

    def fits(self, schema: Schema, settings: Any = None, *, registered: bool = False) -> None:
        """Raise ConfigError where records of the format cannot hold the schema, or lack a setting.

        `settings` are those of its section, and `registered` says whether records name schemas of a registry.
        """

    @abstractmethod
    def decoder(self, schema: Schema, settings: Any = None, schemas: Schemas | None = None) -> Decoder:
        """Return what decodes records, with the schemas of a registry where there is one. Raise ConfigError."""

    def narrowed(self, settings: Any, whole: Schema, part: Schema) -> Any:
        """Return the settings by which records of the whole schema are read where only a part of it is asked for."""
        return settings

    def part_of(self, field: Field, whole: Schema, settings: Any = None) -> tuple[Schema, Any]:
        """Return the schema and the settings by which one field is read alone of records of the whole schema.

        `records.where` asks so. Raise ConfigError where the field cannot be found without the others.
        """
        part = Schema(features=(field,))
        return part, self.narrowed(settings, whole, part)

    def glance(self, source: str, texts: frozenset[bytes], *, framed: bool) -> Glance | None:
        """Return what tells cheaply whether a field holds one of these texts; None where decoding is as cheap.

        `framed`: whether records begin with the number of a schema.
        """
        return None

    def header(self, value: bytes) -> bytes:
        """Return what a record of a registry begins with, which names its schema; nothing where it does not."""
        return value[:HEADER] if value[:1] == b"\0" and len(value) > HEADER else b""

    def schema_name(self, header: bytes, schemas: Schemas) -> str | None:
        """Return the name of the schema that such a header names; None where the registry has none of this format.

        Raise NotYetError while it is not known.
        """
        return None

    def types(self, value: bytes, *, framed: bool) -> Mapping[str, str] | None:
        """Return the type of each field that a record names, by source; None where it is none, or names no fields.

        `framed`: whether records begin with the number of a schema.
        """
        return None

    def draft(self, sample: DraftSample) -> Look | None:
        """Return what `millrace init` can say of records; None where they are of another format."""
        return None

    def is_described_by(self, path: Path, text: bytes) -> bool:
        """Return whether a file that `millrace init --schema` names describes records of this format."""
        return False

    def generate(
        self,
        schema: Schema,
        random: np.random.Generator,
        count: int,
        settings: Any = None,
    ) -> Sequence[bytes]:
        """Make up records of the rows that `made_up_columns` draws. Raise ConfigError where none can be made up."""
        raise ConfigError(
            f"records.format: {self.name!r} is one that no records can be made up for; prove json, csv or raw"
        )

    def carried(self, settings: Any, folder: Path) -> Mapping[str, Any]:
        """Copy the files that the settings name into a folder; return the settings that name them there."""
        return {}


def late(place: str) -> Any:
    """Return what a module of a format has, as `module:name`, and import it now: with a parser, some take a second."""
    module, _, name = place.partition(":")
    return getattr(import_module(f"millrace.pipelines.formats.{module}"), name)
