"""A disk that fails now and then: what was reported as failed is not there, and what is durable stays reported so."""

import errno
from pathlib import Path
from typing import Any

import pytest

from millrace.consumers.durable_files import sync_folder
from millrace.training.checkpoints import CheckpointStore, Folder, FolderLease, StoreOptions, pruning, publication
from millrace.training.checkpoints.manifest import Manifest
from millrace.training.checkpoints.policies import KeepLast
from millrace.training.errors import CheckpointError, PassedError


def broken() -> OSError:
    return OSError(errno.EIO, "Input/output error")


class FailsToSync:
    """Syncs folders until it is told not to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.fails = False

    def __call__(self, path: Path) -> None:
        if self.fails and path == self._folder:
            raise broken()
        sync_folder(path)


@pytest.fixture
def syncs(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> FailsToSync:
    """Make syncs of the folder of all checkpoints fail, so that its names do not become durable."""
    syncs = FailsToSync(folder.checkpoints)
    monkeypatch.setattr(publication, "sync_folder", syncs)
    return syncs


def test_a_rewind_whose_name_cannot_be_synced_is_not_what_a_restart_finds(
    folder: Folder, writer: FolderLease, order: Any, parts: Any, syncs: FailsToSync
) -> None:
    told: list[Manifest] = []
    store = CheckpointStore(folder, writer, StoreOptions(on_durable=told.append))
    store.publish(order(None), parts(0))
    newest = store.publish(order(0, step=1), parts(1))
    syncs.fails = True
    with pytest.raises(CheckpointError, match="nothing of it is kept"):
        store.publish_linked(store.load_verified(0), {}, order(None))
    syncs.fails = False
    assert CheckpointStore(folder, writer).newest() == newest
    assert told[-1] == newest
    assert folder.temporaries() == []
    assert store.publish(order(1, step=2), parts(2)).number == 2


def test_what_another_writer_may_go_on_from_is_not_taken_back(
    folder: Folder, writer: FolderLease, order: Any, parts: Any, syncs: FailsToSync, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(folder, writer)
    store.publish(order(None), parts(0))
    syncs.fails = True
    checks = iter([None, None, PassedError("another one took over")])

    def check() -> None:
        if (error := next(checks)) is not None:
            raise error

    monkeypatch.setattr(writer, "check", check)
    with pytest.raises(PassedError):
        store.publish(order(0, step=1), parts(1))
    assert folder.numbers() == [0, 1]


def test_a_save_fails_and_withdraws_nothing_where_the_writer_cannot_be_known(
    folder: Folder, writer: FolderLease, order: Any, parts: Any, syncs: FailsToSync, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(folder, writer)
    store.publish(order(None), parts(0))
    syncs.fails = True
    checks = iter([None, None, broken()])

    def check() -> None:
        if (error := next(checks)) is not None:
            raise error

    with monkeypatch.context() as once:
        once.setattr(writer, "check", check)
        with pytest.raises(CheckpointError, match="could not be written"):
            store.publish(order(0, step=1), parts(1))
    assert folder.numbers() == [0, 1]
    syncs.fails = False
    assert store.publish(order(1, step=2), parts(2)).number == 2


def test_a_checkpoint_after_which_nothing_can_be_pruned_is_durable_all_the_same(
    folder: Folder, writer: FolderLease, order: Any, parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(folder, writer, StoreOptions(keep=KeepLast(1)))
    store.publish(order(None), parts(0))

    def unreadable(*_: Any, **__: Any) -> Any:
        raise broken()

    monkeypatch.setattr(pruning, "inspect", unreadable)
    assert store.publish(order(0, step=1), parts(1)).number == 1


def test_a_folder_that_cannot_be_read_fails_the_save_and_nothing_else(
    folder: Folder, writer: FolderLease, order: Any, parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(folder, writer)
    store.publish(order(None), parts(0))
    with monkeypatch.context() as once:
        once.setattr(Path, "iterdir", lambda _: (_ for _ in ()).throw(broken()))
        with pytest.raises(CheckpointError, match=r"cannot be read .* the next save tries again"):
            store.publish(order(0, step=1), parts(1))
    assert store.publish(order(0, step=1), parts(1)).number == 1
