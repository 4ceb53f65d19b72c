"""What is told to be durable is: every file, name and folder is synced in the order of durability."""

from itertools import pairwise
from pathlib import Path

import pytest

from tests.faults.power_cord import SAVES, Event, complaints, recorded, traced, usable_strace, within


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    folder = tmp_path_factory.mktemp("recorded") / "clicks"
    return within(recorded(folder), folder)


def test_a_checkpoint_is_announced_after_all_its_files_and_names_are_synced_in_order(
    events: list[Event],
) -> None:
    assert complaints(events) == []
    assert [event.path for event in events if event.path.startswith("told")] == [f"told {n}" for n in range(SAVES)]
    assert any(event.kind == "link" for event in events), "a rewind was among them"
    assert any(event.to.startswith(".removing-") for event in events), "and a pruning"


def test_no_sync_of_a_save_could_be_left_out_unnoticed(events: list[Event]) -> None:
    syncs = [index for index, event in enumerate(events) if event.kind == "sync"]
    assert len(syncs) > 5 * SAVES
    assert [events[index] for index in syncs if not complaints(events[:index] + events[index + 1 :])] == []


@pytest.mark.parametrize("kind", ["rename", "say", "create", "remove"])
def test_nothing_could_come_earlier_unnoticed(events: list[Event], kind: str) -> None:
    """Whatever comes right after a sync, or after something was said, relies on it."""
    tried, unnoticed = 0, []
    for index, (before, event) in enumerate(pairwise(events)):
        relies = event.path.endswith("manifest.json") if kind == "create" else event.path != "letters"
        if event.kind == kind and before.kind in {"sync", "say"} and relies:
            swapped = [*events[:index], event, before, *events[index + 2 :]]
            unnoticed += [] if complaints(swapped) else [event]
            tried += 1
    assert tried > 0
    assert unnoticed == []


def test_the_kernel_sees_the_same(events: list[Event], tmp_path: Path) -> None:
    strace = usable_strace()
    if strace is None:
        pytest.skip("strace is not installed, or may not trace")
    folder = tmp_path / "clicks"
    seen = within(traced(folder, strace), folder)
    assert complaints(seen) == []
    assert any(event.kind == "write" for event in seen)
    assert [event for event in seen if event.kind != "write"] == events
