"""Durable files: written under a temporary name, hashed and synced in one go; compared with what was written.

Owns how bytes reach the disk; runs on any thread. Full disks and other failures are plain OSErrors here. Nothing is
left open.
"""

import errno
import fcntl
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

Bytes = bytes | memoryview
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What a file must hold."""

    size: int
    sha256: str


def write_durably(path: Path, chunks: Iterable[Bytes], *, mode: int = 0o666) -> FileFacts:
    """Write a new file, hash what is written, and sync it. Its entry in the folder is synced by `sync_folder`.

    `mode` is who may read it, less what the process's umask takes away.
    """
    digest, size = hashlib.sha256(), 0
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        for chunk in chunks:
            digest.update(chunk)
            size += file.write(chunk)
        file.flush()
        sync_file(file.fileno())
    return FileFacts(size, digest.hexdigest())


def replace_durably(path: Path, raw: bytes, *, mode: int = 0o666) -> None:
    """Write a small file under its name in one step: readers see the old one or the new one."""
    temporary = path.with_name(f".{path.name}.new-{os.getpid()}")
    temporary.unlink(missing_ok=True)
    try:
        write_durably(temporary, [raw], mode=mode)
        # Synced before it gets its name, so that a loss of power leaves the old file or the new one under it.
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync_file(handle)
    finally:
        os.close(handle)


def complaint(path: Path, expected: FileFacts, *, deep: bool) -> str | None:
    """Describe what is wrong with a file; None where nothing is. Only a deep look reads its contents."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != expected.size:
                return f"{path.name} holds {size} bytes instead of {expected.size}"
            if deep and hashlib.file_digest(file, "sha256").hexdigest() != expected.sha256:
                return f"{path.name} is not what was written: its SHA-256 differs"
    except FileNotFoundError:
        return f"{path.name} is missing"
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror}"
    return None


def is_full(error: OSError) -> bool:
    """Return whether this is the error of a full disk, or of a quota that is used up."""
    return error.errno in _FULL


def full_disk_in(words: str) -> OSError | None:
    """Return the error of a full disk, or of a used-up quota, that the words of a library or a program tell of."""
    return next((OSError(code, os.strerror(code)) for code in _FULL if os.strerror(code) in words), None)


def sync_file(handle: int) -> None:
    """Make what was written to an open file durable."""
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is None:
        os.fsync(handle)
    else:  # macOS: fsync alone leaves the bytes in the drive's cache
        fcntl.fcntl(handle, full_sync)
