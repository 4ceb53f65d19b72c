"""The manifest of an export: which checkpoint it is, what goes in and comes out, and how it was proven.

Owns the format, version 1; pure. It is a sealed document, as a checkpoint's manifest is. Fields are only ever added
within a version, and a reader ignores those that it does not know.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from millrace.consumers.durable_files import FileFacts
from millrace.training.checkpoints.sealed_json import seal, unseal
from millrace.training.errors import CorruptError, NewerFormatError

FORMAT = 1
FILE_NAME = "millrace.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSource:
    """The checkpoint that an export was made of."""

    number: int
    incarnation: int
    parent: int | None
    sha256: str
    """Of the checkpoint's `manifest.json`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportProof:
    """What a fresh process has shown before the export was published."""

    rows: int
    records: str
    """Where they came from: `last`, those before the checkpoint; `kept`, the sample beside it; or `made up`."""
    max_difference: float
    """Between the export's answers and the model's; 0 where all bits are equal."""
    tolerance: float
    """The greatest difference that rounding explains, relative to the answer where that is greater than 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportDraft:
    """What is known of an export before its files have names."""

    name: str
    number: int
    made_at: str
    """ISO 8601, UTC."""
    checkpoint: ExportSource
    positions: Mapping[str, Mapping[str, int]]
    """By topic and partition, the next offset."""
    records: int
    """The records that the model has learnt."""
    metrics: Mapping[str, float]
    """The live metrics when the checkpoint was made."""
    inputs: Mapping[str, Mapping[str, Any]]
    """By feature: dtype, shape; `ragged` where it comes as values and row splits; `classes` where texts are listed."""
    outputs: Mapping[str, Mapping[str, Any]]
    classes: Mapping[str, list[str]]
    """By output, the names of its classes."""
    config_sha256: str
    model_sha256: str
    schema_sha256: str
    millrace: str
    tensorflow: str
    keras: str
    proof: ExportProof
    onnx: ExportProof | None = None
    """What ONNX Runtime has shown of `model.onnx`; None where the version holds none."""
    formats: Mapping[str, ExportProof] = field(default_factory=dict)
    """What was shown of each format of the user's, by its name in `export.formats`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportManifest(ExportDraft):
    """The contents of `millrace.json`."""

    files: Mapping[str, FileFacts] = field(default_factory=dict)
    """By name within the version's folder."""

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(facts.size for facts in self.files.values())

    def body(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        files = {name: {"bytes": facts.size, "sha256": facts.sha256} for name, facts in self.files.items()}
        return {"format": FORMAT, **asdict(self), "files": files}

    def render(self) -> bytes:
        """Return the bytes of `millrace.json`."""
        return seal(self.body())


def completed(draft: ExportDraft, files: Mapping[str, FileFacts]) -> ExportManifest:
    """Return the manifest of a draft whose files are written."""
    return ExportManifest(**{name: getattr(draft, name) for name in ExportDraft.__dataclass_fields__}, files=files)


def read_export(folder: Path) -> ExportManifest:
    """Read the manifest in the folder of a version; CorruptError or NewerFormatError otherwise."""
    path = folder / FILE_NAME
    try:
        body = unseal(path.read_bytes())
    except OSError as error:
        raise CorruptError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{path} is not what was written: {error}") from error
    if isinstance(body.get("format"), int) and body["format"] > FORMAT:
        raise NewerFormatError(
            f"{path} has format {body['format']}, and this millrace reads up to {FORMAT}: run the version that wrote it"
        )
    try:
        return _parse(body)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptError(f"{path} lacks or misspells a field: {error}") from error


def _parse(body: Mapping[str, Any]) -> ExportManifest:
    source: dict[str, Any] = {name: body["checkpoint"][name] for name in ExportSource.__dataclass_fields__}
    files = {name: FileFacts(int(facts["bytes"]), str(facts["sha256"])) for name, facts in body["files"].items()}
    made: dict[str, Any] = {"checkpoint": ExportSource(**source), "proof": _proof(body["proof"]), "files": files}
    if (onnx := body.get("onnx")) is not None:
        made["onnx"] = _proof(onnx)
    # Earlier versions wrote none.
    made["formats"] = {str(name): _proof(proof) for name, proof in body.get("formats", {}).items()}
    asked = ExportManifest.__dataclass_fields__.keys() - made.keys() - {"onnx"}
    plain: dict[str, Any] = {name: body[name] for name in asked}
    # A name out of a manifest becomes a path, and must not lead out of the folder.
    for name in files:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"{name!r} leads out of the folder")
    return ExportManifest(**plain, **made)


def _proof(body: Mapping[str, Any]) -> ExportProof:
    return ExportProof(**{name: body[name] for name in ExportProof.__dataclass_fields__})
