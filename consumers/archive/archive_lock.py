"""The lock of an archive in a folder: one process writes into it at a time.

Owns `.lock` in the folder, held by flock, so it is free as soon as its process is gone. Readers need no lock: a shard
never changes. What a killed process has left is removed by the next one that holds the lock.
"""

import fcntl
import os
import socket
from pathlib import Path
from types import TracebackType
from typing import Self

from millrace.consumers.durable_files import is_full
from millrace.consumers.errors import ArchiveBusyError, ConfigError

_NAME = ".lock"


class ArchiveLock:
    """The right to write into an archive's folder, while it is entered."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._handle = -1

    def __enter__(self) -> Self:
        """Take the folder. Raises ArchiveBusyError, or ConfigError where the folder cannot be written."""
        path = self._folder / _NAME
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
        self._name_holder()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the folder back."""
        os.close(self._handle)
        self._handle = -1

    def _name_holder(self) -> None:
        holder = f"process {os.getpid()} on {socket.gethostname()}"
        try:
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, holder.encode(), 0)
        except OSError as error:
            # The lock holds without its contents, which only describe the holder.
            if not is_full(error):
                raise
