"""`windows`: records become sequences of the last ones of their key. `to_windows` makes of it what shaping goes by."""

from typing import Annotated

from pydantic import Field

from millrace.app.settings.sections.records import RecordsSettings, to_schema
from millrace.consumers.section import Count, Section
from millrace.consumers.units import Size
from millrace.pipelines.schema import Schema
from millrace.pipelines.shaping.windows.window_layout import WindowLayout, WindowOptions

Name = Annotated[str, Field(min_length=1)]


class WindowSettings(Section):
    """How records become sequences of the last ones of their key."""

    length: Count | None = Field(
        None,
        ge=1,
        le=10_000,
        description="How many records a sequence has, the newest last; fewer are filled up in front with zeros or "
        "empty texts. Null: the model is given single records.",
    )
    by: Name | None = Field(
        None,
        description="The feature whose value is the key, a whole number or a text; the model is given it once. "
        "Produce with the same key, so that its records are in one partition. Null: all records of a partition are one "
        "sequence.",
        examples=["user_id"],
    )
    of: tuple[Name, ...] | None = Field(
        None,
        min_length=1,
        description="The features that become sequences; of the others the model is given those of the newest record. "
        "Null: all but the key.",
        examples=[["amount", "merchant"]],
    )
    stride: Count = Field(
        1,
        ge=1,
        le=10_000,
        description="Only each so many records of a key there is a row to learn. The others are skipped, and are in "
        "later sequences.",
    )
    min_length: Count = Field(
        1, ge=1, description="The first so many records of a key less one are skipped, and are in later sequences."
    )
    lengths: Name | None = Field(
        None,
        description="The name of one more model input, an int32: how many records the sequence has. Null: no such "
        "input.",
    )
    gaps: Name | None = Field(
        None,
        description="The name of one more model input, float32 by record of the sequence: the seconds of event time "
        "since the one before it, and 0 for the first. Null: no such input.",
    )
    max_bytes: Size = Field(
        64 * 2**20,
        ge=1,
        description="The bound of what is held of all keys of one partition. The key that was seen least recently "
        "makes room for a new one, and begins anew when it comes again. It is held twice, and is in each checkpoint.",
    )
    max_text: Size = Field(
        64, ge=4, le=2**16, description="A longer text is cut to so many bytes in a sequence, and counted as truncated."
    )


def without_length(windows: WindowSettings) -> str | None:
    """Return a sentence on what is said of windows if none are made; None if all of it has an effect."""
    # An explicit null switches windows off and leaves the rest of them as it is.
    if "length" in windows.model_fields_set or not windows.model_fields_set:
        return None
    name = next(name for name in type(windows).model_fields if name in windows.model_fields_set)
    return (
        f"windows.{name} has no effect: it says how records become sequences, and none are made without a length; "
        "write length, the number of records of a sequence, or leave it out"
    )


def to_windows(windows: WindowSettings, records: RecordsSettings) -> WindowLayout | None:
    """Return how records become sequences; None where they do not. Raise ConfigError where that does not fit."""
    if windows.length is None:
        return None
    return WindowLayout(to_schema(records), WindowOptions(**dict(windows)))


def to_row_schema(windows: WindowSettings, records: RecordsSettings) -> Schema:
    """Return the schema of the rows that are learnt: that of the records, but for sequences."""
    layout = to_windows(windows, records)
    return to_schema(records) if layout is None else layout.shaped
