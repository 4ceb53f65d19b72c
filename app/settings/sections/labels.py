"""`labels`: labels that come later, on topics of their own, and how their records are read."""

from typing import Annotated, Any, Self

from pydantic import Field, PlainValidator, WithJsonSchema, model_validator

from millrace.app.settings.record_fields import MASK, LabelSettings, Scalar, fits
from millrace.app.settings.record_formats import FORMAT_SECTIONS, FormatName, FormatSections
from millrace.app.settings.record_roles import EventTimeSettings
from millrace.app.settings.sections.kafka import Topic
from millrace.app.settings.sections.records import RecordsSettings
from millrace.app.settings.sections.registry import LabelRegistrySettings
from millrace.consumers.section import SettingError
from millrace.pipelines import schema
from millrace.pipelines.shaping.labels.options import LabelOptions
from millrace.pipelines.shaping.labels.rules import Take
from millrace.pipelines.where.conditions import Place, WhereCondition

DROP = "drop"
KEY = "key"
"""The name of the key among the fields of a label's record."""


def _value(value: object) -> object:
    if not isinstance(value, Scalar):
        raise ValueError(f"{value!r} is no single value; write a number, a text, or {DROP}")  # noqa: TRY004 - pydantic collects it
    return value


class JoinedLabelSettings(LabelSettings):
    """One label of those that come later."""

    absent: Annotated[Scalar, PlainValidator(_value), WithJsonSchema({"type": ["string", "number", "boolean"]})] = (
        Field(
            DROP,
            description="The label of a record for which none came in time. drop: such a record is not learnt; it is "
            "counted as skipped, by labels. mask: it is learnt for the other outputs, and the weight of this one is 0.",
            examples=[0.0],
        )
    )

    @model_validator(mode="after")
    def _comes_alone(self) -> Self:
        for name in ("ahead", "classes"):
            if getattr(self, name) is not None:
                raise SettingError(name, "this is for a label that its record holds; leave it out")
        if self.missing == MASK:
            raise SettingError("missing", f"this is about the record of a label; write absent: {MASK}")
        if self.absent not in {DROP, MASK} and not fits(self.absent, self.dtype):
            raise SettingError("absent", f"{self.absent!r} is no {self.dtype}; write one, {DROP}, or {MASK}")
        return self

    @property
    def masked(self) -> bool:
        """Whether a record for which none came is learnt for the other outputs."""
        return self.absent == MASK


class LabelsSettings(FormatSections, LabelOptions):
    """Labels that come later, on topics of their own."""

    topics: tuple[Topic, ...] = Field(
        (),
        description="The topics of the labels, in the same Kafka. Empty: each record holds its own label.",
        examples=[["clicks"]],
    )
    format: FormatName = Field("json", description="The format of the labels' records, as in records.")
    registry: LabelRegistrySettings | None = Field(
        None, description="The schema registry of the labels' records, as in records.", examples=[None]
    )
    label: dict[str, JoinedLabelSettings] = Field(
        {},
        description="The labels by the model's names for them, as in records.label; `absent` is the value of a record "
        "for which none came.",
        examples=[{"clicked": {"dtype": "float32", "absent": 0.0}}],
    )
    event_time: EventTimeSettings | None = Field(
        None, description="The field that holds the time of a label. Null: Kafka's timestamp is its time."
    )
    where: dict[Place, WhereCondition] = Field(
        {}, description="Which records of the topics are labels, as in records.where.", examples=[{"type": "click"}]
    )

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if not self.used:
            return self
        if self.join.record is None:
            raise SettingError("join", "record is missing; name the field of a record that a label names too")
        if not self.label:
            raise SettingError("label", "it names no label; write one, as {clicked: {dtype: float32, absent: 0.0}}")
        for name, label in self.label.items():
            if label.dtype in {"string", "bool"} and self.take not in {Take.FIRST, Take.LAST}:
                raise SettingError(
                    "take", f"{self.take.value} gives numbers, and {name!r} is {label.dtype}; write first or last"
                )
        self.records()
        return self

    def without_effect(self) -> str | None:
        """Return a warning of settings of labels that no topic holds."""
        if self.used or not (given := sorted(self.model_fields_set - {"topics"})):
            return None
        return f"labels.{given[0]} has no effect without labels.topics; name the topics of the labels, or leave it out"

    def records(self) -> RecordsSettings:
        """Return what a label's record holds: its key is a feature, its labels are labels."""
        key = {"field": self.join.label or self.join.record, "dtype": self.join.dtype}
        plain = {name: LabelSettings(**_set(label)) for name, label in self.label.items()}
        own = {name: getattr(self, name) for name in ("format", "registry", *FORMAT_SECTIONS, "event_time", "where")}
        return RecordsSettings.model_validate({"features": {KEY: key}, "label": plain, **own})

    def fields(self) -> tuple[schema.Field, ...]:
        """Return the labels that records get."""
        return tuple(label.to_field(name) for name, label in self.label.items())

    def absent(self) -> dict[str, Any]:
        """Return the value of each label of a record for which none came; None where it is not learnt then."""
        stand_ins = {field.name: field.stand_in for field in self.fields() if field.masked}
        return {
            name: None if label.absent == DROP else stand_ins.get(name, label.absent)
            for name, label in self.label.items()
        }


def _set(label: JoinedLabelSettings) -> dict[str, Any]:
    return {name: getattr(label, name) for name in label.model_fields_set if name != "absent"}


def derived_key(values: dict[str, Any]) -> dict[str, Any]:
    """Fill in the key of a record by which its labels are found."""
    labels, records = values.get("labels"), values.get("records")
    join = labels.get("join") if isinstance(labels, dict) and labels.get("topics") else None
    if not isinstance(join, dict) or not isinstance(records, dict) or not join.get("record"):
        return values
    key = {"field": join["record"], "dtype": join.get("dtype", "string")}
    return {**values, "records": {**records, "key": key}}
