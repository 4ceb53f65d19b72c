"""Publishing one checkpoint, in the order of durability.

Owns the folder `.saving-<number>-<term>` until it is renamed; runs on the checkpoint writer's thread.

1. The caller has copied the state between two calls.
2. Each file is written under the temporary folder, hashed, and synced.
3. Dead letters are acknowledged (`before_manifest`), the save is not cancelled (`gate`), the term is still the
   greatest; then the manifest is written and synced, the temporary folder is synced, and the journal gets its segment
   (`before_publishing`).
4. The folder gets its number, and the parent folder is synced. The term is checked again: a writer that finds itself
   passed here announces nothing.
5. The store calls `on_durable`.
6. The store prunes.

A save that fails (a full disk, a cancellation, a name that cannot be synced) leaves nothing behind. A process that dies
leaves a temporary folder, which the next writer removes.
"""

import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path

from millrace.consumers.durable_files import FileFacts, is_full, sync_folder, write_durably
from millrace.consumers.errors import MillraceError
from millrace.consumers.failpoints import failpoint
from millrace.training.checkpoints.folder import Lineage
from millrace.training.checkpoints.lease import FolderLease
from millrace.training.checkpoints.manifest import FILE_NAME, Manifest, SaveRequest
from millrace.training.errors import CheckpointError, NoRoomError

log = logging.getLogger(__name__)


FileSource = Callable[[Path], FileFacts]
"""Puts one file under the path that it is given, durably."""


def wall_clock() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpublishedCheckpoint:
    """A checkpoint that is about to be written."""

    number: int
    request: SaveRequest
    ancestors: tuple[int, ...]
    files: Mapping[str, FileSource]
    created: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveGates:
    """What is called on the way of a save; what one of them raises ends it."""

    before_manifest: Callable[[SaveRequest], None]
    """Returns when the dead letters before the request's positions are acknowledged."""
    passing: Callable[[], None]
    """Raises where the save was cancelled; afterwards it cannot be."""
    before_publishing: Callable[[SaveRequest, Manifest], None]
    """Called last, with the manifest that gets its number next."""


def publish_draft(writer: FolderLease, draft: UnpublishedCheckpoint, gates: SaveGates) -> Manifest:
    """Write a checkpoint, and return when it is durable.

    Raises CheckpointError where it could not be made durable, NoRoomError where the volume is full, and PassedError
    where another writer has taken over.
    """
    temporary, published = writer.folder.saving(draft.number, writer.term), writer.folder.checkpoint(draft.number)
    renamed = False
    try:
        failpoint("save.before_data")
        files = _write_data(temporary, draft, writer.term)  # (2)
        failpoint("save.after_data")
        # The longest wait comes first: the two checks after it notice a cancellation or a takeover during the wait.
        gates.before_manifest(draft.request)  # (3)
        gates.passing()
        writer.check()
        failpoint("save.before_manifest")
        manifest = _write_manifest(temporary, draft, writer.term, files)
        failpoint("save.after_manifest")
        gates.before_publishing(draft.request, manifest)
        temporary.rename(published)  # (4)
        renamed = True
        # Until the parent is synced, a loss of power may take the name back.
        sync_folder(writer.folder.checkpoints)
        writer.check()
        failpoint("save.after_rename")
    except MillraceError:
        # A writer passed after the rename withdraws nothing: the fence keeps its checkpoint from being loaded.
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if _is_still_writer(writer) and renamed:
            _withdraw(published, temporary)
        raise (NoRoomError if is_full(error) else CheckpointError)(
            f"checkpoint {draft.number} could not be written below {writer.folder.root}: {error.strerror}; "
            "nothing of it is kept, and the next save tries again"
        ) from error
    return manifest


def _is_still_writer(writer: FolderLease) -> bool:
    """Return whether this process still holds the folder; False where the disk does not tell.

    Raises PassedError where another writer has taken over: it removes what this one was writing, and may resume from
    what this one published, so nothing may be withdrawn.
    """
    try:
        writer.check()
    except OSError as error:
        log.error("it is not known whether another writer has taken over: %s", error)  # noqa: TRY400 - one line
        return False
    return True


def _withdraw(published: Path, temporary: Path) -> None:
    """Take back a checkpoint that has its name and may not be durable; it was not announced, so no start may use it."""
    try:
        published.rename(temporary)
    except OSError as error:
        log.error("%s could not be taken back, and a restart may find it: %s", published, error)  # noqa: TRY400 - one line
    else:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_data(temporary: Path, draft: UnpublishedCheckpoint, term: int) -> dict[str, FileFacts]:
    if temporary.exists():  # left by a save of this process that failed with an unforeseen error
        shutil.rmtree(temporary)
    temporary.mkdir()
    write_durably(temporary / Lineage(draft.request.parent, term).file_name, [])
    return {name: source(temporary / name) for name, source in draft.files.items()}


def _write_manifest(
    temporary: Path, draft: UnpublishedCheckpoint, term: int, files: Mapping[str, FileFacts]
) -> Manifest:
    request, measured, golden = draft.request, draft.request.measured, draft.request.golden
    manifest = Manifest(
        number=draft.number,
        parent=request.parent,
        ancestors=draft.ancestors,
        term=term,
        incarnation=request.incarnation,
        step=request.step,
        reason=request.reason,
        ordered_by=request.ordered_by,
        note=request.note,
        created_at=draft.created.astimezone(UTC).isoformat(timespec="milliseconds"),
        files=files,
        positions={str(partition): position for partition, position in sorted(request.positions.items())},
        provenance=dict(request.provenance),
        # JSON has no NaN and no infinity, and the seal refuses both.
        metrics=_finite_values(request.metrics),
        variables=None,
        measured=measured and replace(measured, baseline=_finite_values(measured.baseline)),
        golden=golden and replace(golden, values=_finite_values(golden.values)),
    )
    write_durably(temporary / FILE_NAME, [manifest.render()])
    sync_folder(temporary)
    return manifest


def _finite_values(values: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if isfinite(value)}
