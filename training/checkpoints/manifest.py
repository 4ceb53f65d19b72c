"""The manifest: what a checkpoint is, which files it has, and where it comes from.

Owns the format, version 1; runs on any thread. Fields are only ever added within a version, and a reader ignores those
that it does not know. The seal is the same in all versions (see `sealed_json`), so a manifest whose seal holds and
whose `format` is greater was written by a later millrace: it is refused with the reason, and never deleted.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from millrace.consumers.durable_files import FileFacts
from millrace.consumers.records import Partition
from millrace.training.checkpoints.sealed_json import seal, spelt_as_sealed, unseal
from millrace.training.errors import CorruptError, NewerFormatError

FORMAT = 1
FILE_NAME = "manifest.json"
_PART_FILE = re.compile(r"[a-z][a-z0-9_-]{0,63}\.(safetensors|json)")
GOLDEN = "golden"
"""What stands before the name of a metric on the golden set, with a dot between."""
_WEIGHTS_FROM = ("initial_weights", "pretrained", "forked_from")
"""What the provenance of a beginning says of weights that were learnt before it."""


class SaveReason(StrEnum):
    """Why a checkpoint was published."""

    START = "start"
    """The beginning: initial weights and resolved start positions."""
    INTERVAL = "interval"
    STEPS = "steps"
    DEMAND = "demand"
    """A command asked for it."""
    STOP = "stop"
    """The last one before an orderly end."""
    REWIND = "rewind"
    """A command to resume from an older checkpoint."""
    SKIP = "skip"
    """A rewind that also skips a range of offsets."""
    RECREATED = "recreated"
    """A learnt topic was deleted and created again under its name, and is learnt from its first record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the metrics of a checkpoint were measured on, and what they are compared with."""

    watched: str
    """The metric by which the model was judged when the checkpoint was made."""
    higher_is_better: bool
    """Whether more of that metric is better."""
    records: int
    """The records that the window had scored, each before it was learnt."""
    window_s: float
    """How far back the window reached, by the process's clock."""
    baseline: Mapping[str, float] = field(default_factory=dict)
    """What guessing would have scored on the same records, by metric."""

    @classmethod
    def parse(cls, body: Mapping[str, Any] | None) -> "Measured | None":
        """Read it from a manifest; None where an earlier version has recorded nothing."""
        if body is None:
            return None
        return cls(**{name: body[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenScores:
    """What the weights of a checkpoint score on the golden set: records that are never learnt."""

    rows: int
    """The records that were scored."""
    sha256: str
    """Of the set: the scores of two checkpoints can be compared where it is the same."""
    values: Mapping[str, float]
    """The loss and the compiled metrics; only finite ones are written."""

    @classmethod
    def parse(cls, body: Mapping[str, Any] | None) -> "GoldenScores | None":
        """Read them from a manifest; None where there was no golden set."""
        return None if body is None else cls(**{name: body[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """What the journal keeps of a checkpoint besides its manifest."""

    ledger: Mapping[str, Any]
    """The facts of its ledger."""
    blocks: bytes = b""
    """The blocks that were settled since its parent."""
    orders: Mapping[str, Any] | None = None
    """All interventions, where the checkpoint is one itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveRequest:
    """What the caller of a save states about the checkpoint."""

    reason: SaveReason
    parent: int | None
    """The checkpoint that the state in memory comes from; None for a beginning."""
    step: int
    incarnation: int
    positions: Mapping[Partition, int]
    """The next offset of each partition."""
    ordered_by: str | None = None
    note: str | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Hashes of config and model, versions, cluster id: JSON values, and no secret."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The live metrics over the window, at that moment; only finite ones are written."""
    measured: Measured | None = None
    """What the metrics were measured on; None where they are not known."""
    golden: GoldenScores | None = None
    """What the state that is saved scores on the golden set; None where there is none."""
    journal: Callable[[], JournalEntry] | None = None
    """Returns what a journal keeps of the checkpoint, once its files are written; None keeps nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The contents of `manifest.json`."""

    number: int
    parent: int | None
    ancestors: tuple[int, ...]
    """The parent, its parent, and so on, nearest first: those that were on disk. Outlives their pruning."""
    term: int
    incarnation: int
    step: int
    reason: str
    """A SaveReason, or a reason that a later version has added."""
    ordered_by: str | None
    note: str | None
    created_at: str
    """ISO 8601, UTC, by the writer's clock."""
    files: Mapping[str, FileFacts]
    positions: Mapping[str, int]
    """By `topic:partition`."""
    provenance: Mapping[str, Any]
    metrics: Mapping[str, float]
    """The live metrics over the window when it was made; of a rewind, those of its target."""
    variables: Mapping[str, Any] | None
    """None so far: no version has filled it, but every reader of format 1 requires the field."""
    measured: Measured | None = None
    """What the metrics were measured on; None where an earlier version made the checkpoint."""
    golden: GoldenScores | None = None
    """What its weights score on the golden set; of a rewind, those of its target. None where there was no set."""

    @property
    def scores(self) -> dict[str, float]:
        """The live metrics, and those on the golden set as `golden.auc`."""
        golden = {} if self.golden is None else self.golden.values
        return {**self.metrics, **{f"{GOLDEN}.{name}": value for name, value in golden.items()}}

    @property
    def size(self) -> int:
        """Bytes of all its files; linked ones count here and in the checkpoint that they come from."""
        return sum(facts.size for facts in self.files.values())

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(sorted({name.partition(".")[0] for name in self.files}))

    @property
    def has_learnt(self) -> bool:
        """Whether its weights come from records, its own or those of others; False for newly made ones."""
        return self.step > 0 or any(name in self.provenance for name in _WEIGHTS_FROM)

    @property
    def created(self) -> datetime:
        return datetime.fromisoformat(self.created_at)

    def render(self) -> bytes:
        """Return the file's bytes, without an empty field that earlier versions do not know."""
        body = asdict(self)
        if self.golden is None:
            del body["golden"]
        return seal({"format": FORMAT, **body})


def read_manifest(folder: Path, number: int) -> Manifest:
    """Read the manifest in this folder, which must be that of `number`; CorruptError or NewerFormatError otherwise."""
    path = folder / FILE_NAME
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise CorruptError(f"{FILE_NAME} cannot be read: {error.strerror}") from error
    return parsed_manifest(raw, number, str(path))


def parsed_manifest(raw: bytes, number: int, path: str) -> Manifest:
    """Return the manifest that these bytes are; `path` says to people where they are from."""
    try:
        body = unseal(raw)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{FILE_NAME} is not what was written: {error}") from error
    # Before the spelling and the fields: only the seal is the same in every version of the format.
    if isinstance(body.get("format"), int) and body["format"] > FORMAT:
        raise NewerFormatError(
            f"{path} has format {body['format']}, and this millrace reads up to {FORMAT}: run the version that wrote it"
        )
    if not spelt_as_sealed(raw):
        raise CorruptError(f"{FILE_NAME} is not what was written: its spelling differs")
    manifest = _parse(body)
    if manifest.number != number:
        raise CorruptError(f"{FILE_NAME} is that of checkpoint {manifest.number}")
    return manifest


def _parse(body: Mapping[str, Any]) -> Manifest:
    try:
        files = {name: FileFacts(int(facts["size"]), str(facts["sha256"])) for name, facts in body["files"].items()}
        made: dict[str, Any] = {
            "files": files,
            "ancestors": tuple(body["ancestors"]),
            "measured": Measured.parse(body.get("measured")),
            "golden": GoldenScores.parse(body.get("golden")),
        }
        manifest = Manifest(**{name: body[name] for name in Manifest.__dataclass_fields__ if name not in made}, **made)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptError(f"{FILE_NAME} lacks or misspells a field: {error}") from error
    # A name out of a manifest becomes a path, and must not lead out of the folder.
    strange = [name for name in files if not _PART_FILE.fullmatch(name)]
    if strange:
        raise CorruptError(f"{FILE_NAME} names a file that no part could have: {strange[0]!r}")
    return manifest
