"""A rewind is a checkpoint: what is ordered is what the next start finds."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.consumers.errors import ConfigError, DataLossError
from millrace.consumers.failpoints import FailpointError, arm
from millrace.consumers.records import Partition
from millrace.training.checkpoints import CheckpointStore, Folder, FolderLease
from millrace.training.commands import Rewind
from millrace.training.errors import AllCorruptError, CorruptError, MissingCheckpointError
from millrace.training.history.rewind import (
    Present,
    RewindPlan,
    plan_rewind,
    prepare_rewind,
    present_on_disk,
    publish_rewind,
)
from millrace.training.history.rewind_request import Numbered, RewindRequest
from millrace.training.history.rewind_target import verified_target
from millrace.training.ledger.interventions import Interventions, Rewound
from millrace.training.ledger.ledger import Ledger, Skip
from tests.app.checkpoint_history import P0, P1, PER_STEP, PROVENANCE, folder_in, publish_history, rewind

STEPS = 3


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    publish_history(folder_in(tmp_path), STEPS)
    return folder_in(tmp_path)


@pytest.fixture
def store(folder: Folder) -> Iterator[CheckpointStore]:
    writer = FolderLease.acquire(folder, "a test")
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


def plan(store: CheckpointStore, to: int, *skips: Skip) -> RewindPlan:
    return plan_rewind(store, RewindRequest(to=Numbered(to), skips=skips), present_on_disk(store))


def refuse(store: CheckpointStore, command: Rewind) -> None:
    prepare_rewind(verified_target(store, command.to), command, Interventions())


def test_the_next_start_is_on_the_rewound_timeline(store: CheckpointStore, folder: Folder) -> None:
    manifest = rewind(store, Rewind(to=1, note="why", by="somebody"), orders=Interventions(), incarnation=7)
    newest = CheckpointStore(folder).newest()
    assert newest is not None
    assert (newest.number, newest.parent, newest.step) == (STEPS + 1, 1, 1)
    assert (newest.number, newest.note, newest.ordered_by) == (manifest.number, "why", "somebody")
    assert ledger_of_newest(folder).positions() == PER_STEP


def test_a_kill_right_after_the_order_changes_nothing_about_it(folder: Folder) -> None:
    writer = FolderLease.acquire(folder, "a test")
    arm("save.before_prune=raise")
    try:
        with pytest.raises(FailpointError):
            rewind(CheckpointStore(folder, writer), Rewind(to=1))
    finally:
        arm("")
        writer.release()
    assert ledger_of_newest(folder).positions() == PER_STEP


def test_the_other_parts_are_the_targets_own(store: CheckpointStore) -> None:
    manifest = rewind(store, Rewind(to=2, skips=[skip(P0, 20, 25)]), orders=Interventions())
    ordered, target = store.load(manifest.number), store.load(2)
    assert ordered["progress"].facts == target["progress"].facts
    assert (ordered["model"].arrays["w"] == target["model"].arrays["w"]).all()


def test_an_order_says_where_its_state_comes_from(store: CheckpointStore) -> None:
    assert rewind(store, Rewind(to=1), orders=Interventions()).provenance == PROVENANCE
    assert rewind(store, Rewind(to=1), orders=Interventions(), provenance={"a": 1}).provenance == {"a": 1}


def test_the_incarnation_never_goes_back(store: CheckpointStore, folder: Folder) -> None:
    rewind(store, Rewind(to=0), orders=Interventions(), incarnation=41)
    assert ledger_of_newest(folder).incarnation == 41


def test_a_plan_counts_what_is_read_again_and_what_is_not(store: CheckpointStore, folder: Folder) -> None:
    before = folder.numbers()
    found = plan(store, 1, skip(P0, 12, 15), skip(P0, 28, 99)).partitions
    assert (found[P0].position, found[P0].back_to) == (30, 10)
    assert (found[P0].replayed, found[P0].skipped) == (15, 5)
    assert (found[P1].replayed, found[P1].skipped) == (10, 0)
    assert folder.numbers() == before


def test_what_is_learnt_cannot_be_skipped_from_there(store: CheckpointStore) -> None:
    with pytest.raises(DataLossError, match=r"settled up to 20"):
        refuse(store, Rewind(to=2, skips=[skip(P0, 19, 25)]))


def test_a_range_of_a_strange_partition_is_refused(store: CheckpointStore) -> None:
    with pytest.raises(ConfigError, match=r"clicks:9 is no partition of checkpoint 2; it has clicks:0, clicks:1"):
        refuse(store, Rewind(to=2, skips=[skip(Partition("clicks", 9), 0, 5)]))


def test_a_number_that_is_not_there_is_refused(store: CheckpointStore) -> None:
    with pytest.raises(MissingCheckpointError, match=r"no checkpoint has the number 9"):
        rewind(store, Rewind(to=9), orders=Interventions())


def test_a_damaged_target_is_refused(store: CheckpointStore, folder: Folder) -> None:
    (folder.checkpoint(1) / "model.safetensors").write_bytes(b"x")
    with pytest.raises(CorruptError, match=r"checkpoint 1 is corrupt: model.safetensors holds 1 bytes"):
        refuse(store, Rewind(to=1))


def test_a_rewind_is_the_way_out_where_nothing_newer_verifies(store: CheckpointStore, folder: Folder) -> None:
    """With the names of the parents lost too, no start knows where to go on from."""
    for number in (2, 3):
        (folder.checkpoint(number) / "manifest.json").write_bytes(b"x")
        for name in folder.checkpoint(number).glob("parent-*"):
            name.unlink()
    with pytest.raises(AllCorruptError):
        CheckpointStore(folder).newest()
    assert plan(store, 1).partitions[P0].back_to == 10
    rewind(store, Rewind(to=1), orders=Interventions())
    assert ledger_of_newest(folder).positions() == PER_STEP


def test_a_target_that_was_damaged_after_the_planning_is_found(store: CheckpointStore, folder: Folder) -> None:
    command = plan(store, 1).prepared.command
    path = folder.checkpoint(1) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(CorruptError, match=r"model.safetensors is not what was written"):
        refuse(store, command)


def test_a_target_that_was_pruned_since_it_was_verified_is_not_published(
    store: CheckpointStore, folder: Folder
) -> None:
    prepared = plan(store, 1).prepared
    shutil.rmtree(folder.checkpoint(1))
    with pytest.raises(MissingCheckpointError):
        publish_rewind(store, prepared, incarnation=1)
    assert folder.numbers() == [0, 2, 3]


# What was ordered holds on every later replay.


def carried_out(store: CheckpointStore, **order: Any) -> int:
    """Order a rewind as a process without a trainer does; its number."""
    command = Rewind(by="somebody", note="why", **order)
    return rewind(store, command).number


def test_a_skip_holds_after_a_rewind_to_before_it_was_ordered(store: CheckpointStore, folder: Folder) -> None:
    ordered = carried_out(store, to=2, skips=[skip(P0, 22, 25)])
    carried_out(store, to=1)
    assert [(piece.order, piece.start, piece.end) for piece in ledger_of_newest(folder).skips] == [
        (f"rewind-{ordered}", 22, 25)
    ]


def test_a_skip_holds_after_a_rewind_to_a_timeline_that_never_knew_it(store: CheckpointStore, folder: Folder) -> None:
    carried_out(store, to=1, skips=[skip(P0, 15, 25)])
    carried_out(store, to=2)
    newest = ledger_of_newest(folder)
    assert newest.positions()[P0] == 20, "five offsets of the range are learnt there"
    assert [(piece.start, piece.end) for piece in newest.skips] == [(15, 25)]
    carried_out(store, to=0)
    assert [(piece.start, piece.end) for piece in ledger_of_newest(folder).skips] == [(15, 25)]


def test_an_order_is_known_by_the_number_that_it_was_published_as(store: CheckpointStore, folder: Folder) -> None:
    first = carried_out(store, to=1, skips=[skip(P0, 12, 15), skip(P1, 7, 9)])
    second = carried_out(store, to=1, skips=[skip(P0, 14, 18)])
    orders = ledger_of_newest(folder).orders
    assert [(one.order, one.number, one.by, one.start, one.end) for one in orders.skips] == [
        (f"rewind-{first}", first, "somebody", 12, 15),
        (f"rewind-{first}", first, "somebody", 7, 9),
        (f"rewind-{second}", second, "somebody", 14, 18),
    ]
    assert orders.rewound == Rewound(number=second, to=1, by="somebody", why="why")


def test_an_order_that_is_taken_back_holds_no_more_and_stays_on_record(store: CheckpointStore, folder: Folder) -> None:
    first = carried_out(store, to=1, skips=[skip(P0, 12, 15)])
    second = carried_out(store, to=1, skips=[skip(P0, 14, 18)])
    third = carried_out(store, to=0, unskip=[f"rewind-{first}"])
    newest = ledger_of_newest(folder)
    assert [(piece.order, piece.start, piece.end) for piece in newest.skips] == [(f"rewind-{second}", 14, 18)]
    assert [one.lifted_by for one in newest.orders.skips] == [third, None]
    carried_out(store, to=first)
    assert [piece.order for piece in ledger_of_newest(folder).skips] == [f"rewind-{second}"], "it came back"


def test_an_order_that_is_not_there_cannot_be_taken_back(store: CheckpointStore, folder: Folder) -> None:
    ordered = carried_out(store, to=1, skips=[skip(P0, 12, 15)])
    with pytest.raises(ConfigError, match=rf"'rewind-99' is no order that holds; there is rewind-{ordered}"):
        carried_out(store, to=1, unskip=["rewind-99"])
    assert folder.numbers()[-1] == ordered


def test_orders_outlive_the_damage_of_the_checkpoint_that_they_were_published_as(
    store: CheckpointStore, folder: Folder
) -> None:
    carried_out(store, to=1, skips=[skip(P0, 12, 15)])
    last = carried_out(store, to=1)
    (folder.checkpoint(last) / "ledger.json").write_bytes(b"x")
    carried_out(store, to=0)
    assert [(piece.start, piece.end) for piece in ledger_of_newest(folder).skips] == [(12, 15)]


def test_a_plan_knows_what_kafka_has_no_more(store: CheckpointStore) -> None:
    found = plan(store, 1).with_earliest({P0: 17, P1: 0})
    assert (found.partitions[P0].gone, found.partitions[P1].gone, found.gone) == (7, 0, 7)
    beyond = plan(store, 1).with_earliest({P0: 99, P1: 0})
    assert beyond.partitions[P0].gone == 20, "what is ahead of the present position is lost in any case"
    assert plan(store, 1).with_earliest({P0: 17}).gone is None
    assert plan(store, 1).with_earliest(None).gone is None


def test_a_plan_counts_what_earlier_orders_skip(store: CheckpointStore) -> None:
    carried_out(store, to=2, skips=[skip(P0, 22, 25)])
    orders = present_on_disk(store).orders
    present = Present(positions={P0: 30, P1: 15}, orders=orders)
    found = plan_rewind(store, RewindRequest(to=Numbered(1)), present).partitions
    assert (found[P0].replayed, found[P0].skipped) == (17, 3)
