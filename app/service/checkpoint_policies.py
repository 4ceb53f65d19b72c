"""When to save and which checkpoints stay, by the settings: for the trainer, and for a rewind while none runs."""

import logging
from dataclasses import replace

from millrace.app.settings import Settings
from millrace.consumers.rounded import rounded_size
from millrace.training.checkpoints.folder import Folder
from millrace.training.checkpoints.lease import FolderLease
from millrace.training.checkpoints.policies import (
    EverySeconds,
    EverySteps,
    KeepAny,
    KeepBest,
    KeepHourly,
    KeepLast,
    KeepPolicy,
    SavePolicy,
)
from millrace.training.checkpoints.store import CheckpointStore, StoreOptions
from millrace.training.history.journal import Journal

log = logging.getLogger(__name__)


def save_policy(settings: Settings) -> SavePolicy:
    """Return the policy that `checkpoints.every` describes."""
    every = settings.checkpoints.every
    return EverySeconds(every.seconds) if every.seconds is not None else EverySteps(every.steps or 1)


def keep_policy(settings: Settings) -> KeepPolicy:
    """Return the policy that `checkpoints.keep` describes."""
    keep = settings.checkpoints.keep
    return KeepAny([KeepLast(keep.last), KeepHourly(keep.hourly), KeepBest(keep.best)])


def store_options(settings: Settings, folder: Folder) -> StoreOptions:
    """Return how a writer of checkpoints keeps them: some of them, and in deterministic mode a journal of all."""
    options = StoreOptions(keep=keep_policy(settings))
    return replace(options, before_publishing=Journal(folder).append) if settings.training.deterministic else options


def shortage(settings: Settings, store: CheckpointStore, state_bytes: int) -> str | None:
    """Say how far the volume falls short of what `checkpoints.keep` asks for in the long run; None where it does not.

    There must be room for what it keeps, the beginning, and the checkpoint that is being written.
    """
    keep = settings.checkpoints.keep
    wanted = keep.last + keep.hourly + keep.best + 2
    _, together = store.room()
    if together >= wanted * state_bytes:
        return None
    return (
        f"checkpoints.keep asks for up to {wanted} checkpoints of {rounded_size(state_bytes)}, with the beginning and "
        f"the one being written, and the volume has room for {together // max(1, state_bytes)}: saves will fail when "
        "it is full; keep fewer, or make the volume larger"
    )


def warn_of_shortage(settings: Settings, store: CheckpointStore, state_bytes: int) -> None:
    """Log a warning where the volume falls short of what `checkpoints.keep` asks for."""
    if (short := shortage(settings, store, state_bytes)) is not None:
        log.warning("%s", short)


def remove_some(settings: Settings, lease: FolderLease) -> bool:
    """Remove what may go next on a volume that is too full to begin a term; return whether anything was removed."""
    left = lease.folder.temporaries()
    # Opening the store for writing removes what dead writers left half written.
    store = CheckpointStore(lease.folder, lease, StoreOptions(keep=keep_policy(settings)))
    return lease.folder.temporaries() != left or store.remove_some()
