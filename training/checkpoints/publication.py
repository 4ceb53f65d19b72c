"""Publishing one checkpoint, in the order of durability.

Owns the folder `.saving-<number>-<term>` until it is renamed; runs on the checkpoint writer's thread.

1. The caller has copied the state between two calls.
2. Each file is written under the temporary folder, hashed, and synced.
3. Dead letters are acknowledged (`before_manifest`), nobody has cancelled (`gate`), the term is still the greatest;
   then the manifest, synced, and the temporary folder, synced.
4. The folder gets its number, and the parent folder is synced. The term is looked at again: a writer that finds itself
   passed here tells nobody.
5. `on_durable`, by the store.
6. Pruning, by the store.

What fails (a full disk, a cancelled save, a name that cannot be synced) leaves nothing behind; what dies leaves a
temporary folder, which the next writer removes.
"""

import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path

from consumers.errors import MillraceError
from consumers.failpoints import failpoint
from training.checkpoints.files import FileFacts, sync_folder, write_durably
from training.checkpoints.folder import Lineage
from training.checkpoints.lease import FolderLease
from training.checkpoints.manifest import FILE_NAME, Manifest, SaveRequest
from training.errors import CheckpointError

log = logging.getLogger(__name__)
FileSource = Callable[[Path], FileFacts]
"""Puts one file under the path that it is given, durably."""


def wall_clock() -> datetime:
    """Now, in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpublishedCheckpoint:
    """A checkpoint that is about to be written."""

    number: int
    order: SaveRequest
    ancestors: tuple[int, ...]
    files: Mapping[str, FileSource]
    created: datetime


def publish_draft(
    writer: FolderLease,
    draft: UnpublishedCheckpoint,
    before_manifest: Callable[[SaveRequest], None],
    gate: Callable[[], None],
) -> Manifest:
    """Write it, and return when it is durable. CheckpointError when it could not be, PassedError when we were."""
    temporary, published = writer.folder.saving(draft.number, writer.term), writer.folder.checkpoint(draft.number)
    renamed = False
    try:
        failpoint("save.before_data")
        files = _write_data(temporary, draft, writer.term)  # (2)
        failpoint("save.after_data")
        before_manifest(draft.order)  # (3)
        gate()
        writer.check()
        failpoint("save.before_manifest")
        manifest = _write_manifest(temporary, draft, writer.term, files)
        failpoint("save.after_manifest")
        temporary.rename(published)  # (4)
        renamed = True
        sync_folder(writer.folder.checkpoints)
        writer.check()
        failpoint("save.after_rename")
    except MillraceError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if _still_ours(writer) and renamed:
            _withdraw(published, temporary)
        raise CheckpointError(
            f"checkpoint {draft.number} could not be written below {writer.folder.root}: {error.strerror}; "
            "nothing of it is kept, and the next save tries again"
        ) from error
    return manifest


def _still_ours(writer: FolderLease) -> bool:
    """PassedError where another has taken over: it removes what we were writing, and may go on from what we published.

    On a disk that does not even tell, nothing may be taken back.
    """
    try:
        writer.check()
    except OSError as error:
        log.error("whether somebody has taken over cannot be told: %s", error)  # noqa: TRY400 - one line
        return False
    return True


def _withdraw(published: Path, temporary: Path) -> None:
    """Take back what was given its name and may not be durable: nobody was told, so no restart may find it."""
    try:
        published.rename(temporary)
    except OSError as error:
        log.error("%s could not be taken back, and a restart may find it: %s", published, error)  # noqa: TRY400 - one line
    else:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_data(temporary: Path, draft: UnpublishedCheckpoint, term: int) -> dict[str, FileFacts]:
    if temporary.exists():  # left by a save of our own that failed in the middle of an unforeseen error
        shutil.rmtree(temporary)
    temporary.mkdir()
    write_durably(temporary / Lineage(draft.order.parent, term).file_name, [])
    return {name: source(temporary / name) for name, source in draft.files.items()}


def _write_manifest(
    temporary: Path, draft: UnpublishedCheckpoint, term: int, files: Mapping[str, FileFacts]
) -> Manifest:
    order = draft.order
    manifest = Manifest(
        number=draft.number,
        parent=order.parent,
        ancestors=draft.ancestors,
        term=term,
        incarnation=order.incarnation,
        step=order.step,
        reason=order.reason,
        ordered_by=order.ordered_by,
        note=order.note,
        created_at=draft.created.astimezone(UTC).isoformat(timespec="milliseconds"),
        files=files,
        positions={str(partition): position for partition, position in sorted(order.positions.items())},
        provenance=dict(order.provenance),
        metrics={name: float(value) for name, value in order.metrics.items() if isfinite(value)},
        variables=None,
    )
    write_durably(temporary / FILE_NAME, [manifest.render()])
    sync_folder(temporary)
    return manifest
