"""The blocks of a source by the settings: its shards read, decoded by the schema, prepared by the user's code."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from millrace.app.settings import Settings, to_decoder, to_schema
from millrace.app.settings.sections.records import RecordsSettings
from millrace.app.tools.pretrain.shard_sources import ShardSource
from millrace.app.version import version
from millrace.consumers.archive.record_columns import RecordColumns, from_batch
from millrace.consumers.archive.shard_reader import pieces, read, read_piece
from millrace.consumers.archive.shards import Shard
from millrace.consumers.errors import ConfigError
from millrace.consumers.records import Chunk
from millrace.pipelines.files.file_dataset import FileBlocks, FileOptions
from millrace.pipelines.files.service_dataset import ServedShard, ServiceFiles, ServiceJob
from millrace.pipelines.files.service_worker import Form, Work
from millrace.pipelines.files.shard_files import (
    ChainedFiles,
    ChunkFiles,
    RowChains,
    ShardReader,
    example_files,
    image_files,
)
from millrace.pipelines.files.tfrecord_frames import compression_of, first_record
from millrace.pipelines.files.visits import CountedShard, Refusals
from millrace.pipelines.formats import format_of
from millrace.pipelines.formats.example.decoder import integers_in
from millrace.pipelines.formats.shared.paths import Envelope, is_envelope, parse
from millrace.pipelines.stream.dataset import Preprocess
from millrace.pipelines.where.conditions import SCHEMA
from millrace.pipelines.where.selection import selecting
from millrace.training.model.setup.cores import usable_cores
from millrace.training.model.setup.model_code import model_sha256

_WINDOWS = 4
"""How many windows share `memory.limit`: one is filled, one or two are permuted and prepared, one is cut into calls."""

_ARCHIVED = {"key": Envelope.KEY, "headers": Envelope.HEADER}
"""What an archive has beside values and where they lay, by its columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputOptions:
    """How files are read, as the command line says."""

    shuffle: int = 65_536
    cache: str | None = None
    deterministic: bool = False


def reader_of(
    source: ShardSource, settings: Settings, refusals: Refusals, chains: RowChains | None = None
) -> ChunkFiles:
    """Return the reader of a source; the rows that the schema refuses are noted.

    With `chains` the shards of each partition are read in the order of their offsets, and their rows shaped.
    """
    schema = to_schema(settings.records)
    if source.images is not None:
        if settings.records.where:
            raise ConfigError("records.where: an image in a folder has no other field to go by; leave it out")
        return image_files(source.images, source.shards, schema, refusals, usable_cores())
    if not source.archived:
        _require_values_alone(settings.records, "TFRecord files of Examples have none; pretrain from an archive")
        # Whatever the format of the topics.
        where, form = settings.records.where, format_of("example")
        return example_files(
            source.shards, schema, refusals, usable_cores(), lambda decoder: selecting(decoder, where, form)
        )
    decoder, beside = to_decoder(settings.records), _beside(settings.records)

    def read(place: int, most: int) -> Iterator[Chunk]:
        return chunks_of(source.archived[place], source.shards[place], most, beside)

    if chains is None:
        return ChunkFiles(read, decoder, refusals, usable_cores())
    shaped = settings.row_schema
    return ChainedFiles(read, decoder, shaped, chains, refusals, usable_cores())


def served(
    local: ShardReader,
    source: ShardSource,
    settings: Settings,
    service: ServiceJob,
    preprocess: Preprocess | None,
    refusals: Refusals,
) -> ShardReader:
    """Return a reader that has the workers of a service read, decode and prepare what `local` would read here."""
    _require_values_alone(settings.records, "a service reads values alone; leave --service out")
    if settings.records.by_topic:
        raise ConfigError("--service: its workers know no records.by_topic; leave --service out")
    if settings.records.where:
        raise ConfigError("--service: its workers know no records.where; leave --service out")
    if source.images is not None:
        raise ConfigError("--service: its workers read files of records, and these are images; leave it out")
    key = model_sha256(settings.model.build.file)
    shards, forms = [], set[Form]()
    for place, shard in enumerate(source.shards):
        archived = source.archived[place] if source.archived else None
        form: Form = "example" if archived is None else "parquet" if archived.format == "parquet" else "archived"
        if form == "archived" and "://" in shard.path:
            raise ConfigError(
                f"--service: TensorFlow cannot read {shard.path}, which is a TFRecord shard of an object store: leave "
                "--service out, or copy the archive to a folder"
            )
        forms.add(form)
        shards.append(
            ServedShard(
                name=shard.name,
                path=shard.path,
                rows=shard.rows,
                compression="" if form == "parquet" else compression_of(Path(shard.path)),
                pieces=len(pieces(archived)) if form == "parquet" and archived is not None else 0,
            )
        )
    if len(forms) > 1:
        raise ConfigError("--service: the archive has Parquet and TFRecord shards, and a service reads one kind")
    if not isinstance(settings.records.format, str):
        raise ConfigError(
            f"--service: the workers of a service know no {settings.records.format}; pretrain without --service"
        )
    work = Work(
        form=forms.pop(),
        version=version(),
        records=settings.records.model_dump_json(),
        integers=tuple(sorted(integers_in(first_record(Path(source.shards[0].path)) or b"")))
        if not source.archived
        else (),
    )
    return ServiceFiles(
        shards, work, to_schema(settings.records), preprocess, replace(service, key=key), local, refusals
    )


def training_blocks(
    reader: ShardReader, source: ShardSource, settings: Settings, options: InputOptions, preprocess: Preprocess | None
) -> FileBlocks:
    """Return the blocks of what is trained on."""
    training = settings.training
    return FileBlocks(
        reader,
        settings.row_schema,
        range(len(source.shards)),
        FileOptions(
            batch_size=training.numbers.batch_size,
            batches_per_call=training.batches_per_call,
            shuffle=options.shuffle,
            cache=options.cache,
            deterministic=options.deterministic or training.deterministic,
            seed=training.seed,
            threads=usable_cores(),
            window_bytes=settings.memory.limit // _WINDOWS,
        ),
        preprocess,
    )


def validation_blocks(
    source: ShardSource,
    settings: Settings,
    options: InputOptions,
    preprocess: Preprocess | None,
    chains: RowChains | None = None,
) -> FileBlocks:
    """Return the blocks of what is validated on: in no other order than that of the files."""
    kept = options.cache if options.cache in {None, "memory"} else f"{options.cache}/validation"
    options = replace(options, shuffle=0, cache=kept)
    return training_blocks(reader_of(source, settings, Refusals(), chains), source, settings, options, preprocess)


def _beside(records: RecordsSettings) -> frozenset[str]:
    """Return which columns of an archive are asked for beside the values."""
    asked = {parse(source).envelope for source in _sources(records).values() if source != SCHEMA}
    return frozenset(name for name, envelope in _ARCHIVED.items() if envelope in asked)


def _sources(records: RecordsSettings) -> dict[str, str]:
    """Return where all that is asked of a record is, by name."""
    fields = {field.name: field.source for field in to_schema(records).fields}
    return fields | {f"where {source}": source for source in records.where}


def _require_values_alone(records: RecordsSettings, why: str) -> None:
    for name, source in _sources(records).items():
        if is_envelope(source):
            raise ConfigError(f"records: {name!r} is {source}, which Kafka has beside the value, and {why}")


def chunks_of(shard: Shard, part: CountedShard, most: int, beside: Collection[str] = ()) -> Iterator[Chunk]:
    """Yield the records of a part of an archived shard, at most `most` at a time.

    `beside` names `key` or `headers` to read.
    """
    for columns in _columns_of(shard, part, most, beside):
        if len(inside := columns.behind(part.first).before(part.end)):
            yield Chunk(
                partition=shard.partition,
                incarnation=0,
                start=int(inside.offsets[0]),
                end=int(inside.offsets[-1]) + 1,
                offsets=inside.offsets,
                timestamps=inside.timestamps,
                keys=inside.keys,
                values=inside.values,
                headers=inside.headers,
                nbytes=0,
                fetched_at=0.0,
            )


def _columns_of(shard: Shard, part: CountedShard, most: int, beside: Collection[str]) -> Iterator[RecordColumns]:
    """Yield what is read of a shard, which may reach beyond the part at both ends."""
    if shard.format == "tfrecord":
        for columns in read(shard, part.first):
            if columns.offsets[0] >= part.end:
                return
            yield from columns.split(most)
        return
    names = ["offset", "timestamp", "value", *sorted(beside)]
    for piece in pieces(shard):
        if piece.first >= part.end or piece.last < part.first:
            continue
        # Of Parquet the other columns need not even be read.
        for batch in read_piece(piece, names).to_batches(max_chunksize=most):
            yield from_batch(batch)
