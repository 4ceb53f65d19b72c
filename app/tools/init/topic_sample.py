"""Values from several places of a topic, how fast more come, and the format in which they seem to be written.

Pure, except for `sampled_records`, which connects as a start does, commits nothing and writes nothing.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from millrace.app.service.kept_sample import read_between
from millrace.app.service.pace import records_per_s
from millrace.app.settings.connection import kafka_options
from millrace.app.settings.sections.kafka import KafkaSettings
from millrace.app.settings.sections.registry import RegistrySettings, to_registry
from millrace.consumers.errors import ConfigError, NotYetError
from millrace.consumers.kafka.positions import Earliest, Latest
from millrace.consumers.kafka.source import KafkaSource
from millrace.consumers.records import Chunk, Headers, Partition
from millrace.pipelines.formats import every_format
from millrace.pipelines.formats.draft import ENOUGH, NO_HINTS, DraftSample, Look, Row, SchemaHints, text_value
from millrace.pipelines.formats.shared.paths import Envelope, PathStep
from millrace.pipelines.formats.shared.paths import Path as SourcePath
from millrace.pipelines.formats.shared.pieces import is_utf8
from millrace.pipelines.schema import RegisteredSchema

_MOST, _MOST_BYTES = 4000, 64 * 2**20
"""Records of all partitions, as many of each: enough to meet a class of which one comes in a thousand."""
PLACES = 10
"""In so many places of each partition records are read, as what the first ones show may be over soon."""
_CONNECT_S = 10.0
_STOP_S = 5.0
_HEADER = 5
_MOST_SCHEMAS, _GREATEST = 50, 1 << 24
"""Of a topic's first records, and the greatest number that a registry has given out so far, by far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRecords:
    """Some records of each partition that have a value."""

    values: Sequence[bytes]
    beside: Sequence[Row]
    """The key and the headers of each, by source."""
    held: int
    """How many offsets the topic has."""
    partitions: int
    tombstones: int
    """Records without a value, among those that were read."""
    records_per_s: float | None
    """None where it is not known."""
    times: Sequence[int] = ()
    """Kafka's timestamp of each, milliseconds since 1970."""
    chunks: Sequence[Chunk] = ()
    """The same records, and tombstones."""


def sampled_records(kafka: KafkaSettings, *, places: int = PLACES) -> SampledRecords:
    """Return some thousand records of all partitions, fewer if they are large, without tombstones.

    They are read in so many places of each partition, of which the first is its beginning, the last its end.
    """
    source = KafkaSource(kafka_options(kafka))
    source.start(_CONNECT_S)
    try:
        first, end = source.resolve_start(Earliest()), source.resolve_start(Latest())
        share = max(1, _MOST // max(1, len(first)))
        chunks, size = list[Chunk](), 0
        for place, begin in enumerate(begins := _stretches(first, end, share, min(places, share)), 1):
            until = {partition: min(offset + stop, end[partition]) for partition, (offset, stop) in begin.items()}
            for chunk in read_between(source, place, {one: offset for one, (offset, _) in begin.items()}, until):
                chunks.append(chunk)
                size += chunk.nbytes
                if size > _MOST_BYTES * place / len(begins):
                    break
        oldest_ms = min((int(min(chunk.timestamps)) for chunk in chunks if len(chunk)), default=0)
        rate = records_per_s(source.resolve_start, oldest_ms)
    finally:
        source.stop(_STOP_S)
    chunks.sort(key=lambda chunk: chunk.partition)  # and by offset, as they were read
    found = [
        (value, beside_of(key, headers), at)
        for chunk in chunks
        for value, key, headers, at in zip(
            chunk.values, chunk.keys, chunk.headers, chunk.timestamps.tolist(), strict=True
        )
        if value
    ]
    if not found:
        raise ConfigError(
            f"{', '.join(kafka.topics)} holds no record yet; write some hundred, so that there is something to look at"
        )
    return SampledRecords(
        values=[value for value, _, _ in found],
        beside=[beside for _, beside, _ in found],
        times=[at for _, _, at in found],
        held=sum(end[partition] - first[partition] for partition in first),
        partitions=len(first),
        tombstones=sum(map(len, chunks)) - len(found),
        records_per_s=rate,
        chunks=chunks,
    )


def _stretches(
    first: Mapping[Partition, int], end: Mapping[Partition, int], share: int, places: int
) -> list[dict[Partition, tuple[int, int]]]:
    """Return by place where to begin in each partition, and how many offsets to read: `share` in all of them.

    A partition of fewer is read whole, in the first place.
    """
    found: list[dict[Partition, tuple[int, int]]] = [{} for _ in range(places)]
    for partition, offset in first.items():
        held, each = end[partition] - offset, share // places
        if 0 < held <= share:
            found[0][partition] = (offset, held)
        elif held:
            for place in range(places):
                found[place][partition] = (offset + (held - each) * place // max(1, places - 1), each)
    return [place for place in found if place]


def beside_of(key: bytes | None, headers: Headers) -> Row:
    """Return a key and headers by source; texts of numbers and truth values as a decoder reads them."""
    found = {str(SourcePath((), Envelope.KEY)): key}
    found |= {str(SourcePath((PathStep(name),), Envelope.HEADER)): value for name, value in headers if name}
    return {source: text_value(value.decode()) if is_utf8(value) else value for source, value in found.items() if value}


def look_at(
    values: Sequence[bytes], columns: Sequence[str] = (), beside: Sequence[Row] = (), hints: SchemaHints = NO_HINTS
) -> Look:
    """Guess the format. ConfigError where it cannot be guessed. `beside` has what is beside each value, by source."""
    beside = beside or [{}] * len(values)
    sample = DraftSample(values=values, beside=beside, columns=tuple(columns), hints=hints)
    if numbers := schema_numbers(values):
        return _by_registry(sample, numbers)
    if hints.file is not None:
        return _by_file(sample, hints.file)
    # Last the formats of texts, as which the records of others may be read by chance.
    forms = sorted(every_format(), key=lambda form: form.is_text)
    return next((look for form in forms if (look := form.draft(sample)) is not None), None) or _unknown(values)


def schema_numbers(values: Sequence[bytes]) -> list[int]:
    """Return the numbers of the schemas of records in Confluent's wire format, the most frequent first; none of others.

    Such a record is a zero byte, the number of a schema, and a value.
    """
    numbers = Counter(
        int.from_bytes(value[1:_HEADER]) for value in values if value[:1] == b"\0" and len(value) > _HEADER
    )
    few = len(numbers) <= _MOST_SCHEMAS and all(0 < number < _GREATEST for number in numbers)
    return [number for number, _ in numbers.most_common()] if few and numbers.total() >= ENOUGH * len(values) else []


def _by_registry(sample: DraftSample, numbers: Sequence[int]) -> Look:
    """Return the look at records of these schemas. Raise ConfigError where the registry is not named, or lacks them."""
    hints, found = sample.hints, dict[int, RegisteredSchema]()
    shown = ", ".join(map(str, numbers[:3])) + ", …" * (len(numbers) > 3)
    if hints.schemas is None:
        raise ConfigError(
            f"the records begin as Confluent's wire format does, with a zero byte and a schema's number ({shown}); "
            "name the schema registry that knows it: --registry http://HOST:8081"
        )
    try:
        for number in numbers:
            if (registered := hints.schemas.get(number)) is not None:
                found[number] = registered
    except NotYetError as error:
        raise NotYetError(f"--registry: {error}") from None
    if not found:
        raise ConfigError(
            f"--registry: {', '.join(hints.registry)} has no schema {shown}, with which the records begin; name the "
            "registry that their producer writes to"
        )
    kind = next(iter(found.values())).kind
    form = next((form for form in every_format() if form.registry_kind == kind), None)
    if form is None:
        raise ConfigError(f"the registry's schema {shown} is of {kind}, which is not read; AVRO, PROTOBUF and JSON are")
    registered_so = {number: one for number, one in found.items() if one.kind == kind}
    look = form.draft(replace(sample, registered=registered_so))
    if look is None:
        raise ConfigError(f"most records are no {kind.title()} values of the schemas that they begin with ({shown})")
    return replace(look, section={"registry": {"url": list(hints.registry)}, **look.section})


def _by_file(sample: DraftSample, file: Path) -> Look:
    """Return the look at records that the schema of a file describes. Raise ConfigError where they are none of it."""
    try:
        text = file.read_bytes()
    except OSError as error:
        why = (error.strerror or "no reason given").lower()
        raise ConfigError(f"--schema: {file} cannot be read: {why}") from None
    form = next(form for form in every_format() if form.is_described_by(file, text))
    look = form.draft(replace(sample, described=text))
    if look is None:
        framed = (
            schema_numbers(sample.values)
            and "; they begin with a schema's number, so name the registry with --registry"
        )
        raise ConfigError(
            f"--schema: most of the records are no values of {file}{framed or '; name the schema that wrote them'}"
        )
    return look


def _unknown(values: Sequence[bytes]) -> Look:
    known = "the records are none of JSON, CSV, text and tf.train.Example"
    schema = "if Avro or Protobuf, name the schema that wrote them: --schema record.avsc, or record.proto"
    sizes = {len(value) for value in values}
    if len(sizes) == 1:
        raise ConfigError(
            f"{known}; {schema}; all have {sizes.pop()} bytes, so they may be raw tensors, which do not describe their "
            "contents: write the config by hand, with format: raw and the fields in their order"
        )
    raise ConfigError(f"{known}; {schema}; `millrace config schema` lists what can be read, under records.format")


_REGISTRY_S = 5.0


def schema_hints(registry: RegistrySettings | None, file: Path | None, message: str | None, out: Path) -> SchemaHints:
    """Return the hints; a config in the folder `out` has the file by a path from there."""
    schemas = None if registry is None else to_registry(registry, _REGISTRY_S)
    urls = () if registry is None else registry.url
    written = "" if file is None else os.path.relpath(file.absolute(), out.absolute())
    if written and not written.startswith(".."):
        written = f"./{written}"
    return SchemaHints(schemas=schemas, registry=urls, file=file, written=written, message=message)
