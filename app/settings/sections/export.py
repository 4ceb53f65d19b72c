"""`export`: versions of the model for others to serve."""

from typing import Annotated, Self

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from millrace.consumers.section import ConfigPath, Count, Section, SettingError
from millrace.consumers.units import Duration, Size
from millrace.consumers.user_class import UserClass, named_or_class
from millrace.training.checkpoints.exports.export_gate import ExportCondition, parse_condition
from millrace.training.model.export.writers import SAVED_MODEL, WRITERS

OnlyIf = Annotated[
    ExportCondition,
    BeforeValidator(parse_condition),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["auc >= 0.30", "staleness < 5m", "records > 100_000"]}),
]

WriterName = Annotated[str | UserClass, *named_or_class(WRITERS, "saved_model, onnx or ./coreml.py:CoreML")]


class ExportSettings(Section):
    """Versions of the model that other programs serve."""

    path: ConfigPath | None = Field(
        None,
        description="Folder for exports, one folder per name below it, which is TF Serving's model_base_path, and in "
        "that one numbered folder per version. Null: `millrace export` needs --to.",
        examples=["./exports"],
    )
    every: Duration | None = Field(
        None,
        ge=1,
        description="How often the trainer exports a durable checkpoint, in a process of its own. Null: only `millrace "
        "export` does.",
        examples=["5m"],
    )
    only_if: tuple[OnlyIf, ...] = Field(
        (),
        description="The conditions for that, which must all hold: of a live metric of the model, of one on the golden "
        "set (golden.auc), of the number of records that it has learnt (records), or of the age of records when they "
        "are learnt (staleness, p99 of the last minute). `millrace export` does not check them.",
        examples=[["auc >= 0.30", "staleness < 5m", "records > 100_000"]],
    )
    announce: str | None = Field(
        None,
        min_length=1,
        description="Topic that gets a record of each version in export.path, at least once: number, path, checkpoint, "
        "positions and metrics as JSON, with the model's name as its key. The topic must exist. Null: no "
        "version is announced.",
        examples=["models"],
    )
    timeout: Duration = Field(
        600.0, ge=1, description="How long the process of an export may take before the trainer ends it."
    )
    keep: Count = Field(
        5, ge=1, description="The number of newest versions that stay, beside the versions that are served."
    )
    memory: Size = Field(
        1 << 30,
        ge=0,
        description="With windows: the most bytes of the last records of its keys that a version carries, for servers "
        "with serve.memory. Above it the keys that were seen least recently are left out, and the version says how "
        "many. 0: a version carries none.",
    )
    formats: tuple[WriterName, ...] = Field(
        (SAVED_MODEL,),
        min_length=1,
        description="The formats of a version: a TensorFlow SavedModel; with onnx also `model.onnx`, if all features "
        "are numbers of one shape; and the formats that classes of yours write, each as FILE:CLASS, the file relative "
        "to this one. onnx needs the extra `onnx` (docs/install.md).",
        examples=[[SAVED_MODEL, "onnx"], [SAVED_MODEL, "./coreml.py:CoreML"]],
    )

    @property
    def writers(self) -> dict[str, str]:
        """By name as the settings have it, where the writer of each format is found."""
        return {str(one): one.place if isinstance(one, UserClass) else one for one in self.formats}

    @model_validator(mode="after")
    def _a_saved_model_is_there(self) -> Self:
        if SAVED_MODEL not in self.formats or len(self.writers) < len(self.formats):
            raise SettingError(
                "formats", "a version always holds one SavedModel; write [saved_model], or [saved_model, onnx]"
            )
        return self

    @model_validator(mode="after")
    def _somewhere_to_export_to(self) -> Self:
        if self.every is not None and self.path is None:
            raise SettingError("every", "there is no folder for exports; write export.path, or leave every out")
        if self.announce is not None and self.path is None:
            raise SettingError("announce", "there is no folder for exports; write export.path, or leave announce out")
        if self.only_if and self.every is None:
            raise SettingError("only_if", "this is about what the trainer exports; write every, or leave it out")
        return self
