"""A full disk: the save fails loudly, leaves nothing behind, tells nobody, and the next one works."""

import errno
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millrace.consumers.failpoints import arm
from millrace.training.checkpoints import CheckpointStore, Folder, FolderLease, PartState, StoreOptions
from millrace.training.checkpoints.manifest import Manifest
from millrace.training.errors import CheckpointError
from tests.training.checkpoints.small_volume import small_volume

pytestmark = pytest.mark.row(16)
TMPFS_BYTES = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of one megabyte, where this process may mount one."""
    with small_volume(tmp_path / "small", TMPFS_BYTES) as path:
        yield path


def big(size: int) -> dict[str, PartState]:
    return {"model": PartState(arrays={"w": np.ones(size, np.uint8)})}


@pytest.mark.parametrize(
    "window", ["save.before_data", "save.after_data", "save.before_manifest", "save.after_manifest"]
)
def test_a_save_that_finds_the_disk_full_leaves_nothing_and_the_next_one_works(
    folder: Folder, writer: FolderLease, order: Any, parts: Any, window: str
) -> None:
    told: list[Manifest] = []
    store = CheckpointStore(folder, writer, StoreOptions(on_durable=told.append))
    zero = store.publish(order(None), parts(0))
    arm(f"{window}=full:once")
    with pytest.raises(CheckpointError, match=r"checkpoint 1 could not be written .* No space left on device"):
        store.publish(order(0, step=1), parts(1))
    assert [path.name for path in folder.checkpoints.iterdir()] == ["0000000000"]
    assert told == [zero]
    assert store.publish(order(0, step=1), parts(1)).number == 1


def test_a_file_that_outgrows_what_the_system_allows_fails_the_save(
    store: CheckpointStore, folder: Folder, order: Any
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        with pytest.raises(CheckpointError, match=os.strerror(errno.EFBIG)):
            store.publish(order(None), big(200_000))
        assert list(folder.checkpoints.iterdir()) == []
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert store.publish(order(None), big(200_000)).number == 0


def test_too_little_space_is_named_before_a_byte_is_written(store: CheckpointStore, folder: Folder) -> None:
    with pytest.raises(CheckpointError, match=rf"needs .*, and the volume of {folder.checkpoints} has") as caught:
        store.require_room(10**18)
    assert "make the volume larger" in str(caught.value)
    store.require_room(1)


def test_a_file_system_that_fills_up_is_survived(small_disk: Path, order: Any) -> None:
    folder = Folder(small_disk / "clicks")
    writer = FolderLease.acquire(folder, "a test")
    store = CheckpointStore(folder, writer)
    half = TMPFS_BYTES // 2
    store.publish(order(None), big(half))
    with pytest.raises(CheckpointError, match="a checkpoint needs"):
        store.publish(order(0), big(TMPFS_BYTES))
    stuffing = small_disk / "stuffing"
    with pytest.raises(OSError, match="No space"):
        stuffing.write_bytes(bytes(TMPFS_BYTES))
    with pytest.raises(CheckpointError, match=r"needs|No space"):
        store.publish(order(0), {"ledger": PartState(facts={"position": 1})})
    writer.touch()
    newest = store.newest()
    assert newest is not None
    assert newest.number == 0
    stuffing.unlink()
    assert store.publish(order(0), big(half // 2)).number == 1
    writer.release()
