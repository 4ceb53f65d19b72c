"""What every part of the settings has in common, and the small types that several of them use.

Owns no setting. Paths in a config file are relative to the file's folder; the folder travels in pydantic's validation
context under `FOLDER`.
"""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationInfo, WithJsonSchema

FOLDER = "folder"


class Section(BaseModel):
    """A frozen mapping of settings that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class SettingError(ValueError):
    """Two settings that do not go together; `key` is the one, inside the section at fault, to point at."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.key = key


def from_folder(path: Path, info: ValidationInfo) -> Path:
    """Resolve a path against the config file's folder."""
    folder: Path | None = (info.context or {}).get(FOLDER)
    return path if folder is None else (folder / path.expanduser()).absolute()


def no_truth_value(value: object) -> object:
    """Refuse true and false where a number is meant; YAML's true is not 1."""
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is not a whole number")  # noqa: TRY004 - pydantic collects ValueErrors
    return value


def not_empty(value: object) -> object:
    """Refuse an empty path, which would be the folder itself."""
    if value == "":
        raise ValueError("the path is empty; write the file's path, or leave the setting out")
    return value


Count = Annotated[int, BeforeValidator(no_truth_value)]
"""A whole number; YAML's true is not 1."""
ConfigPath = Annotated[
    Path,
    BeforeValidator(not_empty),
    AfterValidator(from_folder),
    WithJsonSchema({"type": "string", "format": "path"}),
]
"""A path, relative to the config file's folder."""
