"""Files of checkpoints: read and verified as the same bytes, linked under a second name, given room.

Owns how bytes come back from the disk; runs on the checkpoint writer's thread, and on any thread that reads. Failures
are plain OSErrors here. Nothing is left open.
"""

import errno
import hashlib
import os
import shutil
from pathlib import Path

from millrace.consumers.durable_files import FileFacts, is_full, write_durably
from millrace.consumers.suggested_command import suggested_command
from millrace.training.errors import CorruptError, NoRoomError

_PIECE = 1 << 20
# Errors of a file system that has no hard links, or no more for this file, or is not the one of the source.
_CANNOT_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS})
_MAY_NOT_WRITE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


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


def require_space(path: Path, needed: int) -> None:
    """Raise NoRoomError unless the file system of `path` has this many bytes free for this process."""
    free = shutil.disk_usage(path).free
    if free < needed:
        raise NoRoomError(
            f"a checkpoint needs {needed:,} bytes and {path} has {free:,} free: "
            "make room, keep fewer checkpoints (checkpoints.keep), or move checkpoints.path"
        )


def read_only(error: OSError) -> bool:
    """Return whether the error says that this process may read there and not write."""
    return error.errno in _MAY_NOT_WRITE


def unwritable(path: Path, error: OSError) -> str:
    """Say that the setting's folder cannot be written, and the way out."""
    way_out = (
        "remove other files from the volume, or make it larger"
        if is_full(error)
        else "make it a folder that this user may write to, or name another one"
    )
    return f"checkpoints.path: cannot write to {path}: {error.strerror}; {way_out}"
