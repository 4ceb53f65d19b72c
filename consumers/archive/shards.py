"""Shards: the files of the archive. Each holds the records of one partition in a closed range of offsets.

    <archive.path>/clicks/0/00000000000000000000-00000000000000119999.parquet       the records of offsets 0 to 119,999
    <archive.path>/clicks/0/00000000000000000000-00000000000000119999.json          count, times, SHA-256 and more
    <archive.path>/clicks/0/.open-00000000000000120000.parquet                      being written, or left by a kill

The listing of the folder is the archive's only state. The presence of the data file is the truth: its JSON file becomes
durable before it, and is removed after it, so each data file has one. A JSON file rather than the file's own footer,
because a file cannot hold its own SHA-256, and because a listing reads no Parquet.

Owns the names, and the JSON file. Reads only; runs anywhere. `shard_writer` writes, `shard_reader` reads the records.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from consumers.errors import ArchiveDamagedError, ConfigError
from consumers.fingerprints import Fingerprint
from consumers.records import Partition

Format = Literal["parquet", "tfrecord"]
SUFFIXES: dict[Format, str] = {"parquet": ".parquet", "tfrecord": ".tfrecord.gz"}
_FORMATS = {suffix: form for form, suffix in SUFFIXES.items()}
_NAME = re.compile(r"(?P<first>\d{20})-(?P<last>\d{20})(?P<suffix>\.parquet|\.tfrecord\.gz)", re.ASCII)
_STEM = re.compile(r"(\d{20})-(\d{20})\.json", re.ASCII)
_TOPIC = re.compile(r"[\w.-]+", re.ASCII)
"""What Kafka lets a topic be called."""
OPEN = ".open-"
"""How the name of a file begins that is being written, or was when its process died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A file of the archive that is complete."""

    path: Path
    partition: Partition
    first: int
    """The first offset that it covers, present or not."""
    next_offset: int
    """One past the last offset that it covers."""
    records: int
    """How many records it holds: fewer than offsets where compaction or transactions have left gaps."""
    earliest_ms: int
    """The smallest of Kafka's timestamps, in milliseconds since 1970."""
    latest_ms: int
    """The greatest of Kafka's timestamps."""
    sha256: str
    """Of the whole file."""
    size: int
    """The file's size in bytes."""
    format: Format
    fingerprint: Fingerprint
    """The fingerprint of its last record, by which the topic is recognised."""

    @property
    def facts_path(self) -> Path:
        """The JSON file beside it."""
        return facts_path(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Everything that a listing finds."""

    shards: tuple[Shard, ...]
    """Sorted by partition and offset."""
    problems: tuple[str, ...]
    """What is not as it was written, a sentence each; such a shard is not among `shards`."""


def shard_path(folder: Path, partition: Partition, first: int, next_offset: int, form: Format) -> Path:
    """Return the path of a shard. Names are padded with zeros, so that a listing is in order of offsets."""
    return partition_folder(folder, partition) / f"{first:020}-{next_offset - 1:020}{SUFFIXES[form]}"


def partition_folder(folder: Path, partition: Partition) -> Path:
    """Return the folder that holds the shards of a partition."""
    return folder / partition.topic / str(partition.number)


def facts_path(shard: Path) -> Path:
    """Return the path of the JSON file that belongs to a shard's path."""
    return shard.with_name(shard.name.partition(".")[0] + ".json")


def listing(folder: Path) -> list[Shard]:
    """Return all shards, sorted by partition and offset. Raises ArchiveDamagedError; a missing folder has none."""
    found = survey(folder)
    if found.problems:
        raise ArchiveDamagedError(found.problems[0])
    return list(found.shards)


def survey(folder: Path) -> Survey:
    """Return all shards, and what is wrong with the others. Reads names and JSON files, but no records."""
    shards: list[Shard] = []
    problems: list[str] = []
    for partition, path in _files(folder):
        try:
            shards.append(_described(partition, path))
        except (OSError, ValueError, KeyError, TypeError) as error:
            problems.append(_undescribed(path, error))
    shards.sort(key=lambda shard: (shard.partition, shard.first))
    for before, after in pairwise(shards):
        if before.partition == after.partition and after.first < before.next_offset:
            problems.append(f"{after.path} begins within {before.path.name}: remove one of them")
    return Survey(shards=tuple(shards), problems=tuple(problems))


def shard_at(folder: Path, partition: Partition, offset: int) -> Shard | None:
    """Return the shard that covers an offset, or None. Reads the names of one folder and one JSON file.

    Raises ArchiveDamagedError where nothing describes that shard.
    """
    for first, next_offset, path in _ranges(folder, partition):
        if first <= offset < next_offset:
            try:
                return _described(partition, path)
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise ArchiveDamagedError(_undescribed(path, error)) from error
    return None


def first_offset_behind(folder: Path, partition: Partition, offset: int) -> int | None:
    """Return the first offset of the first shard that begins at this offset or behind it, or None."""
    return min((first for first, _, _ in _ranges(folder, partition) if first >= offset), default=None)


def _ranges(folder: Path, partition: Partition) -> list[tuple[int, int, Path]]:
    """Return first offset, next offset and path of each shard of a partition, by their names, in no order."""
    try:
        names = [(_NAME.fullmatch(path.name), path) for path in partition_folder(folder, partition).iterdir()]
    except OSError:  # no shard of this partition, or no archive at all
        return []
    return [(int(name["first"]), int(name["last"]) + 1, path) for name, path in names if name is not None]


def next_offsets(shards: list[Shard]) -> dict[Partition, int]:
    """Return, of each partition, the offset at which its last shard ends."""
    return {shard.partition: shard.next_offset for shard in sorted(shards, key=lambda shard: shard.next_offset)}


def leftovers(folder: Path) -> Iterator[Path]:
    """Yield what a killed archiver has left: files that were being written, and JSON files without their shard.

    Only the holder of the archive's lock may remove them.
    """
    for _, home in _homes(folder):
        names = {path.name for path in home.iterdir()}
        described = {facts_path(home / name).name for name in names if _NAME.fullmatch(name)}
        for name in sorted(names - described):
            if name.startswith(OPEN) or _STEM.fullmatch(name):
                yield home / name


def facts_document(shard: Shard) -> bytes:
    """Return the contents of the shard's JSON file."""
    document = {
        "topic": shard.partition.topic,
        "partition": shard.partition.number,
        "first": shard.first,
        "next_offset": shard.next_offset,
        "records": shard.records,
        "earliest_ms": shard.earliest_ms,
        "latest_ms": shard.latest_ms,
        "format": shard.format,
        "size": shard.size,
        "sha256": shard.sha256,
        "fingerprint": list(shard.fingerprint),
    }
    return (json.dumps(document, indent=2) + "\n").encode()


def _homes(folder: Path) -> Iterator[tuple[Partition, Path]]:
    """Yield the folder of each partition, in no order."""
    try:
        # A volume may have folders of its own, such as lost+found, which only root may read.
        topics = [path for path in folder.iterdir() if _TOPIC.fullmatch(path.name) and path.is_dir()]
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"archive.path: {folder} cannot be read: {error.strerror}") from error
    for topic in topics:
        for home in topic.iterdir():
            if home.name.isdecimal() and home.is_dir():
                yield Partition(topic.name, int(home.name)), home


def _files(folder: Path) -> Iterator[tuple[Partition, Path]]:
    for partition, home in _homes(folder):
        for path in home.iterdir():
            if _NAME.fullmatch(path.name):
                yield partition, path


def _described(partition: Partition, path: Path) -> Shard:
    """Return the shard at a path. Raises what reading its JSON file raises, or ValueError where the two differ."""
    name = _NAME.fullmatch(path.name)
    assert name is not None
    document: dict[str, Any] = json.loads(facts_path(path).read_bytes())
    fingerprint = Fingerprint.of_facts(document["fingerprint"])
    if fingerprint is None:
        raise ValueError("it has no fingerprint")
    shard = Shard(
        path=path,
        partition=partition,
        first=int(name["first"]),
        next_offset=int(name["last"]) + 1,
        records=int(document["records"]),
        earliest_ms=int(document["earliest_ms"]),
        latest_ms=int(document["latest_ms"]),
        sha256=str(document["sha256"]),
        size=int(document["size"]),
        format=_FORMATS[name["suffix"]],
        fingerprint=fingerprint,
    )
    if json.loads(facts_document(shard)) != document:
        raise ValueError("it describes another file")
    return shard


def _undescribed(path: Path, error: Exception) -> str:
    return (
        f"{path} is not described by {facts_path(path).name} ({_why(error)}): restore that file from a copy, or remove "
        "both"
    )


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return f"it has no {error.args[0]}" if isinstance(error, KeyError) else str(error)
