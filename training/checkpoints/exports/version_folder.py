"""The folder of a model's exports, a numbered folder a version: published in one rename, listed, verified, pruned.

Owns `<export.path>/<name>`, which is what TF Serving calls a model's base path: whatever has a number for a name there
is whole. Runs in the process that exports, and anywhere for reading. Publishing and pruning need the folder's lock,
which dies with its process; what a killed one left is removed by the next that holds it.

    <number>/                     millrace.json and the files that it names
    .tmp-<number>-<random>/       half written
    .gone-<number>-<random>/      half removed
    .lock                         held by the one process that writes here

1. The caller writes the files below the temporary name. 2. Each is hashed and synced; so is the manifest, and every
folder. 3. The folder gets its number. 4. The parent is synced.

`millrace.json`, the manifest, says which checkpoint it is, what goes in and comes out, and how it was proven. It has
format 1, and is a sealed document as a checkpoint's manifest is. Fields are only ever added within a version, and a
reader ignores those that it does not know.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from millrace.consumers.durable_files import FileFacts, complaint, is_full, sync_file, sync_folder, write_durably
from millrace.consumers.errors import ConfigError
from millrace.consumers.failpoints import failpoint
from millrace.training.checkpoints.sealed_json import seal, unseal
from millrace.training.errors import CorruptError, ExportBusyError, ExportError, MissingExportError, NewerFormatError

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
class ExportMemory:
    """What a version carries of the keys of `windows`."""

    keys: int
    """Keys whose last records are in the version, over all partitions."""
    bytes: int
    """The size of its files."""
    left_out: int
    """Keys of the checkpoint that are not in the version, because of export.memory."""


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
    memory: ExportMemory | None = None
    """What it carries for servers with serve.memory; None without `windows`."""


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
    if (memory := body.get("memory")) is not None:
        made["memory"] = ExportMemory(**{name: int(memory[name]) for name in ExportMemory.__dataclass_fields__})
    asked = ExportManifest.__dataclass_fields__.keys() - made.keys() - {"onnx", "memory"}
    plain: dict[str, Any] = {name: body[name] for name in asked}
    # A name out of a manifest becomes a path, and must not lead out of the folder.
    for name in files:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"{name!r} leads out of the folder")
    return ExportManifest(**plain, **made)


def _proof(body: Mapping[str, Any]) -> ExportProof:
    return ExportProof(**{name: body[name] for name in ExportProof.__dataclass_fields__})


log = logging.getLogger(__name__)
_VERSION = re.compile(r"0|[1-9]\d{0,17}")
_TEMPORARY = re.compile(r"\.(?:tmp|gone)-\d+-[0-9a-f]{8}")
_POLL_S = 0.05
_LONGEST_HOLDER = 200


@dataclass(frozen=True, slots=True)
class VersionFolder:
    """The versions of one model."""

    root: Path

    @property
    def holder(self) -> str:
        """Who holds the pins of the checkpoints that are exported to this folder."""
        return f"export to {self.root}"[-_LONGEST_HOLDER:]

    def version(self, number: int) -> Path:
        """Return the folder of a published version."""
        return self.root / str(number)

    def numbers(self) -> list[int]:
        """Return the numbers of all published versions, ascending."""
        names = [entry.name for entry in self._entries() if entry.is_dir()]
        return sorted(int(name) for name in names if _VERSION.fullmatch(name))

    def leftovers(self) -> list[str]:
        """Return the names of what is half written or half removed, by a process that works or was killed."""
        return sorted(entry.name for entry in self._entries() if _TEMPORARY.fullmatch(entry.name))

    def manifest(self, number: int) -> ExportManifest:
        """Return the manifest of a version; its other files are not read."""
        if not self.version(number).is_dir():
            known = ", ".join(map(str, self.numbers())) or "none"
            raise MissingExportError(f"there is no export {number} in {self.root}; there are: {known}")
        found = read_export(self.version(number))
        if found.number != number:
            raise CorruptError(f"{self.version(number) / FILE_NAME} is that of version {found.number}")
        return found

    def problems(self, number: int) -> list[str]:
        """Read and hash every file of a version; return what is wrong with it, nothing where all of it is whole."""
        try:
            manifest = self.manifest(number)
        except CorruptError as error:
            return [str(error)]
        folder = self.version(number)
        found = (complaint(folder / name, facts, deep=True) for name, facts in manifest.files.items())
        beyond = _files(folder) - manifest.files.keys() - {FILE_NAME}
        return [text for text in found if text is not None] + [f"{name} is not of the export" for name in beyond]

    @contextlib.contextmanager
    def writing(self, wait_s: float = 0.0) -> Iterator[None]:
        """Hold the folder's lock, and remove what killed processes left; ExportBusyError where another one holds it."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.root / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            self._lock(handle, wait_s)
            for name in self.leftovers():
                log.info("removing %s, left by an export that ended in the middle", self.root / name)
                shutil.rmtree(self.root / name, ignore_errors=True)
            yield
        finally:
            os.close(handle)

    def draft_folder(self, number: int) -> Path:
        """Return a name below which a version may be written; nothing is there yet."""
        return self.root / f".tmp-{number}-{secrets.token_hex(4)}"

    def publish(self, written: Path, draft: ExportDraft) -> ExportManifest:
        """Give what was written its number; return when it is durable. Needs the lock. Nothing is kept if it fails."""
        try:
            files = {name: _synced(written / name) for name in sorted(_files(written))}  # (2)
            failpoint("export.after_files")
            manifest = completed(draft, files)
            write_durably(written / FILE_NAME, [manifest.render()])
            for folder in (written, *(path for path in written.rglob("*") if path.is_dir())):
                sync_folder(folder)
            failpoint("export.before_rename")
            self._name(written, draft.number)
        except OSError as error:
            shutil.rmtree(written, ignore_errors=True)
            raise self.not_written(draft.number, error) from error
        return manifest

    def not_written(self, number: int, error: OSError) -> ExportError:
        """Return the error that says why an export could not be written, and the way out."""
        way_out = "make room" if is_full(error) else "see that this user may write there"
        return ExportError(
            f"export {number} could not be written below {self.root}: {error.strerror}; {way_out}; nothing "
            "of it is kept, and the next export tries again"
        )

    def prune(self, keep: int, spared: Collection[int] = ()) -> list[int]:
        """Remove all but the newest `keep` and those that are spared; return the numbers. Needs the lock."""
        removed = []
        for number in self.numbers()[: -keep or None]:
            if number not in spared:
                self._remove(number)
                removed.append(number)
        return removed

    def _name(self, written: Path, number: int) -> None:
        """Give what was written its number, or take the number back."""
        written.rename(self.version(number))  # (3)
        failpoint("export.after_rename")
        try:
            sync_folder(self.root)  # (4)
        except OSError:
            self.version(number).rename(written)
            raise

    def _remove(self, number: int) -> None:
        # Renamed, and the new name synced, before the first file goes: no version is ever half there.
        doomed = self.root / f".gone-{number}-{secrets.token_hex(4)}"
        self.version(number).rename(doomed)
        sync_folder(self.root)
        failpoint("export.before_files_go")
        shutil.rmtree(doomed, ignore_errors=True)

    def _entries(self) -> list[Path]:
        try:
            return [*self.root.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigError(f"export.path: cannot read {self.root}: {error.strerror}") from error

    def _lock(self, handle: int, wait_s: float) -> None:
        ends_at = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= ends_at:
                    raise ExportBusyError(
                        f"another process is exporting to {self.root}; wait until it has ended"
                    ) from None
                time.sleep(_POLL_S)
            except OSError as error:
                raise self._unwritable(error) from error
            else:
                return

    def _unwritable(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"export.path: cannot write to {self.root}: {error.strerror}; make it a folder that this user may write "
            "to, or name another one"
        )


def _files(folder: Path) -> set[str]:
    """Return the names of all files below a folder, as a manifest has them."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def _synced(path: Path) -> FileFacts:
    """Make a file that something else has written durable, and hash what it holds."""
    with path.open("rb") as file:
        sync_file(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileFacts(file.tell(), digest)
