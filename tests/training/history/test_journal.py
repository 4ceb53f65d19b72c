"""Row 34. The journal on disk: a segment for each checkpoint that was published, and for no other."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.consumers.failpoints import arm
from millrace.consumers.records import Partition
from millrace.training.checkpoints.folder import Folder
from millrace.training.checkpoints.lease import FolderLease
from millrace.training.checkpoints.manifest import JournalEntry, SaveReason, SaveRequest
from millrace.training.checkpoints.parts import PartState
from millrace.training.checkpoints.policies import KeepLast
from millrace.training.checkpoints.store import CheckpointStore, StoreOptions
from millrace.training.errors import CheckpointError, NoRoomError
from millrace.training.history.journal import Journal, JournalReader

pytestmark = pytest.mark.row(34)
CLICKS = Partition("clicks", 0)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "clicks")


@pytest.fixture(autouse=True)
def _nothing_armed() -> Iterator[None]:
    yield
    arm("")


class Writer:
    """One process that publishes."""

    def __init__(self, folder: Folder) -> None:
        self.lease = FolderLease.acquire(folder, "a test")
        options = StoreOptions(keep=KeepLast(1), before_publishing=Journal(folder).append)
        self.store = CheckpointStore(folder, self.lease, options)

    def publish(self, parent: int | None, blocks: bytes) -> int:
        ledger: dict[str, object] = {"partitions": {}, "skips": []}
        request = SaveRequest(
            reason=SaveReason.STEPS,
            parent=parent,
            step=3,
            incarnation=1,
            positions={CLICKS: 7},
            journal=lambda: JournalEntry(ledger=ledger, blocks=blocks),
        )
        return self.store.publish(request, {"ledger": PartState(facts=ledger)}).number


def _blocks(folder: Folder) -> dict[int, bytes]:
    reader = JournalReader(folder)
    found = {number: reader.segment(number) for number in reader.numbers}
    return {number: segment.blocks for number, segment in found.items() if segment is not None}


def test_every_checkpoint_has_its_segment_also_when_it_is_pruned(folder: Folder) -> None:
    writer, parent = Writer(folder), None
    for text in (b"", b"one", b"two", b"three", b"four"):
        parent = writer.publish(parent, text)
    assert folder.numbers() == [0, 3, 4]
    assert _blocks(folder) == {0: b"", 1: b"one", 2: b"two", 3: b"three", 4: b"four"}
    segment = JournalReader(folder).segment(2)
    assert segment is not None
    assert (segment.parent, segment.step, segment.positions) == (1, 3, {"clicks:0": 7})


@pytest.mark.parametrize("action", ["full", "raise"])
def test_of_a_save_that_failed_after_its_segment_the_next_one_counts(folder: Folder, action: str) -> None:
    writer = Writer(folder)
    writer.publish(None, b"")
    arm(f"journal.after_segment={action}:once")
    with pytest.raises((NoRoomError, CheckpointError, RuntimeError)):
        writer.publish(0, b"failed")
    assert writer.publish(0, b"failed and more") == 1
    assert _blocks(folder) == {0: b"", 1: b"failed and more"}


def test_a_segment_whose_checkpoint_was_never_published_is_fenced_by_the_next_writer(folder: Folder) -> None:
    first = Writer(folder)
    first.publish(None, b"")
    arm("journal.after_segment=raise:once")
    with pytest.raises(RuntimeError):
        first.publish(0, b"never published")
    first.lease.release()
    second = Writer(folder)
    assert _blocks(folder) == {0: b""}
    assert second.publish(0, b"published") == 1
    assert _blocks(folder) == {0: b"", 1: b"published"}


@pytest.mark.parametrize("left", [1, 11, 12, 100])
def test_a_segment_that_a_kill_has_cut_off_is_left_out(folder: Folder, left: int) -> None:
    writer = Writer(folder)
    writer.publish(None, b"")
    path = folder.journal_of(writer.lease.term)
    before = path.stat().st_size
    writer.publish(0, b"cut off")
    path.write_bytes(path.read_bytes()[: before + left])
    assert _blocks(folder) == {0: b""}
    assert JournalReader(folder).problems == [
        f"{path} ends at byte {before} of {before + left}: the rest is cut off or damaged"
    ]


def test_a_flipped_bit_is_found(folder: Folder) -> None:
    writer = Writer(folder)
    writer.publish(None, b"")
    writer.publish(0, b"learnt")
    path = folder.journal_of(writer.lease.term)
    raw = bytearray(path.read_bytes())
    raw[-40] ^= 1
    path.write_bytes(raw)
    assert _blocks(folder) == {0: b""}


def test_what_a_full_disk_has_left_half_written_is_taken_back(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(folder)
    writer.publish(None, b"")
    real = os.pwrite

    def half(handle: int, raw: bytes, at: int) -> int:
        real(handle, bytes(raw)[:5], at)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", half)
        with pytest.raises(NoRoomError):
            writer.publish(0, b"too much")
    assert writer.publish(0, b"learnt") == 1
    assert _blocks(folder) == {0: b"", 1: b"learnt"}
