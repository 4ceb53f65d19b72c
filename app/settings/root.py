"""The settings as a whole."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from millrace.app.settings.sections.api import ApiSettings
from millrace.app.settings.sections.archive import ArchiveSettings
from millrace.app.settings.sections.checkpoints import CheckpointSettings
from millrace.app.settings.sections.export import ExportSettings
from millrace.app.settings.sections.kafka import KafkaSettings, derived_group
from millrace.app.settings.sections.labels import LabelsSettings, derived_key
from millrace.app.settings.sections.mlflow import MlflowSettings
from millrace.app.settings.sections.model import ModelSettings
from millrace.app.settings.sections.opentelemetry import OpenTelemetrySettings
from millrace.app.settings.sections.process import LimitSettings, LogSettings, MemorySettings, StopSettings
from millrace.app.settings.sections.records import RecordsSettings, records_of, to_schema
from millrace.app.settings.sections.registry import derived_cache
from millrace.app.settings.sections.scale import ScaleSettings
from millrace.app.settings.sections.serve import ServeSettings
from millrace.app.settings.sections.training import TrainingSettings
from millrace.consumers.errors import ConfigError
from millrace.consumers.section import Section, SettingError
from millrace.pipelines.schema import Schema
from millrace.pipelines.shaping import (
    OTHER_COLUMNS,
    SHAPINGS,
    BalanceSettings,
    GoldenSettings,
    ReservoirSettings,
    ShapingSection,
    ThinningSettings,
    WindowSettings,
)
from millrace.pipelines.shaping.appearing import appearing_classes
from millrace.pipelines.shaping.labels.rules import Match
from millrace.pipelines.shaping.shaper import Shaper
from millrace.pipelines.shaping.unlabelled import unlabelled
from millrace.training.model.export.writers import WRITERS

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(
            f"{text[:120]!r} is not a name; write at most 100 of a-z, 0-9, dot, dash and underscore, a letter or a "
            "digit first"
        )
    return text


class Settings(Section):
    """Everything that a config file says. Made by `load`; alone it reads neither file nor environment.

    A section stands in `sections/`, or beside the code that it is for, as those of shaping, formats and gates.
    """

    name: Annotated[str, AfterValidator(_name)] = Field(
        description="The name of this model. The group id, the checkpoint folder and the metric label derive from it.",
        examples=["clicks"],
        json_schema_extra={"pattern": f"^{_NAME.pattern}$"},
    )
    kafka: KafkaSettings = Field(
        description="Where the records come from. If Kafka has a name for a setting, the setting bears it."
    )
    records: RecordsSettings = Field(description="What a record holds.")
    model: ModelSettings = Field(description="What learns.")
    training: TrainingSettings = Field(TrainingSettings(), description="How it learns.")
    golden: GoldenSettings = Field(
        GoldenSettings(),
        description="Records that are never learnt, and are scored with the weights of each checkpoint.",
    )
    labels: LabelsSettings = Field(
        LabelsSettings(), description="Labels that come later than their records, on topics of their own."
    )
    balance: BalanceSettings = Field(BalanceSettings(), description="How much each class counts in the learning.")
    windows: WindowSettings = Field(
        WindowSettings(), description="Sequences of the last records of a key, instead of single records."
    )
    thinning: ThinningSettings = Field(ThinningSettings(), description="Learning only a share of the records.")
    reservoir: ReservoirSettings = Field(
        ReservoirSettings(),
        description="A sample of the rows that were learnt; some of them are learnt again beside each batch.",
    )
    scale: ScaleSettings = Field(ScaleSettings(), description="A group of processes that learn the model together.")
    memory: MemorySettings = Field(MemorySettings(), description="The memory between Kafka and the model.")
    checkpoints: CheckpointSettings = Field(description="The checkpoints, from which a restart resumes.")
    export: ExportSettings = Field(ExportSettings(), description="Versions of the model that other programs serve.")
    archive: ArchiveSettings = Field(
        ArchiveSettings(), description="The topics' records, kept beyond Kafka's retention."
    )
    api: ApiSettings = Field(ApiSettings(), description="The HTTP side of the service.")
    serve: ServeSettings = Field(
        ServeSettings(), description="The server that answers requests with exports of the model: `millrace serve`."
    )
    stop: StopSettings = Field(StopSettings(), description="How the service ends.")
    limits: LimitSettings = Field(
        LimitSettings(),
        description="How long the trainer may take for one thing before it counts as hung and /livez fails.",
    )
    logs: LogSettings = Field(LogSettings(), description="What the service logs on stderr.")
    opentelemetry: OpenTelemetrySettings = Field(
        OpenTelemetrySettings(), description="Metrics and traces that are sent by OTLP over HTTP."
    )
    mlflow: MlflowSettings = Field(
        MlflowSettings(), description="An MLflow server that is told how the model learns, and gets its versions."
    )

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, values: Any) -> Any:
        return derived_cache(derived_group(derived_key(values))) if isinstance(values, dict) else values

    def shapings(self) -> Iterator[tuple[str, ShapingSection, Schema]]:
        """Yield the kinds of shaping in the sequence in which rows pass through them, each with their schema before.

        The first of the three is the name of its section.
        """
        schema = to_schema(self.records)
        for name in SHAPINGS:
            section: ShapingSection = getattr(self, name)
            yield name, section, schema
            schema = section.row_schema(schema)

    @property
    def block_schema(self) -> Schema:
        """The schema of the rows of which blocks are made: that of the records, unless shaping changes it."""
        *_, (_, last, schema) = self.shapings()
        return last.row_schema(schema)

    @property
    def row_schema(self) -> Schema:
        """The schema of the rows that are learnt: classes that appear are numbers."""
        return self.block_schema.as_learnt

    def shapers(self) -> tuple[Shaper, ...]:
        """Return what shapes the rows before the blocks, in its sequence, and remembers nothing yet."""
        made = [section.shaper(schema) for _, section, schema in self.shapings()]
        last = (unlabelled(self.block_schema), appearing_classes(self.block_schema))
        return tuple(shaper for shaper in (*made, *last) if shaper is not None)

    @model_validator(mode="after")
    def _shapings_fit(self) -> Self:
        for name, section, schema in self.shapings():
            try:
                section.shaper(schema)
            except ConfigError as error:
                raise SettingError(name, str(error).removeprefix(name).lstrip(".: ")) from error
        return self

    @model_validator(mode="after")
    def _golden_rows_are_records(self) -> Self:
        others = [name for name, one, _ in self.shapings() if name in OTHER_COLUMNS and one.used]
        problems = {
            "this is archive.path, of which nothing would be learnt; copy some shards": self.golden.path
            == self.archive.path,
            "with labels that come later its records would have none": self.labels.used,
            f"with {' and '.join(others)} a row is made of several records, and each of these would be one": others,
            "with records.label.classes the stream says what a class is called": self._numbers_classes,
            "with training.rows: together a batch is whole, and the last one would not be": self.training.rows
            == "together",
        }
        for text, applies in problems.items():
            if applies and self.golden.used:
                raise SettingError("golden", f"path: {text}")
        return self

    @model_validator(mode="after")
    def _formats_take_the_features(self) -> Self:
        writers = [WRITERS[name] for name in self.export.writers if name in WRITERS]
        for field in self.row_schema.features:
            for writer in writers:
                if (why := writer.misfit(field)) is not None:
                    raise SettingError("export", f"formats: {why}")
        return self

    @model_validator(mode="after")
    def _logs_elsewhere(self) -> Self:
        topic, others = self.serve.log.topic, (self.records.dead_letters.topic, self.export.announce)
        if topic is not None and topic in (*self.kafka.topics, *self.labels.topics, *others):
            raise SettingError("serve", f"log: topic is {topic}, which holds other records; name a topic of its own")
        return self

    @model_validator(mode="after")
    def _announces_elsewhere(self) -> Self:
        topic = self.export.announce
        if topic is not None and topic in (*self.kafka.topics, self.records.dead_letters.topic):
            raise SettingError("export", f"announce is {topic}, which holds other records; name a topic of its own")
        return self

    @property
    def _numbers_classes(self) -> bool:
        return any(label.appearing is not None for label in self.block_schema.labels)

    @model_validator(mode="after")
    def _topics_are_read(self) -> Self:
        if strange := sorted(self.records.by_topic.keys() - {*self.kafka.topics}):
            raise SettingError("records", f"by_topic: {strange[0]} is not in kafka.topics; name it there too")
        return self

    @property
    def framed_topics(self) -> frozenset[str]:
        """The topics whose records begin with the number of a schema in a registry."""
        return frozenset(topic for topic in self.kafka.topics if records_of(self.records, topic).registry is not None)

    @model_validator(mode="after")
    def _labels_come_from_elsewhere(self) -> Self:
        if both := sorted({*self.kafka.topics} & {*self.labels.topics}):
            raise SettingError("labels", f"topics: {both[0]} is in kafka.topics too; name a topic of its own")
        return self

    @model_validator(mode="after")
    def _arrivals_are_rows(self) -> Self:
        if self.labels.used and self.labels.score_on_arrival and self.windows.used:
            raise SettingError(
                "labels",
                "score_on_arrival: with windows a row is made of several records, which are remembered when they are "
                "learnt, and not when they arrive; leave it out",
            )
        return self

    @model_validator(mode="after")
    def _other_outputs_are_learnt(self) -> Self:
        labels = self.block_schema.labels
        if len(labels) == 1 and labels[0].masked:
            joined = labels[0].name in self.labels.label and self.labels.used
            section, setting, instead = (
                ("labels", "absent", "absent: drop skips")
                if joined
                else ("records", "missing", "missing: null sets aside, and records.where leaves out,")
            )
            raise SettingError(
                section,
                f"label: {setting}: mask is for one of several outputs, and this is the only one: a record without it "
                f"would not be learnt at all; {instead} such a record",
            )
        if self.training.rows == "together" and any(label.masked for label in labels):
            raise SettingError(
                "training",
                "rows: together compares the rows of a batch, also with those whose label is masked; leave mask out",
            )
        names = [field.name for field in self.block_schema.targets]
        if twice := [name for name in names if names.count(name) > 1]:
            raise SettingError("records", f"label: {twice[0]!r} is the name of a mask; give the label another name")
        return self

    @model_validator(mode="after")
    def _classes_may_appear(self) -> Self:
        # A record whose class has no number leaves its block, which is then filled up.
        if self._numbers_classes and self.training.partial_batches == "wait":
            raise SettingError("training", "partial_batches: wait does not go with records.label.classes; write pad")
        return self

    @model_validator(mode="after")
    def _remembers_no_rows_together(self) -> Self:
        if self.training.rows == "together" and self.reservoir.size is not None:
            raise SettingError(
                "reservoir",
                "training.rows: together compares the rows of a batch, and a reservoir adds absent ones "
                "until it is full; leave it out",
            )
        return self

    @model_validator(mode="after")
    def _memory_is_of_keys(self) -> Self:
        if self.serve.memory.follows and not (self.windows.used and self.windows.by):
            raise SettingError(
                "serve", "memory: it is of the keys of windows; write windows.length and windows.by, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _fits_a_group(self) -> Self:
        workers, training = self.scale.workers, self.training
        if workers == 1:
            return self
        rows = training.numbers.batch_size
        problems = {
            f"training.batch_size is {rows}, which {workers} workers cannot share evenly; write a "
            f"multiple of {workers}": rows % workers,
            "training.deterministic works with one worker only": training.deterministic,
            f"training.replicas is {training.replicas}; write auto": training.replicas not in {"auto", 1},
            "training.rows: together works with one worker only": training.rows == "together",
            "training.partial_batches: wait works with one worker only": training.partial_batches == "wait",
            "training.detectors work with one worker only": bool(training.detectors),
            "training.memory works with one worker only; leave it out": training.numbers.memory is not None,
            "training.members work with one worker only; leave them out": training.members is not None,
            "records.label.classes works with one worker only": self._numbers_classes,
            "golden.path works with one worker only": self.golden.used,
            "labels.score_on_arrival works with one worker only": self.labels.used and self.labels.score_on_arrival,
            f"labels.match: {self.labels.match} works with one worker only": self.labels.used
            and self.labels.match is not Match.ALL,
            "labels.co_partitioned works with one topic of records only": self.labels.co_partitioned
            and len(self.kafka.topics) != 1,
        }
        for text, applies in problems.items():
            if applies:
                raise SettingError("scale", f"{workers} workers: {text}")
        return self
