"""A rewind reads and hashes the files of its target once, from the command to the restored state."""

from collections import Counter
from pathlib import Path

import pytest

from millrace.consumers.durable_files import FileFacts, complaint
from millrace.training.checkpoints import CheckpointStore, FolderLease, inspection, part_files
from millrace.training.checkpoints.files import read_verified
from millrace.training.commands import Rewind, Save
from millrace.training.history.rewind import plan_rewind, present_on_disk, publish_rewind
from millrace.training.history.rewind_request import Numbered, RewindRequest
from tests.app.checkpoint_history import folder_in, publish_history
from tests.training.trainer_rig import P0, Topic, running


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> Counter[Path]:
    """Count how often each file is read and hashed."""
    count = Counter[Path]()

    def read(path: Path, expected: FileFacts) -> bytes:
        count[path] += 1
        return read_verified(path, expected)

    def check(path: Path, expected: FileFacts, *, deep: bool) -> str | None:
        count[path] += deep
        return complaint(path, expected, deep=deep)

    monkeypatch.setattr(part_files, "read_verified", read)
    for module in (part_files, inspection):
        monkeypatch.setattr(module, "complaint", check)
    return count


def files_of(store: CheckpointStore, number: int) -> set[Path]:
    return {store.folder.checkpoint(number) / name for name in store.manifest(number).files}


def test_a_rewind_by_the_trainer_reads_and_hashes_its_target_once(tmp_path: Path, hashed: Counter[Path]) -> None:
    topic = Topic(P0)
    with running(tmp_path, topic) as run:
        topic.produce(60)
        run.reaches(60)
        target = run.commands.send(Save()).result(20).number
        topic.produce(60)
        run.reaches(120)
        hashed.clear()
        run.commands.send(Rewind(to=target)).result(20)
        run.reaches(120)
        ledger = run.store.folder.checkpoint(target + 1) / "ledger.json"
        counted = {path: count for path, count in hashed.items() if count}
        assert counted == {**dict.fromkeys(files_of(run.store, target), 1), ledger: 1}


def test_a_rewind_without_a_trainer_reads_and_hashes_its_target_once(tmp_path: Path, hashed: Counter[Path]) -> None:
    folder = folder_in(tmp_path)
    publish_history(folder, 3)
    writer = FolderLease.acquire(folder, "a test")
    try:
        store = CheckpointStore(folder, writer)
        plan = plan_rewind(store, RewindRequest(to=Numbered(1)), present_on_disk(store))
        publish_rewind(store, plan.prepared, incarnation=1)
    finally:
        writer.release()
    assert {hashed[path] for path in files_of(store, 1)} == {1}
