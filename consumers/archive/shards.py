"""Shards: the files of the archive. Each holds the records of one partition in a closed range of offsets.

    <archive.path>/clicks/0/00000000000000000000-00000000000000119999.parquet       the records of offsets 0 to 119,999
    <archive.path>/clicks/0/00000000000000000000-00000000000000119999.json          count, times, SHA-256 and more
    <archive.path>/clicks/0/.open-00000000000000120000.parquet                      being written, or left by a kill

The listing of the folder is the archive's only state. The presence of the data file is the truth: its JSON file becomes
durable before it, and is removed after it, so each data file has one. A JSON file rather than the file's own footer,
because a file cannot hold its own SHA-256, and because a listing reads no Parquet.

Owns the JSON file. Reads only, apart from `remove_leftovers`; runs anywhere. `stores` has the files, `shard_names`
their names; `shard_writer` writes, `shard_reader` reads the records.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from millrace.consumers.archive.archive_store import ArchiveStore, Place
from millrace.consumers.archive.shard_names import (
    OPEN,
    Format,
    ShardName,
    facts_name,
    home_of,
    is_facts,
    is_topic,
    shard_name,
)
from millrace.consumers.archive.stores import store_at
from millrace.consumers.durable_files import FileFacts
from millrace.consumers.errors import ArchiveDamagedError
from millrace.consumers.fingerprints import Fingerprint
from millrace.consumers.records import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A file of the archive that is complete."""

    store: ArchiveStore
    """Where the archive is."""
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
    def name(self) -> str:
        return str(ShardName(self.first, self.next_offset, self.format))

    @property
    def key(self) -> str:
        """The place of its file in the archive."""
        return f"{home_of(self.partition)}/{self.name}"

    @property
    def facts_key(self) -> str:
        """The place of the JSON file beside it."""
        return facts_name(self.key)

    @property
    def path(self) -> str:
        return self.store.path(self.key)

    @property
    def written(self) -> FileFacts:
        """What its file must hold."""
        return FileFacts(self.size, self.sha256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Everything that a listing finds."""

    shards: tuple[Shard, ...]
    """Sorted by partition and offset."""
    problems: tuple[str, ...]
    """What is not as it was written, a sentence each; such a shard is not among `shards`."""


def listing(place: Place) -> list[Shard]:
    """Return all shards, sorted by partition and offset. Raises ArchiveDamagedError; a missing folder has none."""
    found = survey(place)
    if found.problems:
        raise ArchiveDamagedError(found.problems[0])
    return list(found.shards)


def survey(place: Place) -> Survey:
    """Return all shards, and what is wrong with the others. Reads names and JSON files, but no records."""
    store = store_at(place)
    shards: list[Shard] = []
    problems: list[str] = []
    for partition in _partitions(store):
        described, undescribed = _described(store, partition, _ranges(store, partition))
        shards += described
        problems += undescribed
    shards.sort(key=lambda shard: (shard.partition, shard.first))
    for before, after in pairwise(shards):
        if before.partition == after.partition and after.first < before.next_offset:
            problems.append(f"{after.path} begins within {before.name}: remove one of them")
    return Survey(shards=tuple(shards), problems=tuple(problems))


def shard_at(place: Place, partition: Partition, offset: int) -> Shard | None:
    """Return the shard that covers an offset, or None. Reads the names of one folder and one JSON file.

    Raises ArchiveDamagedError where nothing describes that shard.
    """
    store = store_at(place)
    covering = [name for name in _ranges(store, partition) if name.first <= offset < name.next_offset]
    shards, problems = _described(store, partition, covering[:1])
    if problems:
        raise ArchiveDamagedError(problems[0])
    return shards[0] if shards else None


def first_offset_behind(place: Place, partition: Partition, offset: int) -> int | None:
    """Return the first offset of the first shard that begins at this offset or behind it, or None."""
    return min((name.first for name in _ranges(store_at(place), partition) if name.first >= offset), default=None)


def next_offsets(shards: list[Shard]) -> dict[Partition, int]:
    """Return, of each partition, the offset at which its last shard ends."""
    return {shard.partition: shard.next_offset for shard in sorted(shards, key=lambda shard: shard.next_offset)}


def leftovers(place: Place) -> list[str]:
    """Return the keys of what a killed archiver has left: files half written, and JSON files without their shard."""
    store = store_at(place)
    found = []
    for partition in _partitions(store):
        names = set(store.files(home_of(partition)))
        described = {facts_name(name) for name in names if shard_name(name)}
        left = (name for name in sorted(names - described) if _is_half_written(name) or is_facts(name))
        found += [f"{home_of(partition)}/{name}" for name in left]
    return found


def remove_leftovers(place: Place) -> int:
    """Remove what a killed archiver has left, and return how many files that were. The archive's lock must be held."""
    left = leftovers(place)
    store_at(place).remove(left)
    return len(left)


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


def _is_half_written(name: str) -> bool:
    """Return whether a file is one that never got its name: a shard, or a JSON file as `replace_durably` calls it."""
    hidden, new, _ = name.partition(".new-")
    return name.startswith(OPEN) or (new != "" and hidden.startswith(".") and is_facts(hidden[1:]))


def _partitions(store: ArchiveStore) -> Iterator[Partition]:
    """Yield the partitions that have a folder, in no order."""
    for topic in store.folders(""):
        if is_topic(topic):
            for number in store.folders(topic):
                if number.isdecimal():
                    yield Partition(topic, int(number))


def _ranges(store: ArchiveStore, partition: Partition) -> list[ShardName]:
    """Return what the names of a partition's shards say, in no order."""
    names = map(shard_name, store.files(home_of(partition)))
    return [name for name in names if name is not None]


def _described(store: ArchiveStore, partition: Partition, names: Sequence[ShardName]) -> tuple[list[Shard], list[str]]:
    """Return shards as their JSON files describe them, and a sentence for each that nothing describes."""
    shards, problems = [], []
    keys = [f"{home_of(partition)}/{name}" for name in names]
    for key, name, raw in zip(keys, names, store.read([facts_name(key) for key in keys]), strict=True):
        try:
            shards.append(_parsed(store, partition, name, raw))
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = f"it has no {error.args[0]}" if isinstance(error, KeyError) else str(error)
            if isinstance(error, OSError):
                why = error.strerror or type(error).__name__
            problems.append(
                f"{store.path(key)} is not described by {facts_name(str(name))} ({why}): restore that file from a "
                "copy, or remove both"
            )
    return shards, problems


def _parsed(store: ArchiveStore, partition: Partition, name: ShardName, raw: bytes | OSError) -> Shard:
    """Return the shard of a name by its JSON file; ValueError or the like where the two differ."""
    if isinstance(raw, OSError):
        raise raw
    document: dict[str, Any] = json.loads(raw)
    fingerprint = Fingerprint.of_facts(document["fingerprint"])
    if fingerprint is None:
        raise ValueError("it has no fingerprint")
    shard = Shard(
        store=store,
        partition=partition,
        first=name.first,
        next_offset=name.next_offset,
        records=int(document["records"]),
        earliest_ms=int(document["earliest_ms"]),
        latest_ms=int(document["latest_ms"]),
        sha256=str(document["sha256"]),
        size=int(document["size"]),
        format=name.format,
        fingerprint=fingerprint,
    )
    if json.loads(facts_document(shard)) != document:
        raise ValueError("it describes another file")
    return shard
