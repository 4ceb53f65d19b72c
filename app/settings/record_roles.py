"""The settings of the fields of a record that have a role of their own: its weight, and its event time.

Pure; `app.settings.sections.records` puts fields together.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from millrace.app.settings.record_fields import MAX, MIN, MISSING, Bound, Ruled, Source, check_bound, check_order
from millrace.consumers.section import Count, SettingError
from millrace.pipelines import schema
from millrace.pipelines.schema import DType, TimeFormat


class WeightSettings(Ruled):
    """The field that holds the sample weight of a record."""

    field: Source = Field(description="The number's place in the record: a name, or a path.", examples=["weight"])
    missing: float | None = Field(None, description=MISSING.format("it "))
    min: Bound = Field(None, description=MIN)
    max: Bound = Field(None, description=MAX)

    @model_validator(mode="after")
    def _bounds_fit(self) -> Self:
        for key, bound in (("min", self.min), ("max", self.max)):
            check_bound(key, bound, "float32")
        check_order(self.min, self.max)
        return self

    def to_field(self) -> schema.Field:
        """Return the schema's field."""
        return schema.Field(
            name="weight", source=self.field, dtype="float32", missing=self.missing, min=self.min, max=self.max
        )


class KeySettings(Ruled):
    """The field by which labels that come later are found."""

    field: Source = Field(description="The key's place in the record: a name, or a path.", examples=["impression_id"])
    dtype: Literal["string", "int64"] = Field("string", description="The key's type: a text, or a whole number.")

    @property
    def written(self) -> DType:
        """The dtype of what a record holds."""
        return self.dtype

    def to_field(self) -> schema.Field:
        """Return the schema's field."""
        return schema.Field(name="key", source=self.field, dtype=self.dtype)


class SliceSettings(Ruled):
    """A field of the record by whose values the live score is shown."""

    field: Source | None = Field(
        None, description="Its place in the record: a name, or a path. Null: the name.", examples=["client.country"]
    )
    dtype: Literal["string", "int64", "bool"] | None = Field(
        None, description="What it holds. Null: what the feature of that name or place holds, or else a text."
    )

    @property
    def written(self) -> DType:
        """The dtype of what a record holds."""
        return self.dtype or "string"

    def to_field(self, name: str, others: Iterable[schema.Field], *, may_lack: bool) -> schema.Field:
        """Return the schema's field: one of the others, if they read the same; ValueError if that has no few values.

        `may_lack` says whether a record may be without it.
        """
        source = self.field or name
        for other in others:
            if other.source == source or (self.field is None and other.name == name):
                read = other.as_read
                if read.shape or read.numpy_dtype.kind not in "iubO" or other.image is not None:
                    kind = f"{read.dtype}{list(read.shape) or ''}"
                    raise ValueError(f"{name} is {kind}; a slice is by a text, a whole number or a truth value")
                return replace(other, name=name)
        absent: dict[DType, Any] = {"string": "", "int64": -(2**63), "bool": False}
        missing = absent[self.written] if may_lack else None
        return schema.Field(name=name, source=source, dtype=self.written, missing=missing)


class EventTimeSettings(Ruled):
    """The field that holds the event time."""

    field: Source = Field(description="The field's place in the record: a name, or a path.", examples=["happened_at"])
    format: schema.TimeUnit = Field(
        "ms",
        description="The form of the time. ms, us, ns: an integer since 1970. s: seconds since 1970, which may have a "
        "fraction. iso8601: a text such as 2026-11-22T10:00:00.25+01:00.",
    )
    zone: str | None = Field(
        None,
        description="The time zone of texts that name none. Null: a record with such a text is set aside.",
        examples=["Europe/Berlin"],
    )
    min: Count | None = Field(
        None,
        description="The earliest time that is learnt from, in ms since 1970; an earlier record is set aside.",
    )
    max: Count | None = Field(
        None,
        description="The latest time that is learnt from, in ms since 1970; a later record is set aside.",
    )

    @property
    def written(self) -> DType:
        """The dtype of what a record holds."""
        return self.to_field().as_read.dtype

    @model_serializer(mode="wrap")
    def _what_is_set(self, handler: SerializerFunctionWrapHandler) -> Any:
        """Leave out what is not set: a checkpoint compares what is shown."""
        values = handler(self)
        return {key: value for key, value in values.items() if value is not None and (key, value) != ("format", "ms")}

    @model_validator(mode="after")
    def _bounds_fit(self) -> Self:
        check_order(self.min, self.max)
        return self

    @model_validator(mode="after")
    def _zone_is_known(self) -> Self:
        if self.zone is None:
            return self
        if self.format != "iso8601":
            raise SettingError("zone", f"only texts need one, and the format is {self.format}; leave it out")
        try:
            ZoneInfo(self.zone)
        except (LookupError, ValueError, OSError) as error:
            raise SettingError(
                "zone", f"{self.zone!r} is no time zone; write one as the tz database has it, as Europe/Berlin or UTC"
            ) from error
        return self

    def to_field(self) -> schema.Field:
        """Return the schema's field."""
        plain = schema.Field(name="event_time", source=self.field, dtype="int64")
        if self.format == "ms":
            return replace(plain, min=self.min, max=self.max)
        return replace(plain, time=TimeFormat(unit=self.format, zone=self.zone, min=self.min, max=self.max))
