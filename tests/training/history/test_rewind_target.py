"""Where to go back to: what is written, and which checkpoint of the present timeline it comes to."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.consumers.errors import ConfigError
from millrace.consumers.records import Partition
from millrace.training.checkpoints import CheckpointStore, Folder, FolderLease
from millrace.training.commands import Rewind
from millrace.training.errors import MissingCheckpointError
from millrace.training.history.rewind_request import (
    Before,
    Best,
    Destination,
    Newest,
    NotPast,
    Numbered,
    parse_destination,
)
from millrace.training.history.rewind_target import find, timeline
from tests.app.checkpoint_history import BEGAN_MS, P0, STEP_MS, folder_in, publish_history, rewind

STEPS = 4
NOW_S = 1_763_694_000.0


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    publish_history(folder_in(tmp_path), STEPS)
    return folder_in(tmp_path)


@pytest.fixture
def store(folder: Folder) -> Iterator[CheckpointStore]:
    writer = FolderLease.acquire(folder, "a test")
    yield CheckpointStore(folder, writer)
    writer.release()


def found(store: CheckpointStore, destination: Destination) -> int:
    """Return the number of a destination's checkpoint."""
    return find(store, destination).checkpoint.manifest.number


@pytest.mark.parametrize(
    ("text", "destination"),
    [
        ("17", Numbered(17)),
        (" 017 ", Numbered(17)),
        ("2025-11-21T03:00:00Z", Before(1_763_694_000_000)),
        ("2025-11-21T04:00:00+01:00", Before(1_763_694_000_000)),
        ("-2h", Before(1_763_686_800_000)),
        ("-9999999d", Before(0)),
        ("clicks:0:1200", NotPast(P0, 1200)),
        ("a.b-c_d:12:0", NotPast(Partition("a.b-c_d", 12), 0)),
        ("latest", Newest()),
        (" best", Best()),
    ],
)
def test_a_place_is_a_number_a_time_an_age_or_an_offset(text: str, destination: Destination) -> None:
    assert parse_destination(text, now_s=NOW_S) == destination


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Latest",
        "earliest",
        "yesterday",
        "clicks:0",
        "clicks:0=5",
        "clicks:x:5",
        "-5",
        "2h",
        "1.5",
        "٣",
        "7" * 5000,
        "-" + "7" * 5000 + "h",
    ],
)
def test_what_is_no_place_names_the_ways_to_write_one(text: str) -> None:
    with pytest.raises(ConfigError, match=r"write a checkpoint's number, latest, best, a time as in"):
        parse_destination(text, now_s=NOW_S)


@pytest.mark.parametrize("text", ["2025-11-21T03:00:00", "2025-11-21"])
def test_a_time_without_a_zone_is_refused_rather_than_guessed(text: str) -> None:
    with pytest.raises(ConfigError, match="names no zone"):
        parse_destination(text, now_s=NOW_S)


@pytest.mark.parametrize(
    ("after_ms", "number"), [(0, 0), (1, 0), (STEP_MS - 1, 0), (STEP_MS, 1), (3 * STEP_MS, 3), (99 * STEP_MS, STEPS)]
)
def test_a_time_comes_to_the_newest_that_has_learnt_nothing_from_then_on(
    store: CheckpointStore, after_ms: int, number: int
) -> None:
    assert found(store, Before(BEGAN_MS + after_ms)) == number


def test_a_history_that_knows_no_event_times_goes_by_when_it_was_written(tmp_path: Path) -> None:
    publish_history(folder_in(tmp_path / "old"), STEPS, without={"event_span"})
    store = CheckpointStore(folder_in(tmp_path / "old"))
    written = [store.manifest(number).created.timestamp() * 1000 for number in range(STEPS + 1)]
    assert found(store, Before(round(written[-1]) + 10_000)) == STEPS
    assert found(store, Before(1)) == 0, "what has learnt nothing has learnt nothing from then on"


def test_where_none_will_do_those_there_are_named(store: CheckpointStore, folder: Folder) -> None:
    shutil.rmtree(folder.checkpoint(0))
    with pytest.raises(MissingCheckpointError) as caught:
        find(store, Before(BEGAN_MS))
    assert "has learnt only what is from before 2025-11-21T03:00:00Z; there are 4, 3, 2, 1" in str(caught.value)


@pytest.mark.parametrize(("offset", "number"), [(0, 0), (9, 0), (10, 1), (29, 2), (30, 3), (10**9, STEPS)])
def test_an_offset_comes_to_the_newest_that_has_not_gone_past_it(
    store: CheckpointStore, offset: int, number: int
) -> None:
    assert found(store, NotPast(P0, offset)) == number


def test_only_the_present_timeline_is_looked_at(store: CheckpointStore) -> None:
    back = rewind(store, Rewind(to=1)).number
    assert [look.number for look in timeline(store.listing())] == [back, 1, 0]
    assert found(store, NotPast(P0, 10**9)) == back
    assert found(store, Before(BEGAN_MS + 99 * STEP_MS)) == back
    again = rewind(store, Rewind(to=0)).number
    assert found(store, Before(BEGAN_MS + STEP_MS)) == again, "it is newer than 1, which was abandoned"


def test_a_damaged_one_is_passed_over_for_the_next_older(store: CheckpointStore, folder: Folder) -> None:
    path = folder.checkpoint(3) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    (folder.checkpoint(2) / "model.safetensors").unlink()
    assert found(store, NotPast(P0, 39)) == 1


def test_the_way_leads_past_a_newest_one_that_cannot_be_read(store: CheckpointStore, folder: Folder) -> None:
    (folder.checkpoint(STEPS) / "manifest.json").write_bytes(b"x")
    assert found(store, NotPast(P0, 10**9)) == STEPS - 1


def test_a_partition_that_nobody_knows_is_named_with_those_there_are(store: CheckpointStore) -> None:
    with pytest.raises(ConfigError, match="clicks:9 is no partition of this timeline; it has clicks:0, clicks:1"):
        find(store, NotPast(Partition("clicks", 9), 5))


def test_a_folder_without_checkpoints_has_no_place_to_go_back_to(tmp_path: Path) -> None:
    with pytest.raises(MissingCheckpointError, match="there are none"):
        find(CheckpointStore(folder_in(tmp_path)), Before(1))


@pytest.fixture
def scored(tmp_path: Path) -> Iterator[CheckpointStore]:
    """Return a history of which each checkpoint has a live accuracy; that of number 2 is the best."""
    publish_history(folder_in(tmp_path), STEPS, accuracies=[None, 0.6, 0.9, 0.7, 0.8])
    writer = FolderLease.acquire(folder_in(tmp_path), "a test")
    yield CheckpointStore(folder_in(tmp_path), writer)
    writer.release()


def test_best_is_the_best_by_the_watched_metric_and_says_why(scored: CheckpointStore) -> None:
    best = find(scored, Best())
    assert best.checkpoint.manifest.number == 2
    assert best.why == (
        "the best of 4 on the present timeline by accuracy (higher is better): 0.9, where guessing scores 0.5, over "
        "12,345 records"
    )
    assert find(scored, Newest()).checkpoint.manifest.number == STEPS
    assert find(scored, Newest()).why is None


def test_the_best_that_is_damaged_gives_way_to_the_second(scored: CheckpointStore) -> None:
    path = scored.folder.checkpoint(2) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert found(scored, Best()) == 4


def test_the_best_of_an_abandoned_timeline_is_not_gone_back_to(scored: CheckpointStore) -> None:
    rewind(scored, Rewind(to=1))
    assert found(scored, Best()) == 1


def test_latest_is_the_newest_that_verifies(scored: CheckpointStore) -> None:
    path = scored.folder.checkpoint(STEPS) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert found(scored, Newest()) == STEPS - 1


def test_without_metrics_there_is_no_best(store: CheckpointStore) -> None:
    with pytest.raises(MissingCheckpointError, match="no checkpoint on the present timeline has a value of"):
        find(store, Best())


def test_a_rewind_carries_the_metrics_of_its_target(scored: CheckpointStore) -> None:
    rewound, target = rewind(scored, Rewind(to=2)), scored.manifest(2)
    assert rewound.metrics == target.metrics == {"accuracy": 0.9, "loss": 0.5}
    assert rewound.measured == target.measured is not None
