"""Golden checkpoints: what earlier versions have written loads, to the last number, into the model that wrote it."""

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from millrace.training.checkpoints import CheckpointStore, Folder
from millrace.training.checkpoints.manifest import FORMAT
from millrace.training.ledger.offset_checksum import Evidence
from tests.training.checkpoints.golden.make import RECORDS, SKIPPED, in_memory, make, tiny
from tests.training.trainer_rig import P0, P1, RigOptions, Run, Topic

pytestmark = pytest.mark.tensorflow
HERE = Path(__file__).parent / "golden"
GOLDEN = sorted(path.parent for path in HERE.glob("*/*/expected.json"))


def named(path: Path) -> str:
    return str(path.relative_to(HERE))


@pytest.fixture
def topic() -> Topic:
    return Topic(P0, P1)


@pytest.fixture
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Copy the golden folder to where a trainer may write."""
    for name in ("checkpoints", "terms"):
        copytree(request.param / name, tmp_path / "clicks" / name)
    return tmp_path


def expected(golden: Path) -> dict[int, Any]:
    return {int(number): state for number, state in json.loads((golden / "expected.json").read_text()).items()}


def test_there_are_golden_checkpoints_of_every_format_up_to_the_present_one() -> None:
    assert {golden.parent.name for golden in GOLDEN} == {str(number) for number in range(1, FORMAT + 1)}


@pytest.mark.parametrize("golden", GOLDEN, ids=named)
def test_every_golden_checkpoint_verifies_and_the_last_ordered_is_gone_on_from(golden: Path) -> None:
    store, numbers = CheckpointStore(Folder(golden)), list(expected(golden))
    assert [found.number for found in reversed(store.listing(deep=True)) if found.verified] == numbers == [0, 1, 2]
    newest = store.newest()
    assert newest is not None
    assert (newest.number, newest.parent, newest.ancestors, newest.reason) == (2, 1, (1, 0), "skip")
    assert (newest.step, newest.ordered_by) == (store.manifest(1).step, "golden")
    assert store.manifest(1).note == "in the middle"
    for number in numbers:
        assert store.manifest(number).created.tzinfo is not None


@pytest.mark.parametrize(
    ("root", "golden"), [(golden, golden) for golden in GOLDEN], ids=map(named, GOLDEN), indirect=["root"]
)
def test_every_golden_checkpoint_restores_to_what_was_in_memory_and_is_gone_on_from(
    root: Path, golden: Path, topic: Topic
) -> None:
    run = Run(root, topic, RigOptions(build=tiny))
    for number, state in expected(golden).items():
        run.saving.restore_newest(run.store.manifest(number))
        assert in_memory(run) == state
        assert run.saving.changes == ()
    topic.produce(RECORDS + 20, P0)
    topic.produce(RECORDS, P1)
    run.start()
    run.reaches(RECORDS + 20)
    run.stop()
    run.leave()
    newest = run.store.newest()
    assert newest is not None
    assert (newest.number, newest.parent) == (3, 2)
    learnt = [offset for offset in range(RECORDS + 20) if offset != 7 and not SKIPPED[0] <= offset < SKIPPED[1]]
    assert run.learner.witness.testimonies()[P0] == Evidence.of(learnt)


def test_what_is_made_now_is_as_the_newest_golden_ones_are(tmp_path: Path) -> None:
    """Else the format has gained or lost a field: make golden ones of it too, as `golden/make.py` says."""
    make(tmp_path / "now")
    newest = HERE / "1" / "fourth"
    for number in (0, 1, 2):
        now, then = (Folder(path).checkpoint(number) for path in (tmp_path / "now", newest))
        assert {path.name for path in now.iterdir()} == {path.name for path in then.iterdir()}
        for path in sorted(set(now.glob("*.json")) - {now / "hyperparameters.json"}):  # its names are Keras' own
            mine, theirs = (json.loads((folder / path.name).read_text()) for folder in (now, then))
            assert keys(mine) == keys(theirs), f"{path.name} has other fields"


def keys(value: Any, at: str = "") -> set[str]:
    """Return every key of a document, by its place."""
    if isinstance(value, list):
        return {key for one in value for key in keys(one, f"{at}[]")}
    if not isinstance(value, dict):
        return set()
    return {f"{at}.{key}" for key in value} | {key for name, one in value.items() for key in keys(one, f"{at}.{name}")}


@pytest.mark.parametrize(("name", "recorded"), [("first", False), ("second", False), ("third", True)])
def test_manifests_with_and_without_live_metrics_are_read(name: str, recorded: bool) -> None:
    manifest = CheckpointStore(Folder(HERE / "1" / name)).manifest(1)
    assert (manifest.measured is not None) == bool(manifest.metrics) == recorded
    if manifest.measured is not None:
        assert manifest.measured.watched == "accuracy"
        assert manifest.measured.higher_is_better
        assert manifest.measured.baseline.keys() == manifest.metrics.keys() == {"accuracy", "loss"}
