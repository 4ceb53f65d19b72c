"""Where the mirror is: a folder, or a place in an object store (fsspec, by the door of the archive).

What a folder does not need is not imported for it. Runs on any thread. Failures are OSErrors here; what an object store
or the way to it has failed in is an ArchiveAwayError, which is one too.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from millrace.consumers.archive.stores import LocalStore, entries_of
from millrace.consumers.durable_files import FileFacts, replace_durably, sync_folder, write_durably

SETTING = "checkpoints.mirror"
_PIECE = 1 << 20


class MirrorTarget(Protocol):
    """The files of one name's mirror, by key."""

    def path(self, key: str) -> str:
        """Return the path or the URL of a file, for people."""

    def folders(self, key: str) -> Sequence[str]:
        """Return the names of the folders in a folder, in no order; none where it is not there."""

    def files(self, key: str) -> Sequence[str]:
        """Return the names of the files in a folder, in no order; none where it is not there."""

    def read(self, keys: Sequence[str]) -> Sequence[bytes | OSError]:
        """Return the contents of small files, or why one cannot be read."""

    def open(self, key: str, size: int) -> Any:
        """Open a file of a known size for reading."""

    def complaint(self, key: str, expected: FileFacts, *, deep: bool) -> str | None:
        """Describe what is wrong with a file; None where nothing is. Only a deep look reads its contents."""

    def put(self, key: str, raw: bytes) -> None:
        """Put a small file in one step in place of what is there."""

    def create(self, key: str, raw: bytes) -> None:
        """Put a small file in one step where none is; FileExistsError where one is."""

    def put_file(self, key: str, path: str, *, replace: bool = False) -> None:
        """Put a local file; with `replace` in place of what is there."""

    def remove(self, keys: Sequence[str]) -> None:
        """Remove files, in this order; those that are gone already are passed over."""


@dataclass(frozen=True, slots=True)
class FolderTarget(LocalStore):
    """A mirror in a folder, as on a volume of another machine."""

    def put(self, key: str, raw: bytes) -> None:
        """Write a small file durably, and rename it."""
        replace_durably(self._made(key), raw)

    def create(self, key: str, raw: bytes) -> None:
        """Write a small file durably, and link it to its name, which only one process can do."""
        path = self._made(key)
        temporary = path.with_name(f".{path.name}.new-{os.getpid()}")
        temporary.unlink(missing_ok=True)
        try:
            write_durably(temporary, [raw])
            os.link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)

    def put_file(self, key: str, path: str, *, replace: bool = False) -> None:
        """Copy a local file durably."""
        target = self._made(key)
        if replace:
            target.unlink(missing_ok=True)
        with Path(path).open("rb") as file:
            write_durably(target, iter(lambda: file.read(_PIECE), b""))
        sync_folder(target.parent)

    def remove(self, keys: Sequence[str]) -> None:
        """Remove files durably, and the folders that are empty then."""
        there = [key for key in keys if (self.folder / key).exists()]
        LocalStore.remove(self, there)
        for home in {(self.folder / key).parent for key in there}:
            # Another file may be in it; an object store has no empty folders.
            with suppress(OSError):
                home.rmdir()

    def _entries(self, key: str) -> list["os.DirEntry[str]"]:
        # An archive's folder that cannot be read is an error in archive.path; a mirror may be away.
        return entries_of(self.folder / key)

    def _made(self, key: str) -> Path:
        path = self.folder / key
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            sync_folder(path.parent.parent)
        return path


def target_at(place: Path | str, name: str) -> MirrorTarget:
    """Return the mirror of a name. Raises ConfigError where a URL needs a package that is not installed."""
    if isinstance(place, Path):
        return FolderTarget(place / name)
    from millrace.consumers.archive.object_store import ObjectStore  # noqa: PLC0415 - loads fsspec, which a folder never needs

    return ObjectStore(f"{place}/{name}", SETTING)
