"""Settings that name something of ours, or a class in a file of the user's: `./coreml.py:CoreML`."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BeforeValidator, PlainSerializer, ValidationInfo, WithJsonSchema

from millrace.consumers.section import FOLDER


@dataclass(frozen=True, slots=True)
class UserClass:
    """A class in a Python file."""

    text: str
    """As the settings have it."""
    file: Path
    """Absolute."""
    name: str

    def __str__(self) -> str:
        return self.text

    @property
    def place(self) -> str:
        """The absolute file and the class, as what loads it takes them."""
        return f"{self.file}:{self.name}"


def named_or_class(names: Collection[str], example: str) -> tuple[Any, ...]:
    """Return how a setting is read that is one of these names, or else names a class; for `Annotated`."""
    known = ", ".join(names)

    def read(value: object, info: ValidationInfo) -> str | UserClass:
        if isinstance(value, UserClass) or (isinstance(value, str) and value in names):
            return value
        file, colon, name = value.rpartition(":") if isinstance(value, str) else ("", "", "")
        if not colon or not file.endswith(".py") or not name.isidentifier():
            beside = f"neither {known} nor" if known else "not"
            raise ValueError(f"{value!r} is {beside} a class in a file; write {example}")
        folder: Path = (info.context or {}).get(FOLDER, Path())
        return UserClass(str(value), (folder / Path(file).expanduser()).absolute(), name)

    of_a_file = {"type": "string", "format": "FILE:CLASS", "pattern": r"\.py:[A-Za-z_]\w*$"}
    return (
        BeforeValidator(read),
        PlainSerializer(str, return_type=str),
        WithJsonSchema({"anyOf": [{"enum": [*names]}, of_a_file]} if names else of_a_file),
    )
