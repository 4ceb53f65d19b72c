"""The store of an archive's place: in a folder, shards are written beside their final names, synced, and renamed.

What a folder does not need is not imported for it. A draft owns the file that it writes. Runs on any thread.
"""

import fcntl
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from millrace.consumers.archive.archive_store import ArchiveStore, Place, Wait
from millrace.consumers.archive.shard_names import facts_name
from millrace.consumers.durable_files import FileFacts, complaint, is_full, replace_durably, sync_file, sync_folder
from millrace.consumers.errors import ArchiveBusyError, ConfigError
from millrace.consumers.failpoints import failpoint

_LOCK = ".lock"


class ArchiveLock:
    """The right to write into an archive's folder, while it is entered: one process has it at a time.

    Owns `.lock` in the folder, held by flock, so it is free as soon as its process is gone. Readers need no lock: a
    shard never changes. What a killed process has left is removed by the next one that holds the lock.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._handle = -1

    def __enter__(self) -> Self:
        """Take the folder. Raises ArchiveBusyError, or ConfigError where the folder cannot be written."""
        path = self._folder / _LOCK
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(f"archive.path: cannot write to {self._folder}: {error.strerror}") from error
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._handle, 200, 0).decode(errors="replace").strip() or "another process"
            self.__exit__(None, None, None)
            raise ArchiveBusyError(
                f"{self._folder} is written by {holder}: stop that archiver first, or give this one another "
                "archive.path"
            ) from None
        # The lock holds without its contents, which only describe the holder.
        me = f"process {os.getpid()} on {socket.gethostname()}"
        try:
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, me.encode(), 0)
        except OSError as error:
            if not is_full(error):
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the folder back."""
        os.close(self._handle)
        self._handle = -1


@dataclass(frozen=True, slots=True)
class LocalStore:
    """The files below a folder."""

    folder: Path

    def path(self, key: str) -> str:
        return str(self.folder / key)

    def room(self) -> Path:
        return self.folder

    def folders(self, key: str) -> list[str]:
        return [entry.name for entry in self._entries(key) if entry.is_dir()]

    def files(self, key: str) -> list[str]:
        """Return the names of the files in a folder, in no order."""
        # Nothing but files is in the folder of a partition, and a look at each would cost as much as the listing.
        return [entry.name for entry in self._entries(key)]

    def read(self, keys: Sequence[str]) -> list[bytes | OSError]:
        """Return the contents of small files, or why one cannot be read."""
        return [_read(self.folder / key) for key in keys]

    def open(self, key: str, size: int) -> Any:  # noqa: ARG002 - the system knows it
        """Open a file for reading, without the interpreter's lock."""
        return pa.OSFile(str(self.folder / key))

    def complaint(self, key: str, expected: FileFacts, *, deep: bool) -> str | None:
        """Describe what is wrong with a file; None where nothing is."""
        return complaint(self.folder / key, expected, deep=deep)

    def draft(self, key: str) -> "LocalDraft":
        """Begin a shard under a temporary name."""
        path = self.folder / key
        # Make the folder of the partition, and its name durable.
        for folder in (self.folder, path.parent.parent, path.parent):
            if not folder.is_dir():
                folder.mkdir(parents=True, exist_ok=True)
                sync_folder(folder.parent)
        return LocalDraft(self.folder, path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666))

    def remove(self, keys: Sequence[str]) -> None:
        """Remove files durably, in this order."""
        for key in keys:
            (self.folder / key).unlink(missing_ok=True)
        for home in {(self.folder / key).parent for key in keys}:
            sync_folder(home)

    def lock(self, wait: Wait) -> ArchiveLock:  # noqa: ARG002 - the system knows at once whether another holds it
        """Return the right to write into this folder, while it is entered."""
        return ArchiveLock(self.folder)

    def _entries(self, key: str) -> list["os.DirEntry[str]"]:
        try:
            return entries_of(self.folder / key)
        except OSError as error:
            raise ConfigError(f"archive.path: {self.folder / key} cannot be read: {error.strerror}") from error


def entries_of(folder: Path) -> list["os.DirEntry[str]"]:
    """Return what is in a folder; nothing where there is none."""
    try:
        with os.scandir(folder) as found:
            return list(found)
    except (FileNotFoundError, NotADirectoryError):
        return []


class LocalDraft:
    """A file under a temporary name, which is renamed at the end."""

    def __init__(self, folder: Path, path: Path, handle: int) -> None:
        self._folder, self._path, self._handle = folder, path, handle

    @property
    def handle(self) -> int:
        return self._handle

    def seal(self) -> None:
        sync_file(self._handle)
        self._close()

    def describe(self, key: str, facts: bytes) -> None:
        """Write, sync and rename the JSON file, and sync the folder."""
        replace_durably(self._folder / facts_name(key), facts)

    def publish(self, key: str, written: FileFacts) -> None:  # noqa: ARG002 - a rename replaces nothing: it is locked
        """Rename the file, and sync the folder."""
        self._path.replace(self._folder / key)
        failpoint("archive.after_rename")
        sync_folder(self._path.parent)

    def discard(self) -> None:
        self._close()
        self._path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _read(path: Path) -> bytes | OSError:
    try:
        return path.read_bytes()
    except OSError as error:
        return error


def store_at(place: Place) -> ArchiveStore:
    """Return the store of an archive. Raises ConfigError where a URL needs a package that is not installed."""
    if isinstance(place, Path):
        return LocalStore(place)
    return _object_store(place)


@lru_cache
def _object_store(url: str) -> ArchiveStore:
    # One for each URL, because it knows whether this process holds the archive's lock.
    from millrace.consumers.archive.object_store import ObjectStore  # noqa: PLC0415 - loads fsspec, which a folder never needs

    return ObjectStore(url)
