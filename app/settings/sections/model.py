"""`model`: the function that builds it, and what it is called with."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, ValidationInfo, WithJsonSchema

from millrace.consumers.section import FOLDER, Section

CHECKPOINT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,99})@(\d{1,15}|latest)")
"""A checkpoint by the name of its model and its number."""


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


@dataclass(frozen=True, slots=True)
class InitialWeights:
    """A file of weights, or a checkpoint."""

    text: str
    """As the settings have it."""
    path: Path | None = None
    """The file, or a checkpoint's folder; absolute. None where a checkpoint is named."""
    name: str = ""
    """The model of the checkpoint, in the same checkpoints.path."""
    number: int | None = None
    """The checkpoint's number; None for the newest."""

    def __str__(self) -> str:
        return self.text


def _weights(value: object, info: ValidationInfo) -> InitialWeights | None:
    if value is None or isinstance(value, InitialWeights):
        return value
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{value!r} names no weights; write the path of a file, or a checkpoint as in clicks@37")
    if match := CHECKPOINT.fullmatch(value):
        return InitialWeights(value, name=match[1], number=None if match[2] == "latest" else int(match[2]))
    folder: Path = (info.context or {}).get(FOLDER, Path())
    return InitialWeights(value, path=(folder / Path(value).expanduser()).absolute())


WeightsSource = Annotated[
    InitialWeights | None,
    BeforeValidator(_weights),
    PlainSerializer(lambda value: None if value is None else str(value), return_type=str | None),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "null"}]}),
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
        description="A function of the same file that changes the rows that are learnt, and not those that are scored. "
        "Null: `augment`, if the file has it.",
    )
    initial_weights: WeightsSource = Field(
        None,
        description="The weights of a first start, instead of new ones: a .keras, .weights.h5 or .safetensors file, "
        "the folder of a checkpoint, or a checkpoint of this checkpoints.path by NAME@NUMBER (or "
        "NAME@latest). Weights are matched by layer and variable. Ignored if there is a checkpoint to "
        "resume from. Null: new weights.",
        examples=["weights/clicks.keras", "clicks@37"],
    )
