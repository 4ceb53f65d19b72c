"""Pins: a checkpoint that was pinned stays, whatever the policy, a pruner at work, or a kill in the middle of it."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from millrace.consumers.errors import ConfigError
from millrace.consumers.failpoints import VARIABLE
from millrace.training.checkpoints import CheckpointStore, Folder, FolderLease, LeaseOptions, StoreOptions
from millrace.training.checkpoints.pins import Pin, Pins
from millrace.training.checkpoints.policies import KeepLast
from millrace.training.errors import MissingCheckpointError
from tests.training.checkpoints.test_crashes import ROOT, TRAINER

pytestmark = pytest.mark.row(41)


@pytest.fixture
def keeping_one(folder: Folder, writer: FolderLease) -> CheckpointStore:
    """Return a store that keeps the newest, its parent and the beginning."""
    return CheckpointStore(folder, writer, StoreOptions(keep=KeepLast(1)))


def save(store: CheckpointStore, order: Any, parts: Any, saves: int) -> None:
    for _ in range(saves):
        newest = store.newest()
        parent, step = (None, 0) if newest is None else (newest.number, newest.step + 1)
        store.publish(order(parent, step=step), parts(step))


def test_a_pinned_checkpoint_stays_until_its_last_pin_is_lifted(
    folder: Folder, keeping_one: CheckpointStore, order: Any, parts: Any
) -> None:
    save(keeping_one, order, parts, 3)
    keeping_one.pin(1, "ann")
    keeping_one.pin(1, "export")
    save(keeping_one, order, parts, 3)
    assert folder.numbers() == [0, 1, 4, 5]
    keeping_one.unpin(1, "ann")
    save(keeping_one, order, parts, 1)
    assert folder.numbers() == [0, 1, 5, 6]
    assert [pin.by for pin in keeping_one.look(1).pins] == ["export"]
    keeping_one.unpin(1)
    save(keeping_one, order, parts, 1)
    assert folder.numbers() == [0, 6, 7]


def test_a_pin_whose_file_is_damaged_still_holds(
    folder: Folder, keeping_one: CheckpointStore, order: Any, parts: Any
) -> None:
    save(keeping_one, order, parts, 2)
    keeping_one.pin(1, "ann")
    (file,) = folder.pins.iterdir()
    file.write_bytes(b"{")
    save(keeping_one, order, parts, 3)
    assert 1 in folder.numbers()
    assert [pin.by for pin in keeping_one.look(1).pins] == ["unknown"]
    keeping_one.unpin(1)
    assert list(folder.pins.iterdir()) == []


def test_what_cannot_be_pinned_is_refused_and_leaves_no_pin(folder: Folder, publish_steps: Any) -> None:
    publish_steps(2)
    store = CheckpointStore(folder)
    with pytest.raises(MissingCheckpointError, match="no checkpoint has the number 9"):
        store.pin(9, "ann")
    with pytest.raises(ConfigError, match="one line of at most 200"):
        store.pin(1, "ann\nbob")
    with pytest.raises(MissingCheckpointError, match="not pinned; those that are: none"):
        store.unpin(1)
    store.pin(1, "ann")
    with pytest.raises(MissingCheckpointError, match="not pinned by bob, but by ann"):
        store.unpin(1, "bob")
    assert Pins(folder).numbers() == {1}


@pytest.fixture
def pruner(folder: Folder) -> Iterator[Any]:
    """Start a trainer that stops when it is about to prune number 1, and then does as the failpoints say."""
    children: list[subprocess.Popen[bytes]] = []

    def start(failpoints: str) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [sys.executable, "-c", TRAINER, str(folder.root), "8", "60"],
            cwd=ROOT,
            env={**os.environ, VARIABLE: f"pins.before_rename=stop:once,{failpoints}"},
            stdout=subprocess.DEVNULL,
        )
        children.append(child)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        return child

    yield start
    for child in children:
        if child.poll() is None:
            child.kill()
        child.wait(30)


def test_a_pin_set_while_the_pruner_is_at_work_holds(folder: Folder, pruner: Any) -> None:
    child = pruner("pins.before_second_look=sleep:0.1")
    CheckpointStore(folder).pin(1, "ann")
    child.send_signal(signal.SIGCONT)
    assert child.wait(30) == 0
    assert folder.numbers() == [0, 1, 3, 4, 5, 6, 7]
    assert CheckpointStore(folder).verify(1).verified


def test_a_pruner_killed_after_a_pin_leaves_what_the_next_start_brings_back(
    folder: Folder, pruner: Any, quick: LeaseOptions
) -> None:
    child = pruner("pins.before_second_look=kill")
    CheckpointStore(folder).pin(1, "ann")
    child.send_signal(signal.SIGCONT)
    assert child.wait(30) == -signal.SIGKILL
    assert folder.removing(1).exists()
    writer = FolderLease.acquire(folder, "the next", options=quick)
    store = CheckpointStore(folder, writer)
    assert store.verify(1).verified
    assert not folder.removing(1).exists()
    writer.release()


def test_a_pin_that_comes_too_late_is_refused_and_none_is_left(
    folder: Folder, publish_steps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_steps(3)
    write = Pins._write

    def after_the_pruner(pins: Pins, pin: Pin, digest: str) -> None:
        shutil.rmtree(folder.checkpoint(1))
        write(pins, pin, digest)

    monkeypatch.setattr(Pins, "_write", after_the_pruner)
    with pytest.raises(MissingCheckpointError, match="no checkpoint has the number 1"):
        Pins(folder).pin(1, "ann")
    assert Pins(folder).numbers() == frozenset()
