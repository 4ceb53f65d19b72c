"""The settings of labels that come later, but for how their records are read, which the whole settings know."""

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from millrace.consumers.errors import ConfigError
from millrace.consumers.section import Section
from millrace.consumers.units import Duration, Size
from millrace.pipelines import schema
from millrace.pipelines.schema import Schema
from millrace.pipelines.shaping.labels.join import LabelShaper
from millrace.pipelines.shaping.labels.rules import JoinRules, Match, Take
from millrace.pipelines.shaping.shaper import ShapingSection


class JoinSettings(Section):
    """The key by which a record and its label find each other."""

    record: str | None = Field(
        None,
        min_length=1,
        description="The place of the key in a record: a name or a path as in features, $key, or $header.NAME.",
        examples=["impression_id"],
    )
    label: str | None = Field(
        None,
        min_length=1,
        description="The place of the key in a label's record. Null: the same as in a record.",
        examples=["impression_id"],
    )
    dtype: Literal["string", "int64"] = Field(
        "string", description="The key's type in both: a text, or a whole number."
    )


class LabelOptions(ShapingSection):
    """How a record finds the label that comes later."""

    other_columns = True

    topics: Annotated[tuple[str, ...], Field()] = Field(
        (),
        description="The topics of the labels, in the same Kafka. Empty: each record holds its own label.",
        examples=[["clicks"]],
    )
    join: JoinSettings = Field(JoinSettings(), description="What a record and its label have in common.")
    take: Take = Field(
        Take.FIRST,
        description="Which label a record gets of several: first and last by their time, max and sum by their values, "
        "count for how many there are.",
    )
    match: Match = Field(
        Match.ALL,
        description="Which records of its key a label belongs to. all: every one that it fits by its time. "
        "last_before: the last one before it, or of its own millisecond. first_after: the first one after it. The "
        "topics of records are then read twice, and the keys of all records of labels.within wait in memory.",
    )
    within: Duration = Field(
        1800.0,
        ge=0.001,
        le=366 * 86400,
        description="How long after its record's event time a label may come. Then the record is learnt.",
        examples=["30m"],
    )
    early: Duration = Field(
        60.0,
        ge=0,
        le=86400,
        description="How far the time of a label may lie before that of its record, and how far records and labels may "
        "be out of order.",
        examples=["1m"],
    )
    on_silence: Literal["hold", "absent"] = Field(
        "hold",
        description="What a long silence of the topics of labels means. hold: that something is broken, and the "
        "learning waits. absent: that there are no labels.",
    )

    score_on_arrival: float = Field(
        0.0,
        ge=0,
        le=1,
        description="The share of the records that is also predicted when it arrives, and scored when its label has "
        "come: how well the model does before it knows what came later. The topics of records are then read twice. 0: "
        "none.",
        examples=[0.01],
    )
    co_partitioned: bool = Field(
        default=False,
        description="Whether each label lies in the partition of its record's number, as if both topics have as many "
        "partitions and their producers the same key. Then a worker of a group reads the labels of its own partitions "
        "alone. Labels that lie elsewhere are missed; millrace validate looks for some.",
    )
    max_bytes: Size = Field(
        2**29,
        ge=2**20,
        description="The most memory for labels that wait for their records, some 45 bytes each. If more have to wait, "
        "the run ends and says so: a label that is dropped would be a wrong one.",
    )

    @property
    def used(self) -> bool:
        """Whether the settings ask for it."""
        return bool(self.topics)

    @property
    def due_after(self) -> float:
        """How long after its time a record is learnt: labels of that moment may be out of order. 0 without labels."""
        return self.within + self.early if self.used else 0.0

    @property
    def rules(self) -> JoinRules:
        """What the join goes by."""
        return JoinRules(
            topics=self.topics,
            key=(self.join.record or "", self.join.label or self.join.record or "", self.join.dtype),
            fields=self.fields(),
            absent=self.absent(),
            take=self.take,
            match=self.match,
            within_ms=round(self.within * 1000),
            early_ms=round(self.early * 1000),
            holds=self.on_silence == "hold",
            max_bytes=self.max_bytes,
        )

    def fields(self) -> tuple[schema.Field, ...]:
        """Return the labels that records get."""
        return ()

    def absent(self) -> dict[str, Any]:
        """Return the value of each label of a record for which none came; None where it is not learnt then."""
        return {}

    def row_schema(self, schema: Schema) -> Schema:
        """Return the schema of rows with their labels."""
        return replace(schema, labels=(*schema.labels, *self.fields())) if self.used else schema

    def shaper(self, schema: Schema) -> LabelShaper | None:
        """Return what gives rows their labels; ConfigError if the settings do not fit them."""
        if not self.used:
            return None
        if schema.key is None:
            raise ConfigError("labels.join.record: it is missing; name the field of a record that a label names too")
        names = {field.name for field in schema.labels}
        if twice := [field.name for field in self.fields() if field.name in names]:
            raise ConfigError(f"labels.label: records.label has {twice[0]!r} too; name one of them otherwise")
        return LabelShaper(self.rules)
