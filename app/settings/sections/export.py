"""`export`: versions of the model for others to serve."""

from typing import Literal

from pydantic import Field

from app.settings.section import ConfigPath, Count, Section


class ExportSettings(Section):
    """Versions of the model for others to serve."""

    path: ConfigPath | None = Field(
        None,
        description="Folder for exports, one folder per name below it, and in that a numbered one per version. It is "
        "what TF Serving's model_base_path names. Null: `millrace export` needs --to.",
        examples=["./exports"],
    )
    keep: Count = Field(5, ge=1, description="How many of the newest versions stay.")
    formats: tuple[Literal["saved_model"], ...] = Field(
        ("saved_model",), min_length=1, max_length=1, description="What a version holds: a TensorFlow SavedModel."
    )
