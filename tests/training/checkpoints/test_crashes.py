"""Processes that die or freeze: killed in every window of a save, stopped while somebody else takes over."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from millrace.consumers.failpoints import NAMES, VARIABLE
from millrace.training.checkpoints import CheckpointStore, Condition, Folder, FolderLease, LeaseOptions
from millrace.training.checkpoints.fencing import Terms
from millrace.training.errors import CorruptError, FolderBusyError

ROOT = Path(__file__).parents[3]
WINDOWS = sorted(name for name in NAMES if name.startswith("save."))
TERMS = sorted(name for name in NAMES if name.startswith("term."))

TRAINER = """
import os, sys, threading, numpy as np
from pathlib import Path
from millrace.consumers.records import Partition
from millrace.training.checkpoints import *
from millrace.training.errors import PassedError

folder = Folder(Path(sys.argv[1]))
lease = LeaseOptions(renew_every=float(sys.argv[3]), stale_after=1.0, poll_every=0.02)
writer = FolderLease.acquire(folder, "trainer", options=lease, on_passed=lambda error: os._exit(4))
store = CheckpointStore(folder, writer)
newest = store.newest()
parent, step = (None, 0) if newest is None else (newest.number, newest.step + 1)
for step in range(step, step + int(sys.argv[2])):
    order = SaveRequest(
        reason=SaveReason.INTERVAL, parent=parent, step=step, incarnation=1, positions={Partition("clicks", 0): step}
    )
    parts = {"model": PartState(arrays={"w": np.full(1000, step)}), "ledger": PartState(facts={"position": step})}
    parent = store.publish(order, parts).number
    print(parent, flush=True)
"""


class Start(Protocol):
    """Start a trainer that makes so many saves."""

    def __call__(self, saves: int, failpoints: str = "", renew_every: float = 0.1) -> subprocess.Popen[str]: ...


@pytest.fixture
def start(folder: Folder) -> Iterator[Start]:
    """Trainers on the folder, in processes of their own."""
    children: list[subprocess.Popen[str]] = []

    def launch(saves: int, failpoints: str = "", renew_every: float = 0.1) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", TRAINER, str(folder.root), str(saves), str(renew_every)],
            cwd=ROOT,
            env={**os.environ, VARIABLE: failpoints},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield launch
    for child in children:
        if child.poll() is None:
            child.kill()
        child.communicate(timeout=30)


def wait_in_save(trainer: subprocess.Popen[str]) -> None:
    """Until it lingers in its second save."""
    assert trainer.stderr is not None
    assert trainer.stderr.readline() == "failpoint save.before_data: sleep\n"


@pytest.mark.slow
@pytest.mark.row(2)
@pytest.mark.parametrize("window", WINDOWS)
def test_a_kill_in_any_window_of_a_save_loads_the_previous_or_the_new_one(
    folder: Folder, start: Start, quick: LeaseOptions, window: str
) -> None:
    for after in (0, 1, 6):  # the first save, a second one, one that prunes
        survived = folder.numbers()[-1] if folder.numbers() else -1
        child = start(after + 1, f"{window}=kill:after={after}")
        out, err = child.communicate(timeout=60)
        assert child.returncode == -signal.SIGKILL
        assert f"failpoint {window}: kill" in err, "the fault has not hit its window"
        told = [int(line) for line in out.split()]
        durable = max([survived, *told])
        newest = CheckpointStore(folder).newest()
        loaded = -1 if newest is None else newest.number
        assert loaded in {durable, durable + 1}
        assert (loaded > durable) == (window in {"save.after_rename", "save.before_prune"})
        if newest is not None:
            assert CheckpointStore(folder).load(loaded)["ledger"].facts["position"] == newest.step
        writer = FolderLease.acquire(folder, "the next", options=quick)
        store = CheckpointStore(folder, writer)
        assert {found.condition for found in store.listing(deep=True)} <= {Condition.GOOD}, "leftovers, or a part"
        writer.release()


@pytest.mark.row(10)
@pytest.mark.parametrize("window", TERMS)
def test_a_kill_while_records_of_terms_are_folded_moves_no_fence(folder: Folder, start: Start, window: str) -> None:
    for _ in range(3):
        assert start(2).wait(60) == 0
    before = Terms.read(folder)
    child = start(1, f"{window}=kill")
    _, err = child.communicate(timeout=60)
    assert child.returncode == -signal.SIGKILL
    assert f"failpoint {window}: kill" in err
    fences = [(term, number) for term in range(4) for number in range(8) if before.fences(term, number)]
    assert fences
    for _ in range(2):  # as the kill has left it, and as the next start folds it
        after = Terms.read(folder)
        assert [(term, number) for term in range(4) for number in range(8) if after.fences(term, number)] == [
            *fences,
            *((3, number) for number in range(6, 8) if folder.recorded_terms()[-1] > 3),
        ]
        assert start(1).wait(60) == 0


@pytest.mark.row(10)
def test_a_stopped_trainer_is_fenced_by_a_record_that_was_folded_since(
    folder: Folder, start: Start, quick: LeaseOptions, order: Any, parts: Any
) -> None:
    zombie = start(5, "save.after_manifest=stop:after=2", renew_every=60.0)  # its lease does not end it first
    os.waitid(os.P_PID, zombie.pid, os.WSTOPPED | os.WNOWAIT)
    temporary, kept = folder.saving(2, 1), folder.root / "aside"
    temporary.rename(kept)  # the stores would remove it: here the zombie is to get as far as it can
    for _ in range(3):
        writer = FolderLease.acquire(folder, "heir", options=quick)
        store = CheckpointStore(folder, writer)
        newest = store.newest()
        assert newest is not None
        store.publish(order(newest.number, step=newest.step + 1), parts(newest.step + 1))
        writer.release()
    assert folder.recorded_terms() == [3, 4]
    shutil.rmtree(folder.checkpoint(2))  # as pruning does, so that its number is free
    kept.rename(temporary)
    zombie.send_signal(signal.SIGCONT)
    _, err = zombie.communicate(timeout=30)
    assert "PassedError: heir" in err
    assert CheckpointStore(folder).verify(2).condition is Condition.FENCED


@pytest.mark.row(11)
def test_a_second_trainer_is_refused_and_the_first_is_named(folder: Folder, start: Start, quick: LeaseOptions) -> None:
    first = start(2, "save.before_data=sleep:60:after=1")
    wait_in_save(first)
    with pytest.raises(
        FolderBusyError, match=rf"held by trainer \(process {first.pid} on .*, since 20.*\), term 1: stop"
    ):
        FolderLease.acquire(folder, "second", options=quick)
    first.kill()
    first.wait(30)
    writer = FolderLease.acquire(folder, "second", options=quick)
    assert writer.term == 2
    writer.release()


@pytest.mark.row(10)
def test_what_a_stopped_trainer_publishes_after_it_was_passed_is_never_loaded(
    folder: Folder, start: Start, quick: LeaseOptions, order: Any, parts: Any
) -> None:
    zombie = start(5, "save.after_manifest=stop:after=2", renew_every=60.0)  # its lease does not end it first
    os.waitid(os.P_PID, zombie.pid, os.WSTOPPED | os.WNOWAIT)
    writer = FolderLease.acquire(folder, "heir", options=quick)
    temporary = folder.saving(2, 1)
    kept = folder.root / "aside"
    temporary.rename(kept)  # the store would remove it: here the zombie is to get as far as it can
    store = CheckpointStore(folder, writer)
    newest = store.newest()
    assert newest is not None
    assert newest.number == 1
    kept.rename(temporary)
    zombie.send_signal(signal.SIGCONT)
    _, err = zombie.communicate(timeout=30)
    assert zombie.returncode == 1
    assert "PassedError: heir" in err
    assert store.verify(2).condition is Condition.FENCED
    assert store.newest() == newest
    with pytest.raises(CorruptError, match="fenced"):
        store.load(2)
    heir = store.publish(order(1, step=9), parts(9))
    assert heir.number == 3
    assert CheckpointStore(folder).newest() == heir
    writer.release()


@pytest.mark.row(10)
def test_a_stopped_trainer_that_was_passed_ends_by_itself(folder: Folder, start: Start, quick: LeaseOptions) -> None:
    zombie = start(2, "save.before_data=sleep:60:after=1")
    wait_in_save(zombie)
    zombie.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, zombie.pid, os.WSTOPPED | os.WNOWAIT)
    writer = FolderLease.acquire(folder, "heir", options=quick)
    assert writer.term == 2
    zombie.send_signal(signal.SIGCONT)
    assert zombie.wait(timeout=30) == 4
    writer.check()
    writer.release()


@pytest.mark.row(10)
def test_of_several_that_would_take_over_one_wins(folder: Folder, start: Start) -> None:
    zombie = start(2, "save.before_data=sleep:60:after=1")
    wait_in_save(zombie)
    zombie.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, zombie.pid, os.WSTOPPED | os.WNOWAIT)
    rivals = [start(2, "save.before_data=sleep:60:after=1") for _ in range(4)]
    refused = []
    winners = [rival for rival in rivals if rival.stdout is not None and rival.stdout.readline()]
    assert len(winners) == 1
    for rival in rivals:
        if rival is not winners[0]:
            _, err = rival.communicate(timeout=30)
            refused.append("FolderBusyError" in err and f"process {winners[0].pid} on" in err)
    assert refused == [True] * 3
