"""`records`: what a record holds. `to_schema` turns it into the schema that decoding and the dataset go by."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    PlainValidator,
    SerializerFunctionWrapHandler,
    Tag,
    WithJsonSchema,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from app.settings.section import Section, SettingError, no_truth_value
from pipelines import schema
from pipelines.schema import DTYPES, DType, Schema

Scalar = bool | int | float | str
Length = Annotated[int, Field(ge=1), BeforeValidator(no_truth_value)]
ONE_LABEL = "<one>"
LABELS_BY_NAME = "<by name>"


def _scalar(value: object) -> object:
    if value is not None and not isinstance(value, Scalar):
        raise ValueError("a list or a mapping cannot stand in for a missing value; write one number or text")
    return value


Missing = Annotated[
    Scalar | None,
    PlainValidator(_scalar),
    WithJsonSchema({"type": ["boolean", "number", "string", "null"]}),
]


class FieldSettings(Section):
    """One field of a record. A dtype alone is short for a mapping with that dtype."""

    dtype: DType = Field(description="The field's type.", examples=["float32"])
    shape: tuple[Length, ...] = Field((), description="How many elements it holds, by dimension; [] for one value.")
    missing: Missing = Field(
        None,
        description="Stands in where the record lacks the field or holds null. Null: such a record is set aside.",
    )
    field: str | None = Field(
        None, min_length=1, description="The record's name for it, where it is not the model's name."
    )

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"dtype": value} if isinstance(value, str) else value

    @model_serializer(mode="wrap")
    def _shortest_form(self, handler: SerializerFunctionWrapHandler) -> Any:
        values = {key: value for key, value in handler(self).items() if key in self.model_fields_set}
        return values["dtype"] if values.keys() == {"dtype"} else values

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Tell of the short form too."""
        if core["type"] == "model" or handler.mode == "serialization":
            return handler(core)
        return {"anyOf": [{"enum": list(DTYPES), "type": "string"}, handler(core)]}

    @model_validator(mode="after")
    def _missing_fits(self) -> Self:
        if self.missing is not None and not _fits(self.missing, self.dtype):
            raise SettingError(
                "missing", f"{self.missing!r} does not fit {self.dtype}; write a value that does, or null"
            )
        return self

    def to_field(self, name: str) -> schema.Field:
        """The schema's description of the field that the model calls `name`."""
        return schema.Field(
            name=name, source=self.field or name, dtype=self.dtype, shape=self.shape, missing=self.missing
        )


class OneLabelSettings(Section):
    """A single label, named by its field."""

    field: str = Field(min_length=1, description="The record's name for it.", examples=["clicked"])
    dtype: DType = Field("float32", description="The field's type.")
    shape: tuple[Length, ...] = Field((), description="How many elements it holds, by dimension; [] for one value.")
    missing: Missing = Field(
        None,
        description="Stands in where the record lacks the field or holds null. Null: such a record is set aside.",
    )

    @model_validator(mode="after")
    def _missing_fits(self) -> Self:
        if self.missing is not None and not _fits(self.missing, self.dtype):
            raise SettingError(
                "missing", f"{self.missing!r} does not fit {self.dtype}; write a value that does, or null"
            )
        return self


class WeightSettings(Section):
    """How much a record counts."""

    field: str = Field(min_length=1, description="The record's name for it, a number.", examples=["weight"])
    missing: float | None = Field(
        None,
        description="Stands in where the record lacks it or holds null. Null: such a record is set aside.",
    )

    def to_field(self) -> schema.Field:
        """The schema's description of it."""
        return schema.Field(name="weight", source=self.field, dtype="float32", missing=self.missing)


class EventTimeSettings(Section):
    """When what a record tells of has happened."""

    field: str = Field(
        min_length=1,
        description="The record's name for it, an integer: milliseconds since 1970.",
        examples=["happened_at"],
    )

    def to_field(self) -> schema.Field:
        """The schema's description of it."""
        return schema.Field(name="event_time", source=self.field, dtype="int64")


class DeadLetterSettings(Section):
    """Where records go that cannot be learnt."""

    topic: str | None = Field(
        None, min_length=1, description="Topic that gets every record that was set aside, as it came, with the reason."
    )


def _label_form(value: Any) -> str:
    """Which of the two forms a label has: `{field: is_fraud}` is one label, `{clicked: float32}` names them."""
    if isinstance(value, OneLabelSettings):
        return ONE_LABEL
    named = value.get("field") if isinstance(value, Mapping) else None
    return ONE_LABEL if isinstance(named, str) and named not in DTYPES else LABELS_BY_NAME


Labels = Annotated[
    Annotated[OneLabelSettings, Tag(ONE_LABEL)] | Annotated[dict[str, FieldSettings], Tag(LABELS_BY_NAME)],
    Discriminator(_label_form),
]


class RecordsSettings(Section):
    """What a record holds."""

    format: Literal["json", "raw"] = Field(
        "json",
        description="json: an object a record. raw: the fields' values one after another, little-endian, nothing "
        "between them: features in their order, labels, weight, event time.",
    )
    features: dict[str, FieldSettings] = Field(
        min_length=1,
        description="The names of the model's inputs, each with its dtype or a mapping of dtype, shape, missing and "
        "field.",
        examples=[{"price": "float32"}],
    )
    label: Labels | None = Field(
        None,
        description="What to predict: names with their dtypes as for features, or for a single one {field, dtype, "
        "shape, missing}. Several are named as the model's outputs are. Null: the model gets no label.",
    )
    weight: WeightSettings | None = Field(None, description="The field that says how much a record counts.")
    event_time: EventTimeSettings | None = Field(
        None, description="The field that says when it happened; Kafka's timestamp without it."
    )
    dead_letters: DeadLetterSettings = Field(
        DeadLetterSettings(), description="Where records go that cannot be learnt."
    )

    @model_validator(mode="after")
    def _sources_agree(self) -> Self:
        read: dict[str, schema.Field] = {}
        for field in to_schema(self).fields:
            first = read.setdefault(field.source, field)
            if (first.dtype, first.shape, first.missing) != (field.dtype, field.shape, field.missing):
                raise ValueError(
                    f"{first.name!r} and {field.name!r} read the record's field {field.source!r} differently; give "
                    "both the same dtype, shape and missing"
                )
        return self

    @model_validator(mode="after")
    def _raw_is_fixed(self) -> Self:
        for field in to_schema(self).fields if self.format == "raw" else ():
            if field.dtype == "string":
                raise ValueError(f"{field.name!r} is a string, which raw records cannot hold; write format: json")
            if field.missing is not None:
                raise ValueError(f"{field.name!r} has a missing value, yet raw records lack nothing; leave it out")
        return self


def to_schema(records: RecordsSettings) -> Schema:
    """The schema that the settings describe."""
    weight, event_time = records.weight, records.event_time
    return Schema(
        features=tuple(field.to_field(name) for name, field in records.features.items()),
        labels=_label_fields(records.label),
        weight=None if weight is None else weight.to_field(),
        event_time=None if event_time is None else event_time.to_field(),
    )


def _label_fields(label: OneLabelSettings | dict[str, FieldSettings] | None) -> tuple[schema.Field, ...]:
    if label is None:
        return ()
    if isinstance(label, OneLabelSettings):
        one = FieldSettings(dtype=label.dtype, shape=label.shape, missing=label.missing)
        return (one.to_field(label.field),)
    return tuple(field.to_field(name) for name, field in label.items())


def _fits(value: Scalar, dtype: DType) -> bool:
    """Whether a value can stand in a column of a dtype."""
    if dtype in {"string", "bool"}:
        return isinstance(value, str if dtype == "string" else bool)
    if isinstance(value, bool | str):
        return False
    if dtype.startswith("float"):
        return math.isfinite(value) and abs(value) <= float(np.finfo(dtype).max)
    limits = np.iinfo(dtype)
    return isinstance(value, int) and int(limits.min) <= value <= int(limits.max)
