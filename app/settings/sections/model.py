"""`model`: the function that builds it, and what it is called with."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, ValidationInfo, WithJsonSchema

from app.settings.section import FOLDER, Section


@dataclass(frozen=True, slots=True)
class Build:
    """A function in a Python file."""

    text: str
    """As the settings have it."""
    file: Path
    """Absolute."""
    function: str

    def __str__(self) -> str:
        return self.text


def _build(value: object, info: ValidationInfo) -> Build:
    if isinstance(value, Build):
        return value
    file, colon, function = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not colon or not file.endswith(".py") or not function.isidentifier():
        raise ValueError(f"{value!r} is not a function in a file; write ./model.py:build_model")
    folder: Path = (info.context or {}).get(FOLDER, Path())
    return Build(str(value), (folder / Path(file).expanduser()).absolute(), function)


BuildFunction = Annotated[
    Build,
    BeforeValidator(_build),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "pattern": r"\.py:[A-Za-z_]\w*$"}),
]


class ModelSettings(Section):
    """What learns."""

    build: BuildFunction = Field(
        description="The function that returns the compiled model: FILE:FUNCTION, the file relative to this one.",
        examples=["./model.py:build_model"],
    )
    args: Mapping[str, Any] = Field({}, description="The arguments of the function, by name.")
    preprocess: str | None = Field(
        None,
        pattern=r"^[A-Za-z_]\w*$",
        description="A function of the same file that maps a batch before the model sees it. Null: `preprocess`, if "
        "the file has it.",
    )
    augment: str | None = Field(
        None,
        pattern=r"^[A-Za-z_]\w*$",
        description="A function of the same file that changes what is learnt of a batch and nothing of what is "
        "scored. Null: `augment`, if the file has it.",
    )
