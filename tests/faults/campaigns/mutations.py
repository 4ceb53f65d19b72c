"""The mutation campaign: sound checkpoints of many shapes, and checkpoints that were damaged in one random way.

A store must take every one of the first and none of the second: one that rejects all is as broken as one that accepts
all. Needs no TensorFlow and no broker; the same seed gives the same campaign.

    python -m tests.faults.campaigns.mutations --count 200 --seed 1
"""

import argparse
import json
import logging
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import ml_dtypes
import numpy as np

from millrace.consumers.records import Partition
from millrace.training.checkpoints import (
    CheckpointStore,
    Folder,
    FolderLease,
    PartState,
    SaveReason,
    SaveRequest,
    StoreOptions,
)
from millrace.training.checkpoints.manifest import FILE_NAME
from millrace.training.checkpoints.policies import KeepLast
from millrace.training.errors import AllCorruptError, CorruptError, NewerFormatError

Parts = dict[str, PartState]
_DTYPES = (
    *(np.float32, np.float64, np.float16, ml_dtypes.bfloat16),
    *(np.int8, np.uint8, np.int32, np.int64, np.uint64, np.bool_),
)
_HISTORY = 6
"""Checkpoints that are damaged in turn; one of them is a rewind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What came of a campaign."""

    seed: int
    valid: int
    """Sound checkpoints that were published."""
    valid_rejected: int
    """Of those: not verified, not loaded as they were saved, or not gone on from. Anything but 0 is a defect."""
    mutations: int
    """Checkpoints that were damaged, one at a time."""
    corrupt_accepted: int
    """Of those: verified, loaded, or gone on from all the same. Anything but 0 is a defect."""
    kinds: Mapping[str, int]
    """How often each kind of damage was done."""
    accepted: tuple[str, ...] = field(default=())
    """Which damage was accepted."""


def campaign(count: int, seed: int) -> Figures:
    """Publish so many sound checkpoints, and do so many kinds of damage."""
    random = Random(seed)
    with _workshop() as folder:
        rejected = sum(not sound for sound in _published(folder / "valid", count, random))
    with _workshop() as folder:
        victims = _Victims(folder, random)
        done = [victims.harm() for _ in range(count)]
    accepted = tuple(what for _, what, found in done if not found)
    return Figures(
        seed=seed,
        valid=count,
        valid_rejected=rejected,
        mutations=len(done),
        corrupt_accepted=len(accepted),
        kinds=dict(sorted(Counter(kind for kind, _, _ in done).items())),
        accepted=accepted,
    )


@contextmanager
def _workshop() -> Iterator[Path]:
    """Yield a folder in memory where there is one, because nothing here is about the disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        yield Path(path)


@contextmanager
def _writing(root: Path, keep: int) -> Iterator[CheckpointStore]:
    writer = FolderLease.acquire(Folder(root), "the campaign")
    try:
        yield CheckpointStore(Folder(root), writer, StoreOptions(keep=KeepLast(keep)))
    finally:
        writer.release()


# Sound ones


def _published(root: Path, count: int, random: Random) -> Iterator[bool]:
    """Publish them in a line, now and then by a rewind; whether each is taken as what it is."""
    saved: dict[int, Parts] = {}
    parent = None
    with _writing(root, keep=4) as store:
        for step in range(count):
            there = [number for number in saved if number in store.folder.numbers()]
            if there and random.random() < 0.15:
                target, replaced = random.choice(there), {"ledger": _ledger(random)}
                order = _order(random, SaveReason.REWIND, target, step)
                try:
                    verified = store.load_verified(target)
                except CorruptError:
                    yield False
                    continue
                parent = store.publish_linked(verified, replaced, order).number
                saved[parent] = {**saved[target], **replaced}
            else:
                parts = _parts(random)
                reason = SaveReason.START if parent is None else SaveReason.INTERVAL
                parent = store.publish(_order(random, reason, parent, step), parts).number
                saved[parent] = parts
            yield _is_taken(CheckpointStore(Folder(root)), parent, saved[parent])


def _is_taken(store: CheckpointStore, number: int, saved: Parts) -> bool:
    try:
        newest = store.newest()
        loaded = store.load(number)
    except (CorruptError, NewerFormatError):
        return False
    goes_on = newest is not None and newest.number == number
    return goes_on and store.verify(number).verified and _same(saved, loaded)


def _same(saved: Parts, loaded: Mapping[str, PartState]) -> bool:
    if saved.keys() != loaded.keys():
        return False
    for name, state in saved.items():
        arrays = loaded[name].arrays
        if dict(state.facts) != dict(loaded[name].facts) or state.arrays.keys() != arrays.keys():
            return False
        for key, value in state.arrays.items():
            one, other = np.asarray(value), np.asarray(arrays[key])
            if (one.shape, one.dtype, one.tobytes()) != (other.shape, other.dtype, other.tobytes()):
                return False
    return True


def _order(random: Random, reason: SaveReason, parent: int | None, step: int) -> SaveRequest:
    partitions = [Partition("clicks", number) for number in range(random.randint(1, 4))]
    return SaveRequest(
        reason=reason,
        parent=parent,
        step=step,
        incarnation=random.randint(1, 9),
        positions={partition: random.randrange(2**40) for partition in partitions},
        note=random.choice([None, "before the sale", "Grüße, 東京 \u2028 “quoted”"]),
        provenance={"model_sha256": f"{random.getrandbits(256):064x}", "topics": ["clicks"]},
        metrics={"loss": random.choice([0.0, -0.0, 1e-300, random.random()])},
    )


def _parts(random: Random) -> Parts:
    """Make parts of any shape: scalars, empty arrays, many axes, every dtype, only facts, nothing at all."""
    parts = {name: PartState(arrays=_arrays(random, random.randint(1, 4))) for name in ("model", "optimizer")}
    return {**parts, "ledger": _ledger(random), **({"empty": PartState()} if random.random() < 0.2 else {})}


def _ledger(random: Random) -> PartState:
    keys = [random.choice(["clicks:0", "ключ", "a b", "\t", "{}", ""]) for _ in range(random.randint(0, 3))]
    return PartState(facts={key: [random.randrange(2**63), random.random(), None, True, {"x": []}] for key in keys})


def _arrays(random: Random, count: int) -> dict[str, Any]:
    """Small ones, and one that is most of the file, as an embedding is: damage must not all fall upon a header."""
    rows = np.frombuffer(random.randbytes(4 * 200), np.float32).reshape(100, 2)
    return {"rows": rows, **{f"layer_{index}/kernel": _array(random) for index in range(count)}}


def _array(random: Random) -> Any:
    shape = [random.choice([0, 1, 1, 2, 3, 7]) for _ in range(random.randint(0, 4))]
    dtype = np.dtype(random.choice(_DTYPES))
    size = int(np.prod(shape, dtype=int))
    raw = (
        bytes(random.getrandbits(1) for _ in range(size))
        if dtype == np.bool_
        else random.randbytes(size * dtype.itemsize)
    )
    return np.frombuffer(raw, dtype).reshape(shape)


# Damaged ones

Harm = Callable[["_Victims", Path], str]


class _Victims:
    """A history whose checkpoints are damaged one at a time, and mended again."""

    def __init__(self, folder: Path, random: Random) -> None:
        self.random = random
        self.folder = Folder(folder / "clicks")
        with _writing(self.folder.root, keep=_HISTORY) as store:
            for step in range(_HISTORY - 2):
                reason = SaveReason.INTERVAL if step else SaveReason.START
                store.publish(_order(random, reason, step - 1 if step else None, step), _parts(random))
            rewound = _order(random, SaveReason.REWIND, 1, 1)
            parent = store.publish_linked(store.load_verified(1), {"ledger": _ledger(random)}, rewound).number
            store.publish(_order(random, SaveReason.INTERVAL, parent, 9), _parts(random))
        self._sound = folder / "sound"
        _copy(self.folder.checkpoints, self._sound)
        _copy(self._sound, self.folder.checkpoints)  # no file is linked any more: one is damaged at a time

    def harm(self) -> tuple[str, str, bool]:
        """Damage one checkpoint in one way: the kind, what was done, and whether it was found."""
        number = self.random.choice(self.folder.numbers())
        path = self.folder.checkpoint(number)
        kind, what = "", ""
        while _same_bytes(path, self._sound / path.name):  # a byte may be zeroed that is 0 already
            kind = self.random.choice(list(_HARMS))
            what = f"{kind}: checkpoint {number}, {_HARMS[kind](self, path)}"
        found = self._is_found(number)
        _copy(self._sound, self.folder.checkpoints)
        return kind, what, found

    def file(self, path: Path) -> Path:
        """Choose a file whose contents matter, the manifest as often as all others together."""
        files = sorted(one for one in path.iterdir() if one.stat().st_size)
        return path / FILE_NAME if self.random.random() < 0.5 else self.random.choice(files)

    def other(self, path: Path) -> Path:
        """Choose another checkpoint."""
        return self.random.choice([one for one in sorted(path.parent.iterdir()) if one != path])

    def _is_found(self, number: int) -> bool:
        """Return whether each way in refuses it: verifying it, loading it, resuming from it."""
        store = CheckpointStore(self.folder)
        try:
            store.load(number)
        except (CorruptError, NewerFormatError):
            pass
        else:
            return False
        try:
            newest = store.newest()
        except AllCorruptError:
            newest = None
        return not store.verify(number).verified and (newest is None or newest.number != number)


def _flip(victims: _Victims, path: Path) -> str:
    file, random = victims.file(path), victims.random
    raw = bytearray(file.read_bytes())
    bits = random.sample(range(8 * len(raw)), random.choice([1, 1, 1, 2, 8]))
    for bit in bits:
        raw[bit // 8] ^= 1 << bit % 8
    file.write_bytes(raw)
    return f"{file.name} at bits {bits}"


def _truncate(victims: _Victims, path: Path) -> str:
    file = victims.file(path)
    raw = file.read_bytes()
    length = victims.random.choice([0, len(raw) - 1, victims.random.randrange(len(raw))])
    file.write_bytes(raw[:length])
    return f"{file.name} to {length} of {len(raw)} bytes"


def _zero(victims: _Victims, path: Path) -> str:
    """Zero a range, as a disk does that has lost a block."""
    file = victims.file(path)
    raw = bytearray(file.read_bytes())
    start = victims.random.randrange(len(raw))
    end = victims.random.choice([len(raw), victims.random.randint(start + 1, len(raw))])
    raw[start:end] = bytes(end - start)
    file.write_bytes(raw)
    return f"{file.name} from {start} to {end}"


def _grow(victims: _Victims, path: Path) -> str:
    file = victims.file(path)
    with file.open("ab") as end:
        end.write(victims.random.choice([b"\n", b"\0", b" ", victims.random.randbytes(9)]))
    return file.name


def _remove(victims: _Victims, path: Path) -> str:
    """Remove any of its files, also the empty one that keeps the lineage."""
    file = victims.random.choice(sorted(path.iterdir()))
    file.unlink()
    return file.name


def _swap_manifests(victims: _Victims, path: Path) -> str:
    other = victims.other(path)
    _swap(path / FILE_NAME, other / FILE_NAME)
    return f"with {other.name}"


def _swap_files(victims: _Victims, path: Path) -> str:
    """Swap two of its files, or one with the file of the same name in another checkpoint."""
    file = victims.file(path)
    there = victims.other(path) / file.name
    mine = victims.random.choice([one for one in sorted(path.iterdir()) if one != file])
    other = there if there.exists() and victims.random.random() < 0.7 else mine
    _swap(file, other)
    return f"{file.name} with {other.parent.name}/{other.name}"


def _put_back(victims: _Victims, path: Path) -> str:
    """Put back an older version of a file, or one of another checkpoint, intact in itself."""
    file = victims.file(path)
    there = victims.other(path) / file.name
    if there.exists():
        raw = there.read_bytes()
        file.unlink()  # it may be linked with that of another checkpoint
        file.write_bytes(raw)
    return f"{file.name} of {there.parent.name}"


_HARMS: Mapping[str, Harm] = {
    "bits flipped": _flip,
    "truncated": _truncate,
    "zeroed": _zero,
    "grown": _grow,
    "missing": _remove,
    "manifests swapped": _swap_manifests,
    "files swapped": _swap_files,
    "another's file": _put_back,
}


def _swap(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    for path, raw in ((one, second), (other, first)):
        path.unlink()
        path.write_bytes(raw)


def _same_bytes(one: Path, other: Path) -> bool:
    files = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in (one, other)]
    return files[0] == files[1]


def _copy(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


def main() -> None:
    """Run a campaign, print its figures as JSON, and fail where one of them is a defect."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    logging.disable()  # the store complains of all that is damaged
    figures = campaign(given.count, given.seed)
    print(json.dumps(asdict(figures), indent=1))  # noqa: T201 - it is what it was asked for
    sys.exit(1 if figures.corrupt_accepted or figures.valid_rejected else 0)


if __name__ == "__main__":
    main()
