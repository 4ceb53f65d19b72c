"""The right to write: one holder, a term that only grows, records that no stopped process can overwrite."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest

from millrace.consumers.errors import ConfigError
from millrace.training.checkpoints import Folder, FolderLease, LeaseOptions
from millrace.training.checkpoints.fencing import NOTHING, TermRecord, Terms, begin
from millrace.training.errors import CorruptError, FolderBusyError, PassedError


def test_a_released_folder_is_taken_at_once_with_the_next_term(folder: Folder) -> None:
    first = FolderLease.acquire(folder, "first")
    first.release()
    second = FolderLease.acquire(folder, "second")
    assert (first.term, second.term) == (1, 2)
    assert folder.locks() == [2]
    second.release()


def test_a_held_folder_is_refused_within_the_same_process_too(folder: Folder, quick: LeaseOptions) -> None:
    first = FolderLease.acquire(folder, "first", options=quick)
    with pytest.raises(FolderBusyError, match=rf"held by first \(process {os.getpid()} "):
        FolderLease.acquire(folder, "second", options=quick)
    first.release()


def test_of_many_that_start_at_once_one_gets_the_folder(folder: Folder, quick: LeaseOptions) -> None:
    def attempt(name: str) -> FolderLease | None:
        try:
            return FolderLease.acquire(folder, name, options=quick)
        except FolderBusyError:
            return None

    for _ in range(20):
        with ThreadPoolExecutor(8) as pool:
            won = [writer for writer in pool.map(attempt, map(str, range(8))) if writer is not None]
        for writer in won:
            writer.release()
        assert len(won) == 1
        assert won[0].term == folder.highest_term()


def test_a_writer_that_shows_no_life_is_passed_and_told_once(folder: Folder, quick: LeaseOptions) -> None:
    told: list[PassedError] = []
    heard = threading.Event()

    def on_passed(error: PassedError) -> None:
        told.append(error)
        heard.set()

    idle = LeaseOptions(renew_every=3.0)
    first = FolderLease.acquire(folder, "first", options=idle, on_passed=on_passed)
    second = FolderLease.acquire(folder, "second", options=quick)
    with pytest.raises(PassedError, match=r"second \(process .* took over .* with term 2"):
        first.check()
    assert heard.wait(10)
    second.check()
    first.release()
    second.release()
    assert len(told) == 1


@pytest.mark.parametrize("inside", ["file/clicks", "file"])
def test_a_path_that_cannot_be_written_is_a_wrong_setting(tmp_path: Path, inside: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"checkpoints\.path: cannot write to .*; make it a folder") as caught:
        FolderLease.acquire(Folder(tmp_path / inside), "a test")
    assert "\n" not in str(caught.value)


def test_terms_that_published_nothing_are_forgotten_and_the_last_is_not(folder: Folder) -> None:
    for _ in range(5):
        FolderLease.acquire(folder, "a crash loop").release()
    terms = Terms.read(folder)
    assert [(record.term, record.began_after) for record in terms.records] == [(5, NOTHING)]
    assert folder.highest_term() == 5


def test_a_fence_stands_where_a_greater_term_began(folder: Folder) -> None:
    folder.create()
    begin(folder, 1, {})
    folder.checkpoint(0).mkdir()
    folder.checkpoint(1).mkdir()
    begin(folder, 2, {})
    folder.checkpoint(5).mkdir()
    begin(folder, 4, {})
    terms = Terms.read(folder)
    fenced = {(term, number) for term in (1, 2, 3, 4) for number in range(8) if terms.fences(term, number)}
    assert fenced == {(1, n) for n in range(2, 8)} | {(2, 6), (2, 7), (3, 6), (3, 7)}
    assert terms.published == 5


def test_a_record_written_late_by_a_passed_writer_moves_no_fence(folder: Folder) -> None:
    folder.create()
    folder.checkpoint(0).mkdir()
    begin(folder, 3, {})
    folder.checkpoint(1).mkdir()
    begin(folder, 2, {})
    terms = Terms.read(folder)
    assert terms.fences(2, 1)
    assert not terms.fences(3, 1)


@pytest.mark.parametrize("seed", range(20))
def test_folded_records_fence_what_all_of_them_did_whatever_is_removed(folder: Folder, seed: int) -> None:
    """A kill between two removals leaves any of the files that the newest one holds."""
    random, all_records, copies = Random(seed), list[TermRecord](), dict[Path, bytes]()
    folder.create()
    terms = random.sample(range(1, 30), 15)
    for term in sorted(terms, key=lambda one: one + random.choice([0, 0, 0, 6])):  # some write theirs late
        for _ in range(random.choice([0, 0, 1, 3])):
            folder.checkpoint(max([NOTHING, *folder.numbers()]) + 1).mkdir()
        all_records.append(begin(folder, term, {"holder": "a test"}))
        copies |= {folder.term(left): folder.term(left).read_bytes() for left in folder.recorded_terms()}
        for path in random.sample(sorted(copies), len(copies) // 2):
            path.write_bytes(copies[path])
    everything = Terms.of({0: all_records})
    for _ in range(3):
        found = Terms.read(folder)
        assert found.published == everything.published
        assert [found.fences(t, n) for t in range(31) for n in range(40)] == [
            any(record.term > t and n > record.began_after for record in all_records)
            for t in range(31)
            for n in range(40)
        ]
        begin(folder, folder.highest_term() + 1, {})  # as a restart that publishes nothing
        all_records.append(TermRecord(term=folder.highest_term(), began_after=everything.published, holder={}))
        folder.term(folder.recorded_terms()[0]).unlink()  # the second copy


def test_restarts_that_publish_do_not_fill_the_volume_with_their_terms(folder: Folder) -> None:
    folder.create()
    for term in range(1, 201):
        folder.checkpoint(term).mkdir()
        begin(folder, term, {"holder": "a trainer"})
    assert folder.recorded_terms() == [199, 200]
    assert sum(path.stat().st_size for path in folder.terms.iterdir()) < 200 * 2 * 20
    assert Terms.read(folder).fences(7, 9)
    assert not Terms.read(folder).fences(8, 9)


def test_terms_are_read_again_when_a_record_was_folded_meanwhile(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.create()
    for number in range(3):
        folder.checkpoint(number).mkdir()
        begin(folder, number + 1, {})
    listed = Folder.recorded_terms

    def and_a_writer_begins(asked: Folder) -> list[int]:
        before = listed(asked)
        monkeypatch.setattr(Folder, "recorded_terms", listed)
        begin(folder, 4, {})
        begin(folder, 5, {})
        return before

    monkeypatch.setattr(Folder, "recorded_terms", and_a_writer_begins)
    assert Terms.read(folder).fences(1, 2)


@pytest.mark.parametrize("harm", ["flipped", "swapped"])
def test_a_damaged_record_of_a_term_is_refused_with_a_way_out(folder: Folder, harm: str) -> None:
    folder.create()
    begin(folder, 1, {})
    raw = bytearray(folder.term(1).read_bytes())
    if harm == "swapped":
        folder.term(1).rename(folder.term(7))
    else:
        raw[20] ^= 1
        folder.term(1).write_bytes(raw)
    before = set(threading.enumerate())
    with pytest.raises(CorruptError, match="bring"):
        Terms.read(folder)
    with pytest.raises(CorruptError, match="bring"):
        FolderLease.acquire(folder, "a test")
    assert set(threading.enumerate()) <= before


def test_a_full_disk_does_not_cost_the_lease(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = FolderLease.acquire(folder, "a test")
    before = folder.lock(1).stat().st_mtime_ns

    def full(*_args: Any, **_more: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    monkeypatch.setattr(Path, "open", full)
    writer.touch()
    monkeypatch.undo()
    assert folder.lock(1).stat().st_mtime_ns > before
    writer.release()
