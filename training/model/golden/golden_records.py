"""Reads the golden set: a Parquet file with a column for each field, a TFRecord file of Examples, or an archive.

All of it is held in memory for as long as the process runs, so it is bounded in rows and in bytes. Runs on the thread
that starts; owns nothing.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.consumers.archive.record_columns import SCHEMA
from millrace.consumers.archive.shard_reader import read
from millrace.consumers.archive.shards import listing
from millrace.consumers.errors import ConfigError, MillraceError
from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.files.shard_files import CHUNK, example_chunks, plain_chunk
from millrace.pipelines.files.tfrecord_frames import count_records, first_record
from millrace.pipelines.files.visits import CountedShard
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.formats.example.decoder import ExampleDecoder, integers_in
from millrace.pipelines.formats.shared.paths import is_envelope, parse
from millrace.pipelines.formats.shared.protocol import Decoder
from millrace.pipelines.schema import Column, Schema
from millrace.pipelines.shaping.golden import SETTING
from millrace.pipelines.stream.decode import Decoded, decode_chunk

MOST_ROWS = 100_000
MOST_BYTES = 512 << 20
_PARQUET = b"PAR1"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenRecords:
    """The records of the set that decode."""

    path: Path
    sha256: str
    """Of the file; of an archive, of the names and hashes of its shards."""
    features: Mapping[str, Column]
    labels: Mapping[str, Column]
    weights: Column
    refused: int
    """Records that do not decode, and are not scored."""
    complaint: str
    """Why the first of them does not."""

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self.weights)


@dataclass(frozen=True, slots=True)
class _GoldenSource:
    sha256: str
    decoder: Decoder
    chunks: Iterator[Chunk]


def read_golden(path: Path, schema: Schema, decoder: Callable[[], Decoder]) -> GoldenRecords:
    """Read a golden set, whose rows are of the schema; `decoder` makes that of the topics' records.

    Raise ConfigError where it cannot be read, has too many records, or none that decodes.
    """
    try:
        if path.is_dir():
            source = _archived(path, decoder)
        else:
            with path.open("rb") as file:
                begins = file.read(len(_PARQUET))
                file.seek(0)
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            # No time of a record is needed to score it.
            source = (_columns if begins == _PARQUET else _examples)(path, replace(schema, event_time=None), sha256)
        decoded, held = list[Decoded](), 0
        for chunk in source.chunks:
            decoded.append(decode_chunk(chunk, source.decoder))
            held += decoded[-1].nbytes
            if held > MOST_BYTES:
                raise _too_large(path, f"more than {MOST_BYTES >> 20} MiB of decoded rows, which is the limit")
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, MillraceError):
            raise
        why = getattr(error, "strerror", None) or (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{SETTING}: {path} cannot be read: {why}") from error
    refused = [one for each in decoded for one in each.refused]
    complaint = ""
    if refused:
        complaint = f"record {refused[0].offset}: {refused[0].reason}"
        complaint += f" ({refused[0].field})" if refused[0].field else ""
    some = [one for one in decoded if len(one)]
    if not some:
        raise ConfigError(f"{SETTING}: {path} has no record that decodes; {complaint or 'it is empty'}")
    weights = [np.ones(len(one), np.float32) if one.weights is None else one.weights for one in some]
    return GoldenRecords(
        path=path,
        sha256=source.sha256,
        features={name: np.concatenate([one.features[name] for one in some]) for name in some[0].features},
        labels={name: np.concatenate([one.labels[name] for one in some]) for name in some[0].labels},
        weights=np.concatenate(weights),
        refused=len(refused),
        complaint=complaint,
    )


def _archived(folder: Path, decoder: Callable[[], Decoder]) -> _GoldenSource:
    """Return the records of an archive, decoded as those of the topics are."""
    shards = listing(folder)
    _require_few(folder, sum(shard.records for shard in shards))

    def chunks() -> Iterator[Chunk]:
        for shard in shards:
            for piece in read(shard):
                for columns in piece.split(CHUNK):
                    yield replace(
                        plain_chunk(shard.partition, columns.offsets, columns.values),
                        timestamps=columns.timestamps,
                        keys=columns.keys,
                        headers=columns.headers,
                    )

    lines = "\n".join(f"{shard.key} {shard.sha256}" for shard in shards)
    return _GoldenSource(hashlib.sha256(lines.encode()).hexdigest(), decoder(), chunks())


def _examples(path: Path, schema: Schema, sha256: str) -> _GoldenSource:
    """Return the records of a TFRecord file of Examples."""
    _require_values_alone(schema, path)
    try:
        rows = count_records(path)
    except ConfigError as error:
        raise ConfigError(f"{SETTING}: {path} is neither Parquet nor TFRecord: {error}") from error
    _require_few(path, rows)
    decoder = ExampleDecoder(schema, integers_in(first_record(path) or b""))
    return _GoldenSource(
        sha256, decoder, example_chunks(CountedShard(name=path.name, path=str(path), rows=rows, end=rows), CHUNK)
    )


def _columns(path: Path, schema: Schema, sha256: str) -> _GoldenSource:
    """Return the rows of a Parquet file as records of JSON, so that each field has the rules that it has there."""
    _require_values_alone(schema, path)
    file = pq.ParquetFile(path)
    names = file.schema_arrow.names
    if file.schema_arrow == SCHEMA:
        raise ConfigError(f"{SETTING}: {path} is a shard of an archive; name the archive's folder")
    _require_few(path, file.metadata.num_rows)
    asked = {parse(field.source).names[0]: field for field in schema.fields}
    lacking = [name for name, field in asked.items() if name not in names and field.missing is None]
    if lacking:
        raise ConfigError(f"{SETTING}: {path} has no column {lacking[0]!r}; its columns are {', '.join(names[:20])}")

    def chunks() -> Iterator[Chunk]:
        at = 0
        for batch in file.iter_batches(CHUNK, columns=[name for name in asked if name in names]):
            try:
                values = [json.dumps(row).encode() for row in batch.to_pylist()]
            except TypeError as error:
                raise ConfigError(f"{SETTING}: {path}: {error}; write numbers, texts, truth values or lists") from error
            yield plain_chunk(Partition(path.name, 0), np.arange(at, at + len(values)), values)
            at += len(values)

    return _GoldenSource(sha256, make_decoder("json", schema), chunks())


def _require_few(path: Path, rows: int) -> None:
    if rows > MOST_ROWS:
        raise _too_large(path, f"{rows:,} records, and {MOST_ROWS:,} are the limit")


def _require_values_alone(schema: Schema, path: Path) -> None:
    for field in schema.fields:
        if is_envelope(field.source):
            raise ConfigError(
                f"{SETTING}: {field.name!r} is {field.source}, which Kafka has beside the value, and {path} has none; "
                "name a folder of an archive"
            )


def _too_large(path: Path, what: str) -> ConfigError:
    return ConfigError(f"{SETTING}: {path} has {what}: every checkpoint scores them all; take a sample of them")
