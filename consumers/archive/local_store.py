"""An archive in a folder: shards are written beside their final names, synced, and renamed.

Owns the file that a draft writes. Runs on any thread.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.consumers.archive.archive_lock import ArchiveLock
from millrace.consumers.archive.archive_store import Wait
from millrace.consumers.archive.shard_names import facts_name
from millrace.consumers.durable_files import FileFacts, complaint, replace_durably, sync_file, sync_folder
from millrace.consumers.errors import ConfigError
from millrace.consumers.failpoints import failpoint


@dataclass(frozen=True, slots=True)
class LocalStore:
    """The files below a folder."""

    folder: Path

    def path(self, key: str) -> str:
        """Return the path of a file."""
        return str(self.folder / key)

    def room(self) -> Path:
        """Return the folder itself."""
        return self.folder

    def folders(self, key: str) -> list[str]:
        """Return the names of the folders in a folder, in no order."""
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
        _make_folders(self.folder, path.parent)
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
            with os.scandir(self.folder / key) as found:
                return list(found)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise ConfigError(f"archive.path: {self.folder / key} cannot be read: {error.strerror}") from error


class LocalDraft:
    """A file under a temporary name, which is renamed at the end."""

    def __init__(self, folder: Path, path: Path, handle: int) -> None:
        self._folder, self._path, self._handle = folder, path, handle

    @property
    def handle(self) -> int:
        """The descriptor of the file."""
        return self._handle

    def seal(self) -> None:
        """Sync what was written."""
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
        """Remove the file."""
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


def _make_folders(root: Path, home: Path) -> None:
    """Make the folder of a partition, and its name durable."""
    for folder in (root, home.parent, home):
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            sync_folder(folder.parent)
