"""The mirror, in a folder and in S3: nothing half there, nothing of a writer that was passed, the same bytes back."""

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from millrace.consumers.durable_files import FileFacts
from millrace.consumers.errors import UnreachableError
from millrace.consumers.failpoints import FailpointError, arm
from millrace.training.checkpoints import CheckpointStore, Folder, FolderLease, Manifest, StoreOptions
from millrace.training.checkpoints.mirror import mirror as mirror_module
from millrace.training.checkpoints.mirror import mirroring as mirroring_module
from millrace.training.checkpoints.mirror.mirror import MARKER, Mirror, mirror_name
from millrace.training.checkpoints.mirror.mirroring import NUMBERS, Mirroring
from millrace.training.checkpoints.mirror.target import target_at
from millrace.training.checkpoints.pins import Pins
from millrace.training.checkpoints.policies import KeepLast
from millrace.training.errors import AllCorruptError, CheckpointError, CorruptError, PassedError
from tests.conftest import WaitFor
from tests.consumers.archive.s3_server import S3Server
from tests.training.checkpoints.conftest import MakeOrder, MakeParts

pytestmark = pytest.mark.row(46)
Place = Path | str
NAME = "clicks"
KEEP = KeepLast(5)


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Give an empty folder, and the URL of one in an object store."""
    found: Place = tmp_path / "mirror" if request.param == "folder" else request.getfixturevalue("bucket")
    return found


@dataclass
class Trainer:
    """A writer of checkpoints with a volume of its own."""

    folder: Folder
    writer: FolderLease
    store: CheckpointStore
    mirror: Mirror
    make: Callable[[int | None, int], Manifest]

    def publish(self, *, step: int | None = None) -> Manifest:
        """Publish a child of the newest checkpoint."""
        newest = self.store.newest()
        number = None if newest is None else newest.number
        return self.make(number, (0 if newest is None else newest.step + 1) if step is None else step)

    def copy(self, manifest: Manifest) -> None:
        """Copy a checkpoint into the mirror."""
        self.mirror.put(self.folder, manifest.number, self.writer.term)


Starts = Callable[..., Any]


@pytest.fixture
def starts(tmp_path: Path, order: MakeOrder, parts: MakeParts) -> Starts:
    """Start a writer on a volume, as a start of a trainer does."""

    @contextmanager
    def start(place: Place, volume: str, *, claims: bool = True, keep: int = 5) -> Iterator[Trainer]:
        folder = Folder(tmp_path / volume / NAME)
        mirroring = Mirroring(place, NAME, KEEP)
        mirroring.pull_terms(folder)
        writer = FolderLease.acquire(folder, f"a test on {volume}", before_term=mirroring.bring_back)
        mirror = Mirror(target_at(place, NAME))
        if claims:
            mirror.look()
            mirror.claim(writer)
        store = CheckpointStore(folder, writer, StoreOptions(keep=KeepLast(keep)))

        def make(parent: int | None, step: int) -> Manifest:
            return store.publish(order(parent, step=step), parts(step))

        try:
            yield Trainer(folder, writer, store, mirror, make)
        finally:
            writer.release()

    return start


def contents(path: Path) -> dict[str, bytes]:
    """Return the files of a folder."""
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_an_empty_volume_gets_the_newest_checkpoint_back_byte_for_byte(place: Place, starts: Starts) -> None:
    with starts(place, "first") as first:
        for _ in range(3):
            first.copy(newest := first.publish())
        (first.folder.root / "labels").mkdir()
        (first.folder.root / "labels" / "jumps").write_text("labels:0 7 1000\n")
        first.copy(newest := first.publish())
        before = contents(first.folder.checkpoint(newest.number))
    with starts(place, "second") as second:
        assert second.folder.numbers() == [newest.number]
        assert contents(second.folder.checkpoint(newest.number)) == before
        assert (second.folder.root / "labels" / "jumps").read_text() == "labels:0 7 1000\n"
        assert second.store.newest() == newest
        assert second.writer.term == first.writer.term + 1
        child = second.publish()
        assert (child.number, child.parent) == (NUMBERS, newest.number), "no number is given twice"
        assert second.store.newest() == child, "its own term does not fence what it publishes"


def test_a_volume_with_checkpoints_that_are_as_new_is_left_as_it_is(place: Place, starts: Starts) -> None:
    with starts(place, "first") as first:
        first.copy(first.publish())
        newer = first.publish()
    with starts(place, "first") as again:
        assert again.store.newest() == newer
        again.copy(newer)
        assert mirror_name(newer) in again.mirror.whole


def test_a_volume_that_is_behind_the_mirror_gets_the_newest_checkpoint(
    place: Place, starts: Starts, tmp_path: Path
) -> None:
    with starts(place, "first") as first:
        first.copy(first.publish())
    shutil.copytree(tmp_path / "first", tmp_path / "snapshot")
    with starts(place, "first") as first:
        first.copy(newest := first.publish())
    with starts(place, "snapshot") as old:
        assert old.folder.numbers() == [0, newest.number]
        assert old.store.newest() == newest


def test_a_copy_that_was_cut_off_is_not_in_the_mirror_and_goes_with_the_next(place: Place, starts: Starts) -> None:
    with starts(place, "first") as first:
        first.copy(whole := first.publish())
        torn = first.publish()
        arm("mirror.before_marker=raise")
        with pytest.raises(FailpointError):
            first.copy(torn)
        arm("")
        with starts(place, "second") as second:
            assert second.store.newest() == whole
            second.copy(newest := second.publish())
            second.mirror.prune(second.folder, newest, KEEP, (), second.writer.term)
            there = second.mirror.target.folders("checkpoints")
            assert sorted(there) == [mirror_name(whole), mirror_name(newest)]


def test_what_a_writer_copies_that_was_cut_off_is_never_brought_back(
    place: Place, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    with starts(place, "first") as first:
        first.copy(first.publish())
        with starts(place, "second") as second:
            second.copy(theirs := second.publish(step=7))
            late = first.publish(step=1)
            assert (late.number, theirs.number) == (1, NUMBERS)
            with pytest.raises(PassedError, match=r"another trainer writes to .*term 2: stop one of the two"):
                first.copy(late)
            # It may stand still between its look and its put.
            monkeypatch.setattr(Mirror, "require", lambda *_: None)
            first.copy(late)
            first.copy(first.publish(step=2))
    with starts(place, "third") as third:
        assert third.store.newest() == theirs


def test_a_writer_that_was_cut_off_removes_nothing_of_the_one_after_it(
    place: Place, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def there(trainer: Trainer) -> dict[str, list[str]]:
        target = trainer.mirror.target
        return {name: sorted(target.files(f"checkpoints/{name}")) for name in target.folders("checkpoints")}

    with starts(place, "first") as first:
        made = [first.publish() for _ in range(4)]
        for manifest in made:
            first.copy(manifest)
        with starts(place, "second") as second:
            for step in (7, 8):
                second.copy(newest := second.publish(step=step))
            before = there(second)
            # The first one stood still between its marker and its pruning.
            with pytest.raises(PassedError, match=r"another trainer writes to .*term 2"):
                first.mirror.prune(first.folder, made[-1], KeepLast(1), (), first.writer.term)
            assert there(second) == before
            # It may stand still after its look, too.
            monkeypatch.setattr(Mirror, "require", lambda *_: None)
            first.mirror.prune(first.folder, made[-1], KEEP, (), first.writer.term)
            assert there(second) == before
    with starts(place, "third") as third:
        assert third.store.newest() == newest


def test_of_two_writers_of_the_same_term_one_gets_the_mirror(place: Place, starts: Starts) -> None:
    with starts(place, "first", claims=False) as first, starts(place, "second", claims=False) as second:
        assert first.writer.term == second.writer.term
        first.mirror.claim(first.writer)
        first.mirror.claim(first.writer)  # an answer that was lost is asked for again
        with pytest.raises(PassedError):
            second.mirror.claim(second.writer)


def test_a_damaged_copy_is_passed_over_for_its_parent_and_never_loaded(
    place: Place, starts: Starts, tmp_path: Path
) -> None:
    with starts(place, "first") as first:
        first.copy(sound := first.publish())
        for problem in ("", "cut"):
            first.copy(newest := first.publish())
            key = f"checkpoints/{mirror_name(newest)}/model.safetensors"
            raw = bytearray(next(iter(first.mirror.target.read([key]))))
            raw[-1] ^= 1
            first.mirror.target.put(key, bytes(raw[: len(raw) - 3 * bool(problem)]))
    with starts(place, "second") as second:
        assert second.folder.numbers() == [sound.number]
        assert second.store.newest() == sound
    first.mirror.target.remove([f"checkpoints/{mirror_name(sound)}/ledger.json"])
    with (
        pytest.raises(AllCorruptError, match=r"checkpoints.mirror: neither .* is what was written"),
        starts(place, "third"),
    ):
        pass
    assert list((tmp_path / "third" / NAME / "checkpoints").iterdir()) == []


def test_a_damaged_marker_stops_a_start_only_if_its_checkpoint_may_be_the_newest(place: Place, starts: Starts) -> None:
    with starts(place, "first") as first:
        first.copy(first.publish())
        first.copy(newest := first.publish())
        key = f"checkpoints/{mirror_name(newest)}/{MARKER}"
        first.mirror.target.put(key, b"{}")
    with pytest.raises(CorruptError, match=rf"{MARKER} is not what was written .* remove it"), starts(place, "second"):
        pass
    with starts(place, "first") as again:
        assert again.store.newest() == newest
        again.copy(newest := again.publish())
        again.mirror.prune(again.folder, newest, KeepLast(1), (), again.writer.term)
        assert next(iter(again.mirror.target.read([key]))) == b"{}", "what cannot be judged is left alone"


def test_the_mirror_keeps_what_the_policy_keeps_what_is_pinned_and_the_beginning(place: Place, starts: Starts) -> None:
    with starts(place, "first", keep=20) as first:
        made = [first.publish() for _ in range(8)]
        for manifest in made:
            first.copy(manifest)
        Pins(first.folder).pin(3, "ann")
        first.mirror.prune(first.folder, made[-1], KeepLast(1), Pins(first.folder).numbers(), first.writer.term)
        kept = [made[0], made[3], made[6], made[7]]
        assert sorted(first.mirror.target.folders("checkpoints")) == [mirror_name(one) for one in kept]
        again = Mirror(first.mirror.target)
        again.look()
        assert sorted(again.whole) == [mirror_name(one) for one in kept]


def test_a_checkpoint_that_is_pruned_while_it_is_copied_is_whole_in_the_mirror(
    place: Place, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    with starts(place, "first") as first:
        manifest = first.publish()
        read = mirror_module._opened

        def open_and_prune(opened: Any, path: Path) -> int:
            handle = read(opened, path)
            path.unlink()
            return handle

        monkeypatch.setattr(mirror_module, "_opened", open_and_prune)
        first.copy(manifest)
    with starts(place, "second") as second:
        assert second.store.newest() == manifest


def test_what_was_put_otherwise_than_it_was_read_gets_no_marker(
    place: Place, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    with starts(place, "first") as first:
        manifest, target = first.publish(), first.mirror.target
        put = type(target).put_file

        def put_and_flip(self: Any, key: str, path: str, *, replace: bool = False) -> None:
            put(self, key, path, replace=replace)
            raw = bytearray(next(iter(target.read([key]))))
            raw[-1] ^= 1
            target.put(key, bytes(raw))

        monkeypatch.setattr(type(target), "put_file", put_and_flip)
        with pytest.raises(CheckpointError, match="SHA-256 differs"):
            first.copy(manifest)
        assert MARKER not in target.files(f"checkpoints/{mirror_name(manifest)}")


def test_the_thread_copies_the_newest_and_at_the_end_the_last(place: Place, starts: Starts, wait_for: WaitFor) -> None:
    with starts(place, "first", claims=False) as first:
        mirroring = Mirroring(place, NAME, KEEP)
        mirroring.start(first.writer)
        for _ in range(3):
            mirroring.durable(first.publish())
        wait_for(lambda: (figures := mirroring.figures()) is not None and figures.waiting_since is None)
        mirroring.durable(newest := first.publish())
        mirroring.stop(60.0)
        figures = mirroring.figures()
        assert figures is not None
        assert (figures.number, figures.waiting_since, figures.failed, figures.error) == (newest.number, None, 0, None)
        assert 1 <= figures.copied <= 4
    with starts(place, "second") as second:
        assert second.store.newest() == newest


@pytest.mark.slow  # starts a server of S3
def test_a_mirror_that_is_away_stops_nothing_and_is_caught_up_with(
    bucket: str, s3_server: S3Server, starts: Starts, monkeypatch: pytest.MonkeyPatch, wait_for: WaitFor
) -> None:
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 1)
    monkeypatch.setattr(mirroring_module, "FIRST_RETRY_S", 0.01)
    with starts(bucket, "first", claims=False) as first:
        mirroring = Mirroring(bucket, NAME, KEEP)
        s3_server.go_away()
        try:
            mirroring.start(first.writer)
            mirroring.durable(newest := first.publish())
            wait_for(lambda: (figures := mirroring.figures()) is not None and figures.failed > 1)
            figures = mirroring.figures()
            assert figures is not None
            assert figures.waiting_since is not None
            assert (figures.error or "").startswith(f"checkpoints.mirror: {bucket}/{NAME} cannot be reached")
        finally:
            s3_server.come_back()
        wait_for(lambda: (figures := mirroring.figures()) is not None and figures.number == newest.number)
        assert (figures := mirroring.figures()) is not None
        assert (figures.error, figures.waiting_since) == (None, None)
        mirroring.stop(60.0)


@pytest.mark.slow  # starts a server of S3
def test_without_its_mirror_a_start_needs_checkpoints_of_its_own(
    bucket: str, s3_server: S3Server, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 1)
    with starts(bucket, "first") as first:
        manifest = first.publish()
    s3_server.go_away()
    try:
        with starts(bucket, "first", claims=False) as first:
            assert first.store.newest() == manifest
        with (
            pytest.raises(
                UnreachableError, match=r"checkpoints.mirror: .* cannot be reached.*is empty, and only the mirror"
            ),
            starts(bucket, "second"),
        ):
            pass
    finally:
        s3_server.come_back()


def test_a_folder_that_is_away_stops_no_start_that_has_checkpoints_of_its_own(starts: Starts, tmp_path: Path) -> None:
    place = tmp_path / "mirror"
    with starts(place, "first") as first:
        first.copy(manifest := first.publish())
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(place)  # each look at it fails, as one at a network's folder that is away
    with starts(place, "first", claims=False) as first:
        assert first.store.newest() == manifest
    with (
        pytest.raises(UnreachableError, match=r"checkpoints.mirror: .* cannot be read.*is empty, and only the mirror"),
        starts(place, "second", claims=False),
    ):
        pass


def test_a_writer_that_was_cut_off_goes_on_from_what_came_after_it(starts: Starts, tmp_path: Path) -> None:
    place = tmp_path / "mirror"
    with starts(place, "first") as first:
        first.copy(first.publish())
        with starts(place, "second") as second:
            second.copy(theirs := second.publish(step=7))
            first.publish(step=1)
    with starts(place, "first") as back:
        assert back.store.newest() == theirs
        back.copy(child := back.publish())
        assert (child.number, child.parent) == (2 * NUMBERS, theirs.number)


def test_no_number_is_given_twice_though_a_start_dies_before_its_first_save(starts: Starts, tmp_path: Path) -> None:
    place = tmp_path / "mirror"
    with starts(place, "first") as first:
        first.copy(first.publish())
    for _ in range(4):
        with starts(place, "second") as second:
            assert second.folder.numbers() == [0]
    with starts(place, "second") as second:
        assert second.publish().number == NUMBERS


def test_a_folder_needs_no_fsspec(starts: Starts, tmp_path: Path) -> None:
    with starts(tmp_path / "mirror", "first") as first:
        first.copy(first.publish())
        assert type(first.mirror.target).__name__ == "FolderTarget"
        facts = FileFacts(3, "0" * 64)
        assert first.mirror.target.complaint("nothing", facts, deep=False) == "nothing is missing"


def test_a_save_waits_for_no_copy(starts: Starts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that hangs holds up neither the next save nor the end."""
    asked, hangs = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        asked.set()
        hangs.wait()

    monkeypatch.setattr(Mirror, "put", hang)
    with starts(tmp_path / "mirror", "first", claims=False) as first:
        mirroring = Mirroring(tmp_path / "mirror", NAME, KEEP)
        mirroring.start(first.writer)
        mirroring.durable(first.publish())
        assert asked.wait(60)
        for _ in range(3):
            mirroring.durable(first.publish())
        mirroring.stop(0.01)
        assert (figures := mirroring.figures()) is not None
        assert figures.waiting_since is not None
        hangs.set()
