"""Where the files of an archive are: the one seam between its shards and a folder, or a bucket of an object store.

`stores` keeps them in a folder, `object_store` behind a URL. Both hold files by
key (see `shard_names`), list without a cache, and make a shard part of the archive in one step, or not at all.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from millrace.consumers.durable_files import FileFacts

Place = Path | str
"""A folder, or the URL of one in an object store: what `archive.path` says."""
Wait = Callable[[float], bool]
"""Waits this many seconds; returns True at once where the process was asked to end."""


class ShardDraft(Protocol):
    """A shard that is being written, and is in no listing yet."""

    @property
    def handle(self) -> int:
        """The descriptor of the local file to write to."""

    def seal(self) -> None:
        """Take what was written as complete."""

    def describe(self, key: str, facts: bytes) -> None:
        """Make the shard's JSON file durable. It may be repeated after an error."""

    def publish(self, key: str, written: FileFacts) -> None:
        """Give the shard its name: from here on it is in the archive. It may be repeated after an error."""

    def discard(self) -> None:
        """Remove what was written, if it was not published."""


class ArchiveStore(Protocol):
    """The files of one archive. Runs on any thread.

    A missing file is a FileNotFoundError. Whatever an object store or the way to it has failed in is an
    ArchiveAwayError, and never one of damage.
    """

    def path(self, key: str) -> str:
        """Return the path or the URL of a file, for people."""

    def room(self) -> Path:
        """Return the local folder that must have room for what is being written."""

    def folders(self, key: str) -> Sequence[str]:
        """Return the names of the folders in a folder, in no order; none where it is not there. The root is ''."""

    def files(self, key: str) -> Sequence[str]:
        """Return the names of the files in a folder, in no order; none where it is not there."""

    def read(self, keys: Sequence[str]) -> Sequence[bytes | OSError]:
        """Return the contents of small files, or why one cannot be read."""

    def open(self, key: str, size: int) -> Any:
        """Open a file of a known size for reading, with `read` and `seek`, in a form that pyarrow reads fast."""

    def complaint(self, key: str, expected: FileFacts, *, deep: bool) -> str | None:
        """Describe what is wrong with a file; None where nothing is. Only a deep look reads its contents."""

    def draft(self, key: str) -> ShardDraft:
        """Begin a shard; `key` is its temporary place, where the store has one."""

    def remove(self, keys: Sequence[str]) -> None:
        """Remove files durably, in this order; those that are gone already are passed over."""

    def lock(self, wait: Wait) -> AbstractContextManager[object]:
        """Return the right to write into this archive, while it is entered. Entering raises ArchiveBusyError."""
