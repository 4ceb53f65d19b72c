"""The journal: for each checkpoint of a deterministic run, which blocks have led to it from its parent.

    <checkpoints.path>/<name>/journal/0000000007     what the writer of term 7 has published, one segment a checkpoint

A segment is written and synced before its checkpoint is published, and is kept when the checkpoint is pruned: so there
is one for every checkpoint, back to the beginning. A segment without a checkpoint, which a kill or a failed save has
left, is found out: a later writer's term fences it, or a later segment of the same number follows it.

    "MRJ1", sizes of head and body (4 bytes each), head (JSON, deflated), body (blocks), SHA-256 of all before it

Owns the files. The checkpoint writer's thread appends, or the trainer's for a rewind, one at a time; any thread reads,
also while a writer appends. A full disk fails the save; what it has left of the segment, the next one is written over.
"""

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millrace.consumers.durable_files import sync_file, sync_folder
from millrace.consumers.failpoints import failpoint
from millrace.consumers.records import Partition
from millrace.training.checkpoints.fencing import Terms
from millrace.training.checkpoints.folder import Folder
from millrace.training.checkpoints.manifest import Manifest, SaveReason, SaveRequest
from millrace.training.errors import CorruptError, MissingCheckpointError, NotRebuildableError
from millrace.training.history.journal_blocks import RecordedBlock, decode

FORMAT = 1
_MAGIC = b"MRJ1"
_SIZES = struct.Struct("<4sII")
_SEAL_BYTES = 32
_LEDGER_FILE = "ledger.json"
_OF_READING = ("fingerprint",)
"""What an account says of how its records were fetched: of chunks, which timing cuts, and not of records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """What the journal says of one checkpoint."""

    number: int
    parent: int | None
    term: int
    step: int
    reason: str
    """A SaveReason."""
    created_at: str
    positions: Mapping[str, int]
    """The next offset of each partition, by `topic:partition`, sorted as partitions are."""
    files: Mapping[str, str]
    """The SHA-256 of each of its files but the ledger's."""
    ledger_sha256: str
    """The hash of what its ledger says of records; see `comparable`."""
    model_sha256: str | None
    """The hash of the model's file."""
    versions: Mapping[str, str]
    """The versions of Python and of the libraries that have learnt it."""
    orders: Mapping[str, Any] | None
    """All interventions, where it is a rewind or a skip; else None, as they are its parent's."""
    blocks: bytes = field(default=b"", repr=False)
    """What was learnt since the parent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SegmentPlace:
    """Where a segment lies."""

    path: Path
    at: int
    size: int


class Journal:
    """The writing end, for the writer of one term."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._end: int | None = None

    def append(self, request: SaveRequest, manifest: Manifest) -> None:
        """Write the segment of a checkpoint that is about to be published, durably; OSError where that fails."""
        if request.journal is None:
            return
        entry = request.journal()
        raw = _render(manifest, entry.ledger, entry.orders, entry.blocks)
        path = self._folder.journal_of(manifest.term)
        new = not path.exists()
        path.parent.mkdir(exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            self._end = os.fstat(handle).st_size if self._end is None else self._end
            # Write at this place, over what a write that failed has left there, and sync.
            os.ftruncate(handle, self._end)
            view = memoryview(raw)
            while view:
                view = view[os.pwrite(handle, view, self._end + len(raw) - len(view)) :]
            sync_file(handle)
        finally:
            os.close(handle)
        if new:
            sync_folder(path.parent)
            sync_folder(self._folder.root)
        self._end += len(raw)
        failpoint("journal.after_segment")


class JournalReader:
    """The segments of a folder, as they are on disk now."""

    def __init__(self, folder: Folder) -> None:
        self.problems: list[str] = []
        """What is not as it was written, a sentence each."""
        self._places: dict[int, _SegmentPlace] = {}
        terms = Terms.read(folder)
        for term in folder.journal_terms():
            path = folder.journal_of(term)
            for segment, place in self._scan(path):
                # The last of a number counts: a save that failed after its segment was written has left one before.
                if segment.term == term and not terms.fences(term, segment.number):
                    self._places[segment.number] = place

    @property
    def numbers(self) -> list[int]:
        """The numbers of the checkpoints that it knows, ascending."""
        return sorted(self._places)

    def segment(self, number: int) -> Segment | None:
        """Read the segment of a checkpoint; None where there is none. CorruptError where it has changed since."""
        place = self._places.get(number)
        if place is None:
            return None
        with place.path.open("rb") as file:
            file.seek(place.at)
            raw = file.read(place.size)
        try:
            return _parse(raw)
        except ValueError as error:
            raise CorruptError(f"{place.path} is not what was written at byte {place.at}: {error}") from error

    def _scan(self, path: Path) -> Iterator[tuple[Segment, _SegmentPlace]]:
        """Yield the segments of a file up to its end, to what a kill has cut off, or to what is damaged."""
        with path.open("rb") as file:
            total, at = os.fstat(file.fileno()).st_size, 0
            while at + _SIZES.size <= total:
                head = file.read(_SIZES.size)
                magic, text, blocks = _SIZES.unpack(head)
                size = _SIZES.size + text + blocks + _SEAL_BYTES if magic == _MAGIC else None
                if size is None or at + size > total:
                    break
                raw = head + file.read(size - _SIZES.size)
                try:
                    segment = _parse(raw)
                except ValueError:
                    break
                yield segment, _SegmentPlace(path=path, at=at, size=size)
                at += size
            if at < total:
                # Of the newest writer this may be a segment that is being written, or that a kill has cut off.
                self.problems.append(f"{path} ends at byte {at} of {total}: the rest is cut off or damaged")


def comparable(ledger: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a ledger's facts say of records, and nothing of processes or of how the records were fetched."""
    partitions = {
        name: {key: value for key, value in facts.items() if key not in _OF_READING}
        for name, facts in ledger["partitions"].items()
    }
    return {"partitions": partitions, "skips": ledger["skips"], "event_span": ledger.get("event_span")}


def ledger_digest(ledger: Mapping[str, Any]) -> str:
    """Return the hash of what a ledger's facts say of records."""
    return hashlib.sha256(json.dumps(comparable(ledger), sort_keys=True).encode()).hexdigest()


def _render(manifest: Manifest, ledger: Mapping[str, Any], orders: Mapping[str, Any] | None, blocks: bytes) -> bytes:
    provenance = manifest.provenance
    head = {
        "format": FORMAT,
        "number": manifest.number,
        "parent": manifest.parent,
        "term": manifest.term,
        "step": manifest.step,
        "reason": manifest.reason,
        "created_at": manifest.created_at,
        "positions": dict(manifest.positions),
        "files": {name: facts.sha256 for name, facts in manifest.files.items() if name != _LEDGER_FILE},
        "ledger_sha256": ledger_digest(ledger),
        "model_sha256": provenance.get("model_sha256"),
        "versions": {name: provenance[name] for name in _VERSIONS if name in provenance},
        "orders": orders,
    }
    text = zlib.compress(json.dumps(head).encode(), 9)
    raw = _SIZES.pack(_MAGIC, len(text), len(blocks)) + text + blocks
    return raw + hashlib.sha256(raw).digest()


_VERSIONS = ("millrace", "python", "tensorflow", "keras", "numpy")


def _parse(raw: bytes) -> Segment:
    """Read a segment; ValueError where it is not what was written."""
    _, head, _ = _SIZES.unpack_from(raw)
    if hashlib.sha256(raw[:-_SEAL_BYTES]).digest() != raw[-_SEAL_BYTES:]:
        raise ValueError("its SHA-256 differs")
    try:
        facts = json.loads(zlib.decompress(raw[_SIZES.size : _SIZES.size + head]))
        if facts["format"] > FORMAT:
            raise ValueError(f"it has format {facts['format']}, and this millrace reads up to {FORMAT}")
        known = {name: facts[name] for name in Segment.__dataclass_fields__ if name != "blocks"}
    except (KeyError, TypeError, zlib.error) as error:
        raise ValueError(f"it lacks a field: {error}") from error
    return Segment(**known, blocks=raw[_SIZES.size + head : -_SEAL_BYTES])


# The chain of a checkpoint: the segments of the journal that have led to it, from a state that can be begun with.
# Segments are read one at a time, so that a long history takes little memory.
@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """What it takes to make a checkpoint again."""

    number: int
    """The checkpoint."""
    base: int
    """The checkpoint to begin with."""
    beginning: Segment | None
    """The segment of the base where that is the beginning of the history; None where it is another checkpoint, or its
    beginning is older than the journal."""
    numbers: Sequence[int]
    """The checkpoints after the base, in the order in which they are made again."""
    blocks: int
    rows: int
    """Records in those blocks; some of them were set aside by their calls."""
    read: Callable[[int], Segment]
    """Reads the segment of one of them."""

    @property
    def last(self) -> Segment:
        """The segment of the checkpoint itself."""
        return self.read(self.number)

    def segments(self) -> Iterator[Segment]:
        """Yield the segments after the base."""
        yield from map(self.read, self.numbers)


def chain_to(reader: JournalReader, number: int) -> Chain:
    """Return the chain of a checkpoint. NotRebuildableError where the journal holds what cannot be learnt again."""

    def read(wanted: int) -> Segment:
        segment = reader.segment(wanted)
        if segment is None:
            raise CorruptError(f"the journal has lost the segment of checkpoint {wanted}")
        return segment

    if reader.segment(number) is None:
        raise MissingCheckpointError(_missing(reader, number))
    numbers = list[int]()
    blocks = rows = 0
    base: int | None = number
    while base is not None and (segment := reader.segment(base)) is not None:
        if segment.parent is None:
            return Chain(
                number=number, base=base, beginning=segment, numbers=numbers[::-1], blocks=blocks, rows=rows, read=read
            )
        for block in blocks_of(segment):
            blocks, rows = blocks + 1, rows + block.rows
        if segment.reason == SaveReason.RECREATED:
            raise NotRebuildableError(
                f"checkpoint {segment.number} was made when a topic was deleted and created again, so the records "
                "before it are no longer there"
            )
        if any(block.lost for block in blocks_of(segment)):
            raise NotRebuildableError(
                f"checkpoint {segment.number} counts offsets as lost, which Kafka's retention had removed before they "
                "were read; an archive may have them now, and the weights have not seen them"
            )
        numbers.append(base)
        base = segment.parent
    assert base is not None, "a segment without a parent ends the chain above"
    return Chain(number=number, base=base, beginning=None, numbers=numbers[::-1], blocks=blocks, rows=rows, read=read)


def blocks_of(segment: Segment) -> Iterator[RecordedBlock]:
    """Yield the blocks of a segment; CorruptError where they cannot be read."""
    try:
        yield from decode(segment.blocks, len(segment.positions))
    except ValueError as error:
        raise CorruptError(f"the journal's segment of checkpoint {segment.number} cannot be read: {error}") from error


def positions_after(segment: Segment) -> Mapping[Partition, int]:
    """Return the positions of a segment's checkpoint, in the order in which its blocks name the partitions."""
    return dict(sorted((Partition.parse(name), offset) for name, offset in segment.positions.items()))


def _missing(reader: JournalReader, number: int) -> str:
    if reader.problems:
        return f"the journal does not have checkpoint {number}: {reader.problems[0]}"
    there = ", ".join(map(str, reader.numbers[-5:])) or "none, as it begins with the next start"
    return (
        f"the journal does not have checkpoint {number}; the newest there are: {there}. It holds what was learnt with "
        "training.deterministic: true"
    )
