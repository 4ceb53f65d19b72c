"""The writing thread: one save at a time, cancelled until right before its manifest, settled after."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millrace.consumers.failpoints import FailpointError, arm
from millrace.training.checkpoints import CheckpointStore, CheckpointWriter, Folder, FolderLease, StoreOptions
from millrace.training.errors import CheckpointError, PassedError

WAIT_S = 30.0
WaitFor = Callable[..., Any]


class Letters:
    """Dead letters whose acknowledgement a test holds back."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.acknowledged = threading.Event()

    def wait(self, _order: object) -> None:
        self.reached.set()
        if not self.acknowledged.wait(WAIT_S):
            raise CheckpointError("dead letters are not acknowledged")


@pytest.fixture
def letters() -> Letters:
    return Letters()


@pytest.fixture
def saving(folder: Folder, writer: FolderLease, letters: Letters) -> Iterator[CheckpointWriter]:
    saving = CheckpointWriter(CheckpointStore(folder, writer, StoreOptions(before_manifest=letters.wait)))
    yield saving
    letters.acknowledged.set()
    assert saving.close(WAIT_S)


def test_a_snapshot_is_published_and_the_next_one_may_come(
    saving: CheckpointWriter, letters: Letters, order: Any, parts: Any
) -> None:
    letters.acknowledged.set()
    zero = saving.submit(order(None), parts(0)).result(WAIT_S)
    one = saving.submit(order(0, step=1), parts(1)).result(WAIT_S)
    assert [(m.number, m.parent) for m in (zero, one)] == [(0, None), (1, 0)]
    assert not saving.busy


def test_a_second_save_is_refused_while_one_is_running(
    saving: CheckpointWriter, letters: Letters, order: Any, parts: Any
) -> None:
    first = saving.submit(order(None), parts(0))
    assert saving.busy
    with pytest.raises(CheckpointError, match="still writing"):
        saving.submit(order(None), parts(1))
    letters.acknowledged.set()
    assert first.result(WAIT_S).number == 0


def test_a_save_that_does_not_settle_in_time_is_cancelled_and_publishes_nothing(
    folder: Folder, saving: CheckpointWriter, letters: Letters, order: Any, parts: Any
) -> None:
    letters.acknowledged.set()
    saving.submit(order(None), parts(0)).result(WAIT_S)
    letters.acknowledged.clear()
    letters.reached.clear()
    late = saving.submit(order(0, step=1), parts(1))
    assert letters.reached.wait(WAIT_S)
    assert saving.cancel_or_settle(0.01) is None
    later = saving.submit(order(0, step=2), parts(2))
    letters.acknowledged.set()
    assert later.result(WAIT_S).number == 1
    with pytest.raises(CheckpointError, match="cancelled by a later command"):
        late.result(WAIT_S)
    assert folder.numbers() == [0, 1]
    assert folder.temporaries() == []


def test_a_save_that_settles_in_time_is_given_back(
    saving: CheckpointWriter, letters: Letters, order: Any, parts: Any
) -> None:
    assert saving.cancel_or_settle(0.0) is None
    running = saving.submit(order(None), parts(0))
    letters.acknowledged.set()
    assert saving.cancel_or_settle(WAIT_S) == running.result(0)


def test_a_save_past_its_gate_is_settled_however_short_the_deadline(
    folder: Folder, saving: CheckpointWriter, letters: Letters, order: Any, parts: Any, wait_for: WaitFor
) -> None:
    arm("save.after_manifest=sleep:0.3")
    letters.acknowledged.set()
    saving.submit(order(None), parts(0))
    wait_for(lambda: list(folder.checkpoints.glob(".saving-*/manifest.json")))
    manifest = saving.cancel_or_settle(0.0)
    assert manifest is not None
    assert folder.numbers() == [manifest.number]


def test_a_failed_save_is_told_to_whoever_waits_and_the_next_one_may_come(
    saving: CheckpointWriter, letters: Letters, order: Any, parts: Any
) -> None:
    letters.acknowledged.set()
    arm("save.after_data=raise:once")
    with pytest.raises(FailpointError):
        saving.submit(order(None), parts(0)).result(WAIT_S)
    assert saving.submit(order(None), parts(0)).result(WAIT_S).number == 0


def test_a_writer_that_was_passed_hears_it_when_it_settles(
    folder: Folder, saving: CheckpointWriter, letters: Letters, order: Any, parts: Any
) -> None:
    saving.submit(order(None), parts(0))
    assert letters.reached.wait(WAIT_S)
    folder.lock(2).touch()
    letters.acknowledged.set()
    with pytest.raises(PassedError, match="with term 2"):
        saving.cancel_or_settle(WAIT_S)
    assert folder.numbers() == []


def test_close_waits_for_the_running_save_and_says_when_it_leaves_one_behind(
    saving: CheckpointWriter, letters: Letters, order: Any, parts: Any, caplog: pytest.LogCaptureFixture
) -> None:
    running = saving.submit(order(None), parts(0))
    assert letters.reached.wait(WAIT_S)
    assert not saving.close(0.01)
    assert "left behind" in caplog.text
    with pytest.raises(CheckpointError, match="closed"):
        saving.submit(order(None), parts(0))
    letters.acknowledged.set()
    assert saving.close(WAIT_S)
    assert running.result(0).number == 0


def test_the_memory_of_a_snapshot_ends_with_its_save(saving: CheckpointWriter, letters: Letters, order: Any) -> None:
    import gc
    import weakref

    import numpy as np

    from millrace.training.checkpoints import PartState

    letters.acknowledged.set()
    array = np.ones(1000)
    gone = weakref.ref(array)
    saving.submit(order(None), {"model": PartState(arrays={"w": array})}).result(WAIT_S)
    del array
    saving.submit(order(0), {}).result(WAIT_S)
    gc.collect()
    assert gone() is None
