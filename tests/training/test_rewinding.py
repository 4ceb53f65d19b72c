"""A rewind is a checkpoint: what is ordered is what the next start finds."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from consumers.errors import ConfigError, DataLossError
from consumers.failpoints import FailpointError, arm
from consumers.records import Partition
from tests.app.checkpoint_history import P0, P1, PER_STEP, PROVENANCE, folder_in, publish_history
from training.checkpoints import CheckpointStore, Folder, Writer
from training.commands import Rewind
from training.errors import AllCorruptError, CorruptError, MissingCheckpointError
from training.ledger import Ledger, Skip
from training.rewinding import check_rewind, plan_rewind, publish_rewind

STEPS = 3


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    publish_history(folder_in(tmp_path), STEPS)
    return folder_in(tmp_path)


@pytest.fixture
def store(folder: Folder) -> Iterator[CheckpointStore]:
    writer = Writer.acquire(folder, "a test")
    yield CheckpointStore(folder, writer)
    writer.release()


def skip(partition: Partition, start: int, end: int) -> Skip:
    return Skip(order="rewind-1", partition=partition, start=start, end=end, reason="broken")


def ledger_of_newest(folder: Folder) -> Ledger:
    store, ledger = CheckpointStore(folder), Ledger()
    newest = store.newest()
    assert newest is not None
    ledger.restore(store.load(newest.number)[ledger.name])
    return ledger


def test_the_next_start_is_on_the_rewound_timeline(store: CheckpointStore, folder: Folder) -> None:
    manifest = publish_rewind(store, Rewind(to=1, note="why", by="somebody"), incarnation=7)
    newest = CheckpointStore(folder).newest()
    assert newest is not None
    assert (newest.number, newest.parent, newest.step) == (STEPS + 1, 1, 1)
    assert (newest.number, newest.note, newest.ordered_by) == (manifest.number, "why", "somebody")
    assert ledger_of_newest(folder).positions() == PER_STEP


def test_a_kill_right_after_the_order_changes_nothing_about_it(folder: Folder) -> None:
    writer = Writer.acquire(folder, "a test")
    arm("save.before_prune=raise")
    try:
        with pytest.raises(FailpointError):
            publish_rewind(CheckpointStore(folder, writer), Rewind(to=1), incarnation=1)
    finally:
        arm("")
        writer.release()
    assert ledger_of_newest(folder).positions() == PER_STEP


def test_the_other_parts_are_the_targets_own(store: CheckpointStore) -> None:
    manifest = publish_rewind(store, Rewind(to=2, skips=[skip(P0, 20, 25)]), incarnation=1)
    ordered, target = store.load(manifest.number), store.load(2)
    assert ordered["progress"].facts == target["progress"].facts
    assert (ordered["model"].arrays["w"] == target["model"].arrays["w"]).all()  # type: ignore[union-attr]  # loaded


def test_an_order_says_where_its_state_comes_from(store: CheckpointStore) -> None:
    assert publish_rewind(store, Rewind(to=1), incarnation=1).provenance == PROVENANCE
    assert publish_rewind(store, Rewind(to=1), incarnation=1, provenance={"a": 1}).provenance == {"a": 1}


def test_the_incarnation_never_goes_back(store: CheckpointStore, folder: Folder) -> None:
    publish_rewind(store, Rewind(to=0), incarnation=41)
    assert ledger_of_newest(folder).incarnation == 41


def test_a_plan_counts_what_is_read_again_and_what_is_not(store: CheckpointStore, folder: Folder) -> None:
    before = folder.numbers()
    plan = plan_rewind(store, Rewind(to=1, skips=[skip(P0, 12, 15), skip(P0, 28, 99)]))
    assert (plan[P0].position, plan[P0].back_to) == (30, 10)
    assert (plan[P0].replayed, plan[P0].skipped) == (15, 5)
    assert (plan[P1].replayed, plan[P1].skipped) == (10, 0)
    assert folder.numbers() == before


def test_what_is_learnt_cannot_be_skipped_from_there(store: CheckpointStore) -> None:
    with pytest.raises(DataLossError, match=r"settled up to 20"):
        check_rewind(store, Rewind(to=2, skips=[skip(P0, 19, 25)]))


def test_a_range_of_a_strange_partition_is_refused(store: CheckpointStore) -> None:
    with pytest.raises(ConfigError, match=r"clicks:9 is no partition of checkpoint 2; it has clicks:0, clicks:1"):
        check_rewind(store, Rewind(to=2, skips=[skip(Partition("clicks", 9), 0, 5)]))


def test_a_number_that_is_not_there_is_refused(store: CheckpointStore) -> None:
    with pytest.raises(MissingCheckpointError, match=r"no checkpoint has the number 9"):
        publish_rewind(store, Rewind(to=9), incarnation=1)


def test_a_damaged_target_is_refused(store: CheckpointStore, folder: Folder) -> None:
    (folder.checkpoint(1) / "model.safetensors").write_bytes(b"x")
    with pytest.raises(CorruptError, match=r"checkpoint 1 is corrupt: model.safetensors holds 1 bytes"):
        check_rewind(store, Rewind(to=1))


def test_a_rewind_is_the_way_out_where_nothing_newer_verifies(store: CheckpointStore, folder: Folder) -> None:
    """With the names of the parents lost too, no start knows where to go on from."""
    for number in (2, 3):
        (folder.checkpoint(number) / "manifest.json").write_bytes(b"x")
        for name in folder.checkpoint(number).glob("parent-*"):
            name.unlink()
    with pytest.raises(AllCorruptError):
        CheckpointStore(folder).newest()
    assert plan_rewind(store, Rewind(to=1))[P0].back_to == 10
    publish_rewind(store, Rewind(to=1), incarnation=1)
    assert ledger_of_newest(folder).positions() == PER_STEP
