"""Where a checkpoint comes from: its offsets, their event times, the orders, and the chain before it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.consumers.records import Partition
from millrace.training.checkpoints import CheckpointStore, Condition, Folder, FolderLease
from millrace.training.commands import Rewind
from millrace.training.history.lineage import CheckpointLineage, lineage_of
from millrace.training.ledger.interventions import Interventions, Skip
from millrace.training.ledger.ledger import EventSpan
from tests.app.checkpoint_history import BEGAN_MS, P0, PROVENANCE, STEP_MS, folder_in, publish_history
from tests.app.checkpoint_history import rewind as publish


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    publish_history(folder_in(tmp_path), steps=3)
    return folder_in(tmp_path)


@pytest.fixture
def store(folder: Folder) -> Iterator[CheckpointStore]:
    writer = FolderLease.acquire(folder, "a test")
    yield CheckpointStore(folder, writer)
    writer.release()


def of(store: CheckpointStore, number: int) -> CheckpointLineage:
    return lineage_of(store, store.look(number))


def rewind(store: CheckpointStore, to: int, *skips: Skip) -> int:
    command = Rewind(to=to, skips=skips, by="somebody", note="why")
    return publish(store, command).number


def test_the_event_times_are_those_of_the_whole_history(store: CheckpointStore) -> None:
    assert of(store, 0).event_span == EventSpan(None, None)
    assert of(store, 3).event_span == EventSpan(BEGAN_MS, BEGAN_MS + 3 * STEP_MS - 1)


def test_a_rewind_takes_the_event_times_back(store: CheckpointStore) -> None:
    assert of(store, rewind(store, 1)).event_span == EventSpan(BEGAN_MS, BEGAN_MS + STEP_MS - 1)


def test_a_checkpoint_of_an_older_version_loads_and_leaves_missing_facts_unknown(tmp_path: Path) -> None:
    publish_history(folder_in(tmp_path / "old"), steps=2, without={"event_span", "rewound"})
    store = CheckpointStore(folder_in(tmp_path / "old"))
    found = of(store, 2)
    assert found.partitions[P0].learnt == 18
    assert found.orders == Interventions()
    assert not found.event_span.known
    assert not found.event_span.widened(1, 2).known, "what came before is still not known"
    assert of(store, 0).event_span == EventSpan(), "nothing was learnt, so there is nothing not to know"


def test_a_skip_of_an_older_version_has_no_number(store: CheckpointStore) -> None:
    facts = Skip(order="rewind-1", partition=P0, start=1, end=2, reason="bad").facts()
    old = {name: facts[name] for name in ("order", "partition", "start", "end", "reason")}
    assert Skip.of_facts(old) == Skip(order="rewind-1", partition=P0, start=1, end=2, reason="bad")


def test_the_chain_leads_to_the_beginning_with_alike_ones_in_a_row(store: CheckpointStore) -> None:
    ordered = rewind(store, 3, Skip(order="", partition=P0, start=40, end=50, reason="bad"))
    last = rewind(store, ordered)
    chain = [
        (link.first, link.last, link.count, link.reason, link.ordered_by, link.note) for link in of(store, last).chain
    ]
    assert chain == [
        (ordered, ordered, 1, "skip", "somebody", "why"),
        (3, 1, 3, "interval", None, None),
        (0, 0, 1, "start", None, None),
    ]
    assert of(store, last).chain[1].model_sha256 == PROVENANCE["model_sha256"]


def test_what_is_not_on_disk_any_more_is_a_link_without_a_reason(store: CheckpointStore, folder: Folder) -> None:
    (folder.checkpoint(2) / "manifest.json").write_bytes(b"x")
    assert [(link.first, link.reason) for link in of(store, 3).chain] == [(2, None), (1, "interval"), (0, "start")]


def test_a_ledger_whose_bytes_have_changed_is_told_of_as_damaged(store: CheckpointStore, folder: Folder) -> None:
    path = folder.checkpoint(2) / "ledger.json"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    found = of(store, 2)
    assert found.found.condition is Condition.CORRUPT
    assert found.partitions == {}
    assert not found.event_span.known
    assert found.chain


def test_overlapping_orders_stay_on_record_as_they_were_given() -> None:
    first = Skip(order="a", partition=P0, start=10, end=20, reason="")
    second = Skip(order="b", partition=P0, start=15, end=25, reason="")
    orders = Interventions(skips=(first, second))
    assert [(one.order, one.start, one.end) for one in orders.standing] == [("a", 10, 20), ("b", 20, 25)]
    assert [(one.order, one.start, one.end) for one in orders.without(["a"], 9).standing] == [("b", 15, 25)]
    assert orders.without(["a"], 9).since(orders) == orders.without(["a"], 9)
    other = Skip(order="c", partition=Partition("clicks", 1), start=0, end=1, reason="")
    assert orders.since(Interventions(skips=(other,))).skips == (other, first, second)
