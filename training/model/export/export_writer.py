"""An export writer: one form in which a version of the model is written, and the way to ask what was written.

Two are ours, `saved_model` and `onnx`; `export.formats: ./coreml.py:CoreML` names one of the user's. `write` runs in
the process that exports, `prove` in a fresh one, so nothing that `write` left in memory can help it. Importing this
loads no TensorFlow.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from millrace.pipelines.schema import Column, Field
from millrace.training.model.export.answers import ROUNDING

if TYPE_CHECKING:
    from millrace.training.model.export.served_module import ServedModule


class RunModule(Protocol):
    """Runs a Python module in a fresh process that ends with this one."""

    def __call__(self, module: str, arguments: Sequence[str], what: str, way_out: str = "", given: str = "") -> str:
        """Return what it prints; ExportRefusedError says that it cannot do `what`, why, and the way out."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WritableModel:
    """A model that is written."""

    module: "ServedModule"
    """`module.answer` is the function to write, `module.served.model` the Keras model within it."""
    user_code: Sequence[ModuleType]
    """The user's files: variables and tables that stand in them are part of the model."""
    run: RunModule
    """For a converter that needs a process of its own."""


class ExportWriter(ABC):
    """Writes a model in one form. A writer is a class that extends this one, made without arguments."""

    title: str = ""
    """How errors call what answers; empty takes the writer's name in the settings."""
    written: str = ""
    """What it writes into the folder of a version, as errors name it; empty for the version itself."""
    rounding: int = ROUNDING
    """How many units of the last place of its dtype an answer may differ by, where the answer is 1."""
    way_out: str = ""
    """What to do about a file that cannot be used."""
    refused: str = ""
    """Why its answers may differ, and what to do about it."""

    def misfit(self, field: Field) -> str | None:  # noqa: ARG002 - for those who have a reason
        """Say why a feature cannot be written in this form; None if it can. Asked when the settings are read."""
        return None

    def require(self) -> None:  # noqa: B027 - most need nothing
        """Raise ConfigError if something that it needs is not installed. Asked before anything is exported."""

    @abstractmethod
    def write(self, model: WritableModel, folder: Path) -> None:
        """Write the model below the folder, which holds the SavedModel if this is another form.

        A file of another writer is left alone. What raises leaves no version.
        """

    @abstractmethod
    def prove(self, folder: Path, rows: Mapping[str, Column]) -> Mapping[str, Column]:
        """Return the answers to raw features, by output, of what `write` has left in the folder, and nothing else.

        Raise if it is not whole.
        """
