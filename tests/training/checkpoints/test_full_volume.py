"""A volume that checkpoints have filled: saves go on, a start makes room, `keep` is obeyed, a kill loses nothing."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from millrace.consumers.failpoints import NAMES, VARIABLE, arm
from millrace.pipelines.stream.blocks import BlockFacts
from millrace.training.checkpoints import CheckpointStore, Condition, Folder, FolderLease, PartState, StoreOptions
from millrace.training.checkpoints.in_flight import StartRecord
from millrace.training.checkpoints.policies import KeepLast
from millrace.training.errors import NoRoomError
from tests.training.checkpoints.small_volume import small_volume

pytestmark = pytest.mark.row(29)
VOLUME = 16_000_000
STATE = 3_600_000
ROOT = Path(__file__).parents[3]


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Folder]:
    """Return a folder on a volume of 16 MB, on which four checkpoints of 3.6 MB have room."""
    with small_volume(tmp_path / "volume", VOLUME) as path:
        yield Folder(path / "clicks")


def state(step: int) -> dict[str, PartState]:
    arrays = {"w": np.full(STATE, step % 251, np.uint8)}
    return {"model": PartState(arrays=arrays), "ledger": PartState(facts={"position": step})}


def opened(folder: Folder, keep: int) -> tuple[FolderLease, CheckpointStore]:
    """Take the folder as a start does."""
    options = StoreOptions(keep=KeepLast(keep))

    def make_room(lease: FolderLease) -> bool:
        return CheckpointStore(folder, lease, options).remove_some()

    lease = FolderLease.acquire(folder, "a start", make_room=make_room)
    try:
        store = CheckpointStore(folder, lease, options)
        store.require_room(STATE)
    except NoRoomError:
        lease.release()
        raise
    return lease, store


def publish(store: CheckpointStore, order: Any, saves: int) -> int:
    """Save so many times; return the newest number."""
    newest = store.newest()
    parent, step = (None, 0) if newest is None else (newest.number, newest.step + 1)
    for at in range(step, step + saves):
        parent = store.publish(order(parent, step=at), state(at)).number
    assert parent is not None
    return parent


def fill(store: CheckpointStore, order: Any) -> NoRoomError:
    """Save until there is no room; return the error."""
    with pytest.raises(NoRoomError) as caught:
        publish(store, order, 100)
    return caught.value


def test_a_volume_that_pins_have_filled_names_them_and_goes_on_without(volume: Folder, order: Any) -> None:
    lease, store = opened(volume, keep=1)
    publish(store, order, 2)
    store.pin(1, "ann")
    publish(store, order, 1)
    store.pin(2, "export")
    error = fill(store, order)
    assert re.search(r"lift pins by `millrace checkpoints unpin .*NUMBER`: pinned are 1 \(by ann\), 2 \(by", str(error))
    store.unpin(1)
    assert publish(store, order, 3) == max(volume.numbers())
    assert 2 in volume.numbers()
    lease.release()


def test_with_keep_last_1_a_volume_of_four_checkpoints_is_enough_for_ever(volume: Folder, order: Any) -> None:
    for start in range(4):
        lease, store = opened(volume, keep=1)
        newest = publish(store, order, 5)
        assert newest == 5 * start + 4
        assert volume.numbers() == [0, newest - 1, newest]
        lease.release()


def test_where_three_have_room_the_one_to_fall_back_to_makes_way(tmp_path: Path, order: Any) -> None:
    with small_volume(tmp_path / "volume", 12_000_000) as path:
        folder = Folder(path / "clicks")
        lease, store = opened(folder, keep=1)
        assert publish(store, order, 6) == 5
        assert {0, 5} <= set(folder.numbers())
        assert {look.condition for look in store.listing(deep=True)} == {Condition.GOOD}
        lease.release()


def test_the_newest_is_read_and_verified_before_its_fallback_makes_way(tmp_path: Path, order: Any) -> None:
    with small_volume(tmp_path / "volume", 12_000_000) as path:
        folder = Folder(path / "clicks")
        lease, store = opened(folder, keep=1)
        publish(store, order, 3)
        weights = folder.checkpoint(2) / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
        with pytest.raises(NoRoomError):
            store.publish(order(2, step=3), state(3))
        newest = store.newest()
        assert newest is not None
        assert newest.number == 1
        lease.release()


def test_the_advice_of_a_full_volume_works_when_it_is_followed(volume: Folder, order: Any) -> None:
    lease, store = opened(volume, keep=10)
    error = fill(store, order)
    lease.release()
    advice = re.search(r"set checkpoints\.keep so that it keeps no more than (\d+)", str(error))
    assert advice is not None, error
    with pytest.raises(NoRoomError):
        opened(volume, keep=10)
    lease, store = opened(volume, keep=int(advice[1]))
    newest = publish(store, order, 5)
    assert set(range(newest - int(advice[1]) + 1, newest + 1)) <= set(volume.numbers()), "keep is obeyed"
    lease.release()


def test_where_nothing_may_go_the_advice_is_to_make_the_volume_larger(tmp_path: Path) -> None:
    with small_volume(tmp_path / "volume", 2_000_000) as path:
        with pytest.raises(NoRoomError, match=r"needs 3\.9 MB, and the volume of .* has 2\.0 MB free") as caught:
            opened(Folder(path / "clicks"), keep=1)
        assert "make the volume larger, or remove other files from it (at least 1.9 MB)" in str(caught.value)
        assert "checkpoints.keep so" not in str(caught.value)


def test_a_start_on_a_volume_without_one_free_byte_takes_the_folder_and_saves(volume: Folder, order: Any) -> None:
    lease, store = opened(volume, keep=10)
    fill(store, order)
    lease.release()
    torn = volume.saving(99, lease.term)
    torn.mkdir()
    with pytest.raises(OSError, match="No space"):
        (torn / "model.safetensors").write_bytes(bytes(VOLUME))
    lease, store = opened(volume, keep=1)
    assert not torn.exists()
    publish(store, order, 3)
    lease.release()


def test_saves_go_on_beside_other_files_that_fill_the_volume(volume: Folder, order: Any) -> None:
    lease, store = opened(volume, keep=1)
    publish(store, order, 3)
    with pytest.raises(OSError, match="No space"):
        (volume.root / "stuffing").write_bytes(bytes(VOLUME))
    newest = publish(store, order, 3)
    assert volume.numbers() == [0, newest - 1, newest]
    assert store.verify(newest).verified
    lease.release()


def test_what_keep_asks_for_stays_on_a_volume_that_other_files_fill(volume: Folder, order: Any) -> None:
    lease, store = opened(volume, keep=2)
    newest = publish(store, order, 3)
    stuffing = volume.root / "stuffing"
    with pytest.raises(OSError, match="No space"):
        stuffing.write_bytes(bytes(VOLUME))
    with pytest.raises(NoRoomError, match="has 0 B free, beside 2 checkpoints that"):
        store.publish(order(newest, step=3), state(3))
    assert volume.numbers() == [0, newest - 1, newest]
    stuffing.unlink()
    assert store.publish(order(newest, step=3), state(3)).number == newest + 1
    lease.release()


def test_a_save_that_meets_a_full_disk_prunes_what_keep_allows_and_is_made(
    folder: Folder, writer: FolderLease, order: Any, parts: Any
) -> None:
    many = CheckpointStore(folder, writer, StoreOptions(keep=KeepLast(9)))
    for step in range(5):
        many.publish(order(step - 1 if step else None, step=step), parts(step))
    store = CheckpointStore(folder, writer, StoreOptions(keep=KeepLast(1)))
    arm("save.after_data=full:once")
    assert store.publish(order(4, step=5), parts(5)).number == 5
    assert folder.numbers() == [0, 4, 5]


def test_on_a_full_disk_records_of_starts_go_that_resumed_from_an_older_checkpoint(
    folder: Folder, writer: FolderLease, order: Any, parts: Any
) -> None:
    store = CheckpointStore(folder, writer)
    store.publish(order(None), parts(0))
    newest = store.publish(order(0, step=1), parts(1))
    facts = BlockFacts(
        number=0, incarnation=1, spans=(), batches=1, rows=1, seed=0, fetched_at=0.0, oldest_ms=0, newest_ms=0
    )
    writer.term = 9
    with ExitStack() as calls:  # they never return: their processes have died in them
        for term, resumed_from in ((1, 0), (2, newest.number)):
            calls.enter_context(StartRecord(folder.start(term), resumed_from).in_flight(facts))
        assert store.remove_some()
        assert folder.started_terms() == [2], "the death after the newest still counts"
        assert not store.remove_some()


def test_the_target_of_a_rewind_stays_though_the_rewind_needs_room(
    folder: Folder, writer: FolderLease, order: Any, parts: Any
) -> None:
    many = CheckpointStore(folder, writer, StoreOptions(keep=KeepLast(9)))
    for step in range(5):
        many.publish(order(step - 1 if step else None, step=step), parts(step))
    store = CheckpointStore(folder, writer, StoreOptions(keep=KeepLast(1)))
    arm("save.after_data=full:once")
    rewound = store.publish_linked(store.load_verified(2), {}, order(2, step=2))
    assert (rewound.number, rewound.parent) == (5, 2)
    assert store.newest() == rewound
    assert folder.numbers() == [0, 2, 5]


TRAINER = """
import sys
from pathlib import Path
from tests.training.checkpoints.test_full_volume import opened, state
from millrace.training.checkpoints import Folder, SaveReason, SaveRequest
from millrace.consumers.records import Partition

lease, store = opened(Folder(Path(sys.argv[1])), keep=1)
newest = store.newest()
parent, step = (None, 0) if newest is None else (newest.number, newest.step + 1)
while True:
    request = SaveRequest(
        reason=SaveReason.INTERVAL, parent=parent, step=step, incarnation=1, positions={Partition("clicks", 0): step}
    )
    parent, step = store.publish(request, state(step)).number, step + 1
    print(parent, flush=True)
"""
WINDOWS = [name for name in NAMES if name.startswith(("save.", "prune."))]
Trainer = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def trainer(volume: Folder) -> Iterator[Trainer]:
    """Start trainers on the volume, in processes of their own."""
    children: list[subprocess.Popen[str]] = []

    def start(failpoints: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", TRAINER, str(volume.root)],
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT), VARIABLE: failpoints},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        if child.poll() is None:
            child.kill()
        child.communicate(timeout=30)


@pytest.mark.slow
def test_a_kill_at_any_instant_on_a_full_volume_loses_nothing(volume: Folder, trainer: Trainer) -> None:
    durable = -1
    for kill, window in enumerate(WINDOWS):
        child = trainer(f"{window}=kill:after={4 + kill % 3}")
        out, err = child.communicate(timeout=120)
        assert child.returncode == -signal.SIGKILL, err
        assert f"failpoint {window}: kill" in err, "the fault has not hit its window"
        durable = max([durable, *map(int, out.split())])
        newest = CheckpointStore(volume).newest()
        assert newest is not None
        assert newest.number in {durable, durable + 1}
        loaded = CheckpointStore(volume).load(newest.number)
        assert loaded["ledger"].facts["position"] == newest.step
        assert np.array_equal(loaded["model"].arrays["w"], state(newest.step)["model"].arrays["w"])
        durable = newest.number
    assert durable > 3 * len(WINDOWS)


@pytest.mark.slow
def test_kills_at_random_times_on_a_full_volume_lose_nothing(volume: Folder, trainer: Trainer) -> None:
    random, durable = Random(29), -1
    for _ in range(8):
        child = trainer("")
        assert child.stdout is not None
        told = [int(child.stdout.readline()) for _ in range(random.randrange(1, 6))]
        time.sleep(random.uniform(0, 0.2))
        child.kill()
        told += [int(line) for line in child.communicate(timeout=30)[0].split()]
        durable = max([durable, *told])
        store = CheckpointStore(volume)
        newest = store.newest()
        assert newest is not None
        assert newest.number in {durable, durable + 1}
        assert {look.condition for look in store.listing(deep=True)} <= {Condition.GOOD, Condition.TEMPORARY}
        durable = newest.number
