"""`records`: what a record holds. `to_schema` turns it into the schema that decoding and the dataset go by."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationError, model_validator

from millrace.app.settings.record_fields import FeatureSettings, LabelSettings, OneLabelSettings, Source
from millrace.app.settings.record_formats import FORMAT_SECTIONS, FormatName, FormatSections
from millrace.app.settings.record_roles import EventTimeSettings, KeySettings, SliceSettings, WeightSettings
from millrace.app.settings.sections.registry import RegistrySettings, to_registry
from millrace.consumers.errors import ConfigError
from millrace.consumers.section import Section, SettingError
from millrace.consumers.user_class import UserClass
from millrace.pipelines import schema
from millrace.pipelines.formats import Decoder, Format, every_format, format_of, make_decoder
from millrace.pipelines.formats.shared.paths import distinct_fields
from millrace.pipelines.formats.shared.protocol import TopicDecoder
from millrace.pipelines.formats.shared.sliced_decoder import SlicedDecoder
from millrace.pipelines.gates.flood import PauseAboveSettings
from millrace.pipelines.schema import DTYPES, RAGGED, Schema
from millrace.pipelines.stream.record_look import RecordLook, TopicLook
from millrace.pipelines.where.conditions import Place, WhereCondition
from millrace.pipelines.where.selection import check, selecting
from millrace.training.model.setup.model_code import model_sha256
from millrace.training.model.setup.model_file import load_class

_REGISTRY_S = 30.0
_RAW = "raw"
ONE_LABEL = "<one>"
LABELS_BY_NAME = "<by name>"


def _slices(value: Any) -> Any:
    """Read a list of names, or names with their dtypes, as the mappings that they are short for."""
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return {name: {} for name in value}
    if isinstance(value, dict):
        return {name: {"dtype": one} if isinstance(one, str) else one for name, one in value.items()}
    return value


class DeadLetterSettings(Section):
    """The destination of records that cannot be learnt."""

    topic: str | None = Field(
        None, min_length=1, description="Topic that gets every record that was set aside, as it came, with the reason."
    )
    pause_above: PauseAboveSettings | None = Field(
        None,
        description="The learning pauses if too many records cannot be decoded, before they are set aside. It goes on "
        "by itself when good records come again, or by `millrace resume`. Null: it never pauses for this.",
        examples=[{"share": "5 %", "over": "1m"}],
    )


def _label_form(value: Any) -> str:
    """Return which form a label has: `{field: is_fraud}` is one label, `{clicked: float32}` names several."""
    if isinstance(value, OneLabelSettings):
        return ONE_LABEL
    named = value.get("field") if isinstance(value, Mapping) else None
    return ONE_LABEL if isinstance(named, str) and named not in DTYPES else LABELS_BY_NAME


Labels = Annotated[
    Annotated[OneLabelSettings, Tag(ONE_LABEL)] | Annotated[dict[str, LabelSettings], Tag(LABELS_BY_NAME)],
    Discriminator(_label_form),
]


class TopicRecordsSettings(FormatSections):
    """What the records of one topic hold otherwise than those of the others."""

    format: FormatName | None = Field(None, description="The format of the topic's records. Null: as records.format.")
    registry: bool = Field(
        default=True,
        description="Whether the topic's records begin with the number of a schema in records.registry, if there is "
        "one. false: they are values alone.",
    )
    fields: dict[str, Source] = Field(
        {},
        description="The places of fields that lie elsewhere in the topic's records, by the model's names for them; "
        "weight, event_time and key stand for these.",
        examples=[{"price": "amount.value"}],
    )
    where: dict[Place, WhereCondition] | None = Field(
        None, description="Which of the topic's records are learnt from. Null: as records.where."
    )


class RecordsSettings(FormatSections):
    """What a record holds."""

    format: FormatName = Field(
        "json",
        description="json: a record is a JSON object. avro: it is a value of an Avro schema. protobuf: it is a "
        "message. csv: it is a row of columns. raw: it holds the fields' values one after another, "
        "little-endian, with nothing between them: features in their order, labels, weight, event time. "
        "example: it is a serialised tf.train.Example. text, bytes: it is one text, or bytes of any kind "
        "such as an image; one field reads it as $value. FILE.py:CLASS: a format of your own.",
    )
    registry: RegistrySettings | None = Field(
        None,
        description="The schema registry of records in Confluent's wire format: a zero byte, the schema's number, the "
        "value. Null: records are values alone.",
        examples=[{"url": ["http://registry:8081"]}],
    )
    features: dict[str, FeatureSettings] = Field(
        min_length=1,
        description="The names of the model's inputs, each with its dtype or a mapping: dtype, shape, missing, min, "
        "max, one_of, example, pad, length, ragged, image, field.",
        examples=[{"price": "float32"}],
    )
    label: Labels | None = Field(
        None,
        description="The values to predict: names with their dtypes or mappings as for features, without pad, length "
        "and ragged; or for a single label {field, dtype, and the same}. Several labels are named as the "
        "model's outputs are. Null: the model gets no label.",
        examples=[{"clicked": "float32"}],
    )
    weight: WeightSettings | None = Field(
        None, description="The field that holds the sample weight of a record. Null: every record has weight 1."
    )
    event_time: EventTimeSettings | None = Field(
        None, description="The field that holds the event time. Null: Kafka's timestamp is the event time."
    )
    key: KeySettings | None = Field(
        None,
        description="The field by which labels that come later are found; labels.join says it, so leave it out.",
        json_schema_extra={"default": "by labels.join"},
    )
    where: dict[Place, WhereCondition] = Field(
        {},
        description="Which records are learnt from, by what a field of the record holds; the others are filtered, and "
        "never decoded further. All conditions must match. A place is a name or a path as in features, $key, "
        "$header.NAME, or $schema: the name of the schema in the registry, or of the Protobuf message, in full or "
        "its last parts. {}: all records are learnt from.",
        examples=[{"type": ["impression", "view"], "amount": {"min": 1}, "$header.source": {"not": "test"}}],
    )
    slices: Annotated[
        dict[str, SliceSettings],
        BeforeValidator(_slices, json_schema_input_type=dict[str, SliceSettings | str] | list[str]),
    ] = Field(
        {},
        max_length=8,
        description="Fields by whose values the live score is shown, and which the model need not see: a list of "
        "names, or a mapping of names to string, int64, bool or {field, dtype}. A record that lacks one, or holds "
        "something else there, is learnt all the same. {}: none.",
        examples=[["country", "device"]],
    )
    by_topic: dict[str, TopicRecordsSettings] = Field(
        {},
        description="Topics of kafka.topics whose records hold the same for the model, and are otherwise written: in "
        "another format, or with the fields in other places.",
        examples=[{"purchases": {"format": "csv", "fields": {"price": "amount"}}}],
    )
    dead_letters: DeadLetterSettings = Field(
        DeadLetterSettings(), description="The destination of records that cannot be learnt."
    )

    @model_validator(mode="after")
    def _sources_agree(self) -> Self:
        read: dict[str, schema.Field] = {}
        for field in to_schema(self).fields:
            first = read.setdefault(field.source, field)
            if not first.reads_like(field):
                raise ValueError(
                    f"{first.name!r} and {field.name!r} read the record's field {field.source!r} differently; give "
                    "both the same dtype, shape, missing, min, max and one_of"
                )
        return self

    @model_validator(mode="after")
    def _slices_can_be_read(self) -> Self:
        try:
            slice_fields(self)
        except ValueError as error:
            raise SettingError("slices", str(error)) from error
        return self

    @model_validator(mode="after")
    def _topics_fit(self) -> Self:
        for topic in self.by_topic:
            try:
                records_of(self, topic)
            except ValidationError as error:
                found = error.errors()[0]
                place = ".".join(map(str, found["loc"]))
                text = str(found["msg"]).removeprefix("Value error, ")
                raise SettingError("by_topic", f"{topic}: {f'{place}: ' if place else ''}{text}") from None
            except ValueError as error:
                raise SettingError("by_topic", f"{topic}: {error}") from None
        return self

    @model_validator(mode="after")
    def _lengths_have_names_of_their_own(self) -> Self:
        kept = [name for field in to_schema(self).features for name in (field.name, field.length or "")]
        if taken := [name for name in kept if name.endswith(RAGGED)]:
            raise ValueError(f"no feature may be called {taken[0]!r}: what ends in {RAGGED} goes with ragged features")
        names = [field.name for field in to_schema(self).inputs]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two features are called {twice[0]!r}; give the length another name")
        return self

    @model_validator(mode="after")
    def _fits_its_format(self) -> Self:
        # A class of the user's is not imported here: it is checked when its decoder is made.
        form = format_of(self.format) if isinstance(self.format, str) else None
        fields = replace(to_schema(self), slices=slice_fields(self))
        try:
            distinct_fields(fields)
        except ConfigError as error:
            raise ValueError(str(error).partition(": ")[2]) from error
        others = [other for other in every_format() if other is not form and other.section is not None]
        for section, name in ((str(other.section), other.name) for other in others):
            if getattr(self, section) != type(self).model_fields[section].default:
                text = f"this is about format: {name}, and the format is {self.format}; leave it out"
                raise SettingError(section, text)
        if self.registry is not None and (form is None or form.registry_kind is None):
            *most, last = [other.name for other in every_format() if other.registry_kind is not None]
            text = f"this is about format: {', '.join(most)} or {last}, and the format is {self.format}; leave it out"
            raise SettingError("registry", text)
        try:
            check(self.where, form, fields, own_settings(self), registered=self.registry is not None)
        except ConfigError as error:
            raise SettingError("where", str(error).partition(": ")[2]) from error
        if form is None:
            return self
        if (complaint := form.whole_complaint(fields.fields)) is not None:
            raise ValueError(complaint)
        try:
            form.fits(fields, own_settings(self), registered=self.registry is not None)
        except ConfigError as error:
            text = str(error).partition(": ")[2]
            raise ValueError(text) if form.section is None else SettingError(form.section, text) from error
        return self


def records_of(records: RecordsSettings, topic: str) -> RecordsSettings:
    """Return what the records of a topic hold; ValueError, or pydantic's error, where that does not fit together."""
    given = records.by_topic.get(topic)
    if given is None:
        return records.model_copy(update={"by_topic": {}}) if records.by_topic else records
    places = dict(given.fields)
    roles = {role: getattr(records, role) for role in ("weight", "event_time", "key")}
    changed: dict[str, Any] = {
        "features": _elsewhere(records.features, places),
        "label": records.label,
        **{
            role: of.model_copy(update={"field": places.pop(role)}) if of is not None and role in places else of
            for role, of in roles.items()
        },
        "where": records.where if given.where is None else given.where,
        "format": given.format or records.format,
        "registry": records.registry if given.registry else None,
    }
    if isinstance(records.label, OneLabelSettings):
        name = records.label.field
        changed["label"] = records.label.model_copy(update={"field": places.pop(name, name)})
    elif records.label is not None:
        changed["label"] = _elsewhere(records.label, places)
    own_slices = {name for name in records.slices if name not in {*records.features, *_label_names(records)}}
    changed["slices"] = {
        name: one.model_copy(update={"field": places[name]}) if name in own_slices & places.keys() else one
        for name, one in records.slices.items()
    }
    if unknown := sorted(places.keys() - records.features.keys() - _label_names(records) - own_slices):
        raise ValueError(f"fields: nothing of the model is called {unknown[0]!r}")
    own = {name: getattr(given, name) for name in FORMAT_SECTIONS}
    if given.format is None:
        own = {name: one if name in given.model_fields_set else getattr(records, name) for name, one in own.items()}
    return RecordsSettings(**changed, **own)


def _label_names(records: RecordsSettings) -> set[str]:
    """Return the names of the labels."""
    return set() if records.label is None or isinstance(records.label, OneLabelSettings) else {*records.label}


def _elsewhere(fields: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
    return {
        name: field.model_copy(update={"field": places[name]}) if name in places else field
        for name, field in fields.items()
    }


def to_schema(records: RecordsSettings) -> Schema:
    """Return the schema that the settings describe."""
    weight, event_time = records.weight, records.event_time
    return Schema(
        features=tuple(field.to_field(name) for name, field in records.features.items()),
        labels=_label_fields(records.label),
        weight=None if weight is None else weight.to_field(),
        event_time=None if event_time is None else event_time.to_field(),
        key=None if records.key is None else records.key.to_field(),
    )


def slice_fields(records: RecordsSettings) -> tuple[schema.Field, ...]:
    """Return the fields of the slices; ValueError where one has no few values."""
    whole = to_schema(records)
    others, may_lack = (*whole.features, *whole.labels), records.format != _RAW
    return tuple(one.to_field(name, others, may_lack=may_lack) for name, one in records.slices.items())


def told_answers(records: RecordsSettings) -> Iterator[str]:
    """Yield a sentence for each label that a feature tells; only `preprocess` could drop that feature."""
    found = to_schema(records)
    features = {field.source: field.name for field in found.features}
    # A later value of a feature may well be predicted.
    for label in (label for label in found.labels if not label.ahead and label.source in features):
        yield (
            f"records.label: the feature {features[label.source]!r} reads the same field {label.source!r} of a record, "
            "which tells the model the answer, unless preprocess drops it: leave that feature out. To predict a later "
            "value of it, write windows.length and ahead; for an autoencoder, or a label that preprocess makes of "
            "features, leave the label out"
        )


def to_format(records: RecordsSettings) -> Format:
    """Return the format of the records: one of ours, or the user's, which is imported. Raise ConfigError."""
    if isinstance(records.format, str):
        return format_of(records.format)
    return _imported(records.format, model_sha256(records.format.file) if records.format.file.is_file() else "")


@lru_cache(maxsize=8)
def _imported(place: UserClass, sha256: str) -> Format:  # noqa: ARG001 - other code is another format
    """Return a format of the user's, the same to all that ask in this process."""
    found: Format = load_class(place.file, place.name, "records.format", Format)
    return found


def own_settings(records: RecordsSettings) -> Section | None:
    """Return the section of the records' format; None where the format has none."""
    section = format_of(records.format).section if isinstance(records.format, str) else None
    own: Section | None = None if section is None else getattr(records, section)
    return own


def to_decoder(records: RecordsSettings, wait_s: float = _REGISTRY_S) -> Decoder:
    """Return the decoder of such records.

    `wait_s`: how long it waits for a schema of the registry before it raises NotYetError.
    """
    schemas = None if records.registry is None else to_registry(records.registry, wait_s)

    def decoder(of: RecordsSettings) -> Decoder:
        form, own, known = to_format(of), own_settings(of), None if of.registry is None else schemas
        plain, whole = to_schema(of), replace(to_schema(of), slices=slice_fields(of))
        found = make_decoder(form, whole, own, known)
        # A raw record lacks nothing, and is not read in part.
        if whole.slices and of.format != _RAW:
            found = SlicedDecoder(found, make_decoder(form, plain, form.narrowed(own, whole, plain), known))
        return selecting(found, of.where, form, own, known)

    if not records.by_topic:
        return decoder(records)
    # The fields of a topic lie in places of their own, and the model's names for them are the same.
    usual = decoder(records.model_copy(update={"by_topic": {}}))
    return TopicDecoder(usual, {topic: decoder(records_of(records, topic)) for topic in records.by_topic})


def to_look(records: RecordsSettings) -> RecordLook:
    """Return what finds the fields of such records that nobody reads."""

    @lru_cache
    def look(topic: str) -> TopicLook | None:
        of = records_of(records, topic)
        form = to_format(of)
        if not form.names_fields:
            return None
        return TopicLook(partial(form.types, framed=of.registry is not None), sources_read(of), form.looks)

    return RecordLook(look)


def sources_read(records: RecordsSettings) -> frozenset[str]:
    """Return the sources of all fields that something is done with."""
    fields = (*to_schema(records).fields, *slice_fields(records))
    return frozenset({*(field.source.removesuffix("[]") for field in fields), *records.where})


def to_feature_decoder(records: RecordsSettings, schemas: schema.Schemas | None, *, timed: bool = False) -> Decoder:
    """Return the decoder of the features alone, and if `timed` of the event time, where the label is not known yet.

    Where a label, a weight and an event time lie in a record they are passed over, whatever they hold. `schemas` are
    those of the registry.
    """
    form, whole = to_format(records), to_schema(records)
    features = replace(whole, labels=(), weight=None, event_time=whole.event_time if timed else None, key=None)
    return make_decoder(form, features, form.narrowed(own_settings(records), whole, features), schemas)


def _label_fields(label: OneLabelSettings | dict[str, LabelSettings] | None) -> tuple[schema.Field, ...]:
    if label is None:
        return ()
    if isinstance(label, OneLabelSettings):
        return (label.to_field(),)
    return tuple(field.to_field(name) for name, field in label.items())
