"""`export`: versions of the model for others to serve."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from millrace.consumers.section import ConfigPath, Count, Section, SettingError
from millrace.consumers.units import Duration
from millrace.training.checkpoints.exports.export_gate import ExportCondition, parse_condition

OnlyIf = Annotated[
    ExportCondition,
    BeforeValidator(parse_condition),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["auc >= 0.30", "staleness < 5m", "records > 100_000"]}),
]


class ExportSettings(Section):
    """Versions of the model for others to serve."""

    path: ConfigPath | None = Field(
        None,
        description="Folder for exports, one folder per name below it, and in that a numbered one per version. It is "
        "what TF Serving's model_base_path names. Null: `millrace export` needs --to.",
        examples=["./exports"],
    )
    every: Duration | None = Field(
        None,
        ge=1,
        description="How often the trainer has a durable checkpoint exported, in a process of its own. Null: only "
        "`millrace export` does.",
        examples=["5m"],
    )
    only_if: tuple[OnlyIf, ...] = Field(
        (),
        description="What has to hold for that, all of it: a live metric of the model, the records that it has learnt "
        "(records), or how old records are when they are learnt (staleness, p99 of the last minute). `millrace export` "
        "does not ask.",
        examples=[["auc >= 0.30", "staleness < 5m", "records > 100_000"]],
    )
    announce: str | None = Field(
        None,
        min_length=1,
        description="Topic that gets a record of each version in export.path: its number, path, checkpoint, positions "
        "and metrics as JSON, the key the model's name. At least once; it must exist. Null: none is announced.",
        examples=["models"],
    )
    timeout: Duration = Field(
        600.0, ge=1, description="How long the process of an export may take before the trainer ends it."
    )
    keep: Count = Field(5, ge=1, description="How many of the newest versions stay, beside those that are served.")
    formats: tuple[Literal["saved_model", "onnx"], ...] = Field(
        ("saved_model",),
        min_length=1,
        max_length=2,
        description="What a version holds: a TensorFlow SavedModel; with onnx also `model.onnx`, where all features "
        "are numbers of one shape. It needs `pip install 'millrace[onnx]'`.",
        examples=[["saved_model", "onnx"]],
    )

    @model_validator(mode="after")
    def _a_saved_model_is_there(self) -> Self:
        if "saved_model" not in self.formats or len(set(self.formats)) < len(self.formats):
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
