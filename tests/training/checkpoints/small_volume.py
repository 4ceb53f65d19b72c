"""A real file system of a chosen size, where this process may mount one."""

import ctypes
import ctypes.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_MS_RDONLY, _MS_REMOUNT = 1, 32


@contextmanager
def small_volume(path: Path, size: int) -> Iterator[Path]:
    """Mount a file system of this many bytes at a new folder, and unmount it at the end; skip where nobody may."""
    if os.geteuid() != 0 or not Path("/proc/mounts").exists():
        pytest.skip("only root on Linux may mount; the other tests of this row fill a disk without")
    libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
    path.mkdir(parents=True)
    if libc.mount(b"tmpfs", str(path).encode(), b"tmpfs", 0, f"size={size}".encode()) != 0:
        pytest.skip(f"mount: {os.strerror(ctypes.get_errno())}; the other tests of this row fill a disk without")
    try:
        yield path
    finally:
        assert libc.umount2(str(path).encode(), 2) == 0


def make_read_only(volume: Path) -> None:
    """Mount a volume of `small_volume` again, so that nobody may write there, root included."""
    libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
    at = str(volume).encode()
    assert libc.mount(b"tmpfs", at, b"tmpfs", _MS_REMOUNT | _MS_RDONLY, None) == 0, os.strerror(ctypes.get_errno())
