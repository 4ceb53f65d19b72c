"""Durable files: written, hashed and synced in one go; read and verified as the same bytes.

Owns how bytes reach the disk; runs on the checkpoint writer's thread, and on any thread that reads. Full disks and
other failures are plain OSErrors here. Nothing is left open.
"""

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from consumers.suggested_command import suggested_command
from training.errors import CorruptError, NoRoomError

Bytes = bytes | memoryview
_PIECE = 1 << 20
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# Errors of a file system that has no hard links, or no more for this file, or is not the one of the source.
_CANNOT_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS})


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
        _sync(file.fileno())
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


def link_durably(source: Path, expected: FileFacts, target: Path) -> FileFacts:
    """Give a file that was verified a second name, or a copy where the file system has no links."""
    try:
        # A link needs no sync of the contents: they are durable under their first name.
        os.link(source, target)
    except OSError as error:
        if error.errno not in _CANNOT_LINK:
            raise
        with source.open("rb") as file:
            copied = write_durably(target, iter(lambda: file.read(_PIECE), b""))
        if copied != expected:
            verify = suggested_command("checkpoints", "verify")
            raise CorruptError(f"{source} changed while it was copied; see `{verify}`") from error
    return expected


def read_verified(path: Path, expected: FileFacts) -> bytes:
    """Read a whole file, verify it, and return the very bytes that were verified."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise CorruptError(f"{path} cannot be read: {error.strerror}") from error
    if len(raw) != expected.size:
        raise CorruptError(f"{path} holds {len(raw)} bytes instead of {expected.size}")
    if hashlib.sha256(raw).hexdigest() != expected.sha256:
        raise CorruptError(f"{path} is not what was written: its SHA-256 differs")
    return raw


def complaint(path: Path, expected: FileFacts, *, deep: bool) -> str | None:
    """Describe what is wrong with a file; None where nothing is. Only a deep look reads its contents."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != expected.size:
                return f"{path.name} holds {size} bytes instead of {expected.size}"
            if deep and _hash(file) != expected.sha256:
                return f"{path.name} is not what was written: its SHA-256 differs"
    except FileNotFoundError:
        return f"{path.name} is missing"
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror}"
    return None


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _sync(handle)
    finally:
        os.close(handle)


def require_space(path: Path, needed: int) -> None:
    """Raise NoRoomError unless the file system of `path` has this many bytes free for this process."""
    free = shutil.disk_usage(path).free
    if free < needed:
        raise NoRoomError(
            f"a checkpoint needs {needed:,} bytes and {path} has {free:,} free: "
            "make room, keep fewer checkpoints (checkpoints.keep), or move checkpoints.path"
        )


def is_full(error: OSError) -> bool:
    """Return whether this is the error of a full disk, or of a quota that is used up."""
    return error.errno in _FULL


def _hash(file: BufferedReader) -> str:
    return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(handle: int) -> None:
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is None:
        os.fsync(handle)
    else:  # macOS: fsync alone leaves the bytes in the drive's cache
        fcntl.fcntl(handle, full_sync)
