"""Damage: whatever is done to any file of the newest checkpoint is found before anything of it is loaded."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.training.checkpoints import CheckpointStore, Folder, SaveReason
from millrace.training.checkpoints.manifest import FILE_NAME
from millrace.training.errors import CorruptError

pytestmark = pytest.mark.row(17)
Mutation = tuple[str, Callable[[], None]]


@pytest.fixture
def published(folder: Folder, store: CheckpointStore, order: Any, parts: Any) -> CheckpointStore:
    """0, 1, 2, then a rewind to 1 as 3, and 4 after it."""
    for step in range(3):
        store.publish(order(step - 1 if step else None, step=step), parts(step))
    store.publish_linked(
        store.load_verified(1), {"ledger": parts(1)["ledger"]}, order(None, reason=SaveReason.REWIND, step=1)
    )
    store.publish(order(3, step=4, note="the newest"), parts(4))
    return CheckpointStore(folder)


def mutations(folder: Folder, number: int) -> Iterator[Mutation]:
    for path in sorted(folder.checkpoint(number).iterdir()):
        size = path.stat().st_size
        yield f"{path.name} missing", path.unlink
        if size:
            yield f"{path.name} emptied", lambda path=path: path.write_bytes(b"")  # type: ignore[misc]
            yield f"{path.name} zeroed", lambda path=path, size=size: path.write_bytes(bytes(size))  # type: ignore[misc]
            for cut in {1, size // 2}:
                yield f"{path.name} cut by {cut}", lambda path=path, cut=cut: cut_by(path, cut)  # type: ignore[misc]
            for at in range(0, size, max(1, size // 60)):
                yield f"{path.name} flipped at {at}", lambda path=path, at=at: flip(path, at)  # type: ignore[misc]
        yield f"{path.name} grown", lambda path=path: grow(path)  # type: ignore[misc]


def cut_by(path: Path, count: int) -> None:
    path.write_bytes(path.read_bytes()[:-count])


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1 << (at % 8)
    path.write_bytes(raw)


def is_found(store: CheckpointStore, number: int) -> bool:
    """Return whether verify, load, and the choice of the newest all find the damage."""
    try:
        store.load(number)
    except CorruptError:
        newest = store.newest()
        return not store.verify(number).verified and newest is not None and newest.number == 3
    return False


def test_every_damage_to_every_file_is_found_and_the_parent_is_loaded(
    folder: Folder, published: CheckpointStore, tmp_path: Path
) -> None:
    sound, tried, missed = tmp_path / "sound", 0, []
    shutil.copytree(folder.checkpoint(4), sound)
    names = [name for name, _ in mutations(folder, 4)]
    for name in names:
        harm = dict(mutations(folder, 4))[name]
        harm()
        tried += 1
        harmless = name.startswith("parent-") and name.endswith("grown")  # its name alone says what it says
        if is_found(published, 4) is harmless:
            missed.append(name)
        shutil.rmtree(folder.checkpoint(4))
        shutil.copytree(sound, folder.checkpoint(4))
        assert published.verify(4).verified, f"valid, yet rejected after {name}"
    assert missed == []
    assert tried > 150


def test_swapped_manifests_are_found_and_the_rewind_still_stands(folder: Folder, published: CheckpointStore) -> None:
    one, other = folder.checkpoint(4) / FILE_NAME, folder.checkpoint(2) / FILE_NAME
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    assert is_found(published, 4)
    assert not published.verify(2).verified


def test_swapped_files_of_one_checkpoint_are_found(folder: Folder, published: CheckpointStore) -> None:
    path = folder.checkpoint(4)
    (path / "model.safetensors").rename(path / "spare")
    (path / "ledger.json").rename(path / "model.safetensors")
    (path / "spare").rename(path / "ledger.json")
    assert is_found(published, 4)


def test_swapped_folders_are_found(folder: Folder, published: CheckpointStore) -> None:
    folder.checkpoint(4).rename(folder.root / "spare")
    folder.checkpoint(2).rename(folder.checkpoint(4))
    (folder.root / "spare").rename(folder.checkpoint(2))
    assert not published.verify(4).verified
    assert not published.verify(2).verified


def test_nothing_that_is_sound_is_rejected(published: CheckpointStore) -> None:
    assert [found.verified for found in published.listing(deep=True)] == [True] * 5
    for found in published.listing():
        assert found.number is not None
        published.load(found.number)
