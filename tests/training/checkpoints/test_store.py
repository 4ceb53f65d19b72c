"""The store: what is published is what is loaded, what was last ordered is what is newest."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from millrace.consumers.errors import DataLossError
from millrace.training.checkpoints import (
    CheckpointStore,
    Condition,
    Folder,
    FolderLease,
    PartState,
    SaveReason,
    StoreOptions,
)
from millrace.training.checkpoints.manifest import FILE_NAME, Manifest
from millrace.training.checkpoints.policies import KeepAny, KeepLast
from millrace.training.checkpoints.sealed_json import seal, unseal
from millrace.training.errors import (
    AllCorruptError,
    CheckpointError,
    CorruptError,
    MissingCheckpointError,
    NewerFormatError,
    UncapturedStateError,
)

Publish = Callable[[int], list[int]]


def damage(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 4
    path.write_bytes(raw)


def step_of(state: Mapping[str, PartState]) -> int:
    array = state["model"].arrays["n"]
    assert state["ledger"].facts["position"] == 10 * int(array)
    return int(array)


def test_the_beginning_is_number_0_and_what_was_saved_is_loaded(store: CheckpointStore, order: Any, parts: Any) -> None:
    assert store.newest() is None
    zero = store.publish(order(None, reason=SaveReason.START), parts(0))
    one = store.publish(order(0, step=7, metrics={"auc": 0.5, "bad": float("nan")}, note="why"), parts(7))
    assert (zero.number, zero.parent, zero.ancestors) == (0, None, ())
    assert (one.number, one.parent, one.ancestors, one.metrics) == (1, 0, (0,), {"auc": 0.5})
    assert store.newest() == one
    assert store.manifest(1).positions == {"clicks:0": 70}
    assert step_of(store.load(1)) == 7
    assert step_of(store.load(0)) == 0


def test_the_durable_state_loads_no_tensorflow() -> None:
    names = "millrace.training.checkpoints, millrace.training.ledger.ledger"
    code = f"import sys, {names}; print({{'tensorflow', 'keras'}} & set(sys.modules))"
    root = Path(__file__).parents[3]
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60, check=True
    )
    assert found.stdout == "set()\n"


def test_a_lost_order_is_named_when_falling_back(
    folder: Folder, store: CheckpointStore, publish_steps: Publish, order: Any, caplog: pytest.LogCaptureFixture
) -> None:
    publish_steps(2)
    fresh = {"ledger": PartState(facts={"position": 0})}
    store.publish_linked(store.load_verified(0), fresh, order(None, reason=SaveReason.REWIND))
    damage(folder.checkpoint(2) / "ledger.json")
    newest = store.newest()
    assert newest is not None
    assert newest.number == 0
    assert "checkpoint 0000000002 was a rewind: what it ordered must be ordered again" in caplog.text


def test_a_part_without_anything_is_there_after_loading(store: CheckpointStore, order: Any) -> None:
    store.publish(order(None), {"cursor": PartState()})
    assert store.load(0)["cursor"] == PartState(arrays={}, facts={})


def test_a_rewind_survives_a_restart(
    folder: Folder, store: CheckpointStore, publish_steps: Publish, order: Any
) -> None:
    publish_steps(4)
    replaced = {"ledger": PartState(facts={"position": 10, "skips": [3]})}
    rewound = store.publish_linked(store.load_verified(1), replaced, order(None, reason=SaveReason.REWIND, step=1))
    assert (rewound.number, rewound.parent, rewound.ancestors) == (4, 1, (1, 0))
    again = CheckpointStore(folder)
    assert again.newest() == rewound
    assert again.load(4)["ledger"].facts["skips"] == [3]
    assert (folder.checkpoint(4) / "model.safetensors").stat().st_nlink == 2


def test_a_rewound_checkpoint_is_copied_where_links_are_not_possible(
    monkeypatch: pytest.MonkeyPatch, folder: Folder, store: CheckpointStore, publish_steps: Publish, order: Any
) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    publish_steps(2)
    monkeypatch.setattr(os, "link", no_links)
    store.publish_linked(store.load_verified(0), {}, order(None, reason=SaveReason.REWIND))
    assert store.verify(2).verified
    assert (folder.checkpoint(2) / "model.safetensors").stat().st_nlink == 1


def test_a_damaged_target_is_not_published_again(
    folder: Folder, store: CheckpointStore, publish_steps: Publish, order: Any
) -> None:
    publish_steps(3)
    damage(folder.checkpoint(1) / "model.safetensors")
    with pytest.raises(CorruptError, match="SHA-256"):
        store.publish_linked(store.load_verified(1), {}, order(None, reason=SaveReason.REWIND))
    assert folder.numbers() == [0, 1, 2]


@pytest.mark.row(17)
@pytest.mark.parametrize("harm", ["data", "manifest", "manifest gone"])
def test_a_torn_rewind_falls_back_to_its_target_and_not_to_the_abandoned_timeline(
    folder: Folder, store: CheckpointStore, publish_steps: Publish, order: Any, harm: str
) -> None:
    publish_steps(4)
    fresh = {"ledger": PartState(facts={"position": 10})}
    store.publish_linked(store.load_verified(1), fresh, order(None, reason=SaveReason.REWIND, step=1))
    path = folder.checkpoint(4)
    damage(path / ("ledger.json" if harm == "data" else FILE_NAME))
    if harm == "manifest gone":
        (path / FILE_NAME).unlink()
    newest = CheckpointStore(folder).newest()
    assert newest is not None
    assert newest.number == 1


def test_a_checkpoint_whose_parent_nobody_knows_is_not_guessed_around(
    folder: Folder, store: CheckpointStore, publish_steps: Publish
) -> None:
    publish_steps(3)
    for path in folder.checkpoint(2).iterdir():
        path.unlink()
    with pytest.raises(AllCorruptError, match=r"0, 1 verify.*rewind -c CONFIG --to 1"):
        store.newest()


def test_ancestors_that_were_pruned_are_stepped_over(
    folder: Folder, store: CheckpointStore, publish_steps: Publish
) -> None:
    publish_steps(9)
    assert folder.numbers() == [0, 4, 5, 6, 7, 8]
    damage(folder.checkpoint(8) / "ledger.json")
    for number in (7, 6, 5, 4):
        damage(folder.checkpoint(number) / FILE_NAME)
    newest = store.newest()
    assert newest is not None
    assert newest.number == 0


@pytest.mark.row(18)
def test_all_corrupt_refuses_until_a_new_beginning_is_ordered(
    folder: Folder, store: CheckpointStore, publish_steps: Publish, order: Any, parts: Any
) -> None:
    publish_steps(2)
    for number in (0, 1):
        damage(folder.checkpoint(number) / "model.safetensors")
    with pytest.raises(AllCorruptError, match="start afresh by an explicit order"):
        store.newest()
    with pytest.raises(DataLossError, match="a new beginning would forget"):
        store.publish(order(None), parts(0))
    fresh = store.publish(order(None, reason=SaveReason.START), parts(0), start_over=True)
    assert fresh.number == 2
    assert store.newest() == fresh


def test_checkpoints_that_have_vanished_are_not_silently_begun_anew(
    folder: Folder, store: CheckpointStore, writer: FolderLease, publish_steps: Publish
) -> None:
    publish_steps(1)
    writer.release()
    FolderLease.acquire(folder, "the next").release()
    folder.checkpoint(0).rename(folder.root / "elsewhere")
    with pytest.raises(AllCorruptError, match="holds no checkpoint, though number 0 was published"):
        CheckpointStore(folder).newest()


def test_a_later_format_is_refused_and_never_deleted(
    folder: Folder, store: CheckpointStore, publish_steps: Publish, order: Any, parts: Any
) -> None:
    publish_steps(2)
    path = folder.checkpoint(1) / FILE_NAME
    body = unseal(path.read_bytes())
    path.write_bytes(seal({**body, "format": 2, "files": "in another way"}))
    for read in (store.newest, lambda: store.load(1)):
        with pytest.raises(NewerFormatError, match="format 2"):
            read()
    assert [found.condition for found in store.listing()] == [Condition.NEWER, Condition.GOOD]
    for step in range(2, 12):
        store.publish(order(0, step=step), parts(step))
    assert 1 in folder.numbers()


def test_a_field_that_a_later_version_added_is_ignored(
    folder: Folder, store: CheckpointStore, publish_steps: Publish
) -> None:
    publish_steps(1)
    path = folder.checkpoint(0) / FILE_NAME
    path.write_bytes(seal({**unseal(path.read_bytes()), "mood": "good", "reason": "whim"}))
    newest = store.newest()
    assert newest is not None
    assert newest.reason == "whim"


def test_numbers_grow_past_whatever_is_there(
    folder: Folder, store: CheckpointStore, publish_steps: Publish, order: Any, parts: Any
) -> None:
    publish_steps(2)
    (folder.checkpoints / "0000000007").mkdir()
    assert store.publish(order(1, step=2), parts(2)).number == 8


class KeepNumber(NamedTuple):
    """A policy that keeps one checkpoint."""

    number: int

    def keep(self, manifests: Sequence[Manifest], newest: Manifest) -> set[int]:
        return {self.number} & {one.number for one in (*manifests, newest)}


def test_pruning_keeps_what_the_policy_says_and_what_nobody_may_judge(
    folder: Folder, writer: FolderLease, order: Any, parts: Any
) -> None:
    store = CheckpointStore(folder, writer, StoreOptions(keep=KeepAny([KeepLast(2), KeepNumber(3)])))
    (folder.checkpoints / "notes.txt").write_text("mine")
    parent = None
    for step in range(8):
        parent = store.publish(order(parent, step=step), parts(step)).number
        if step == 2:
            damage(folder.checkpoint(2) / FILE_NAME)
    assert folder.numbers() == [0, 2, 3, 6, 7]
    shown = {found.name: found.condition for found in store.listing(deep=True)}
    assert shown["0000000002"] is Condition.CORRUPT
    assert shown["notes.txt"] is Condition.UNKNOWN
    assert shown["0000000007"] is Condition.GOOD


def test_an_ancestor_to_fall_back_to_outlives_any_policy(
    folder: Folder, writer: FolderLease, order: Any, parts: Any
) -> None:
    store = CheckpointStore(folder, writer, StoreOptions(keep=KeepLast(1)))
    store.publish(order(None), parts(0))
    store.publish(order(0, step=1), parts(1))
    store.publish(order(1, step=2), parts(2))
    store.publish_linked(store.load_verified(1), {}, order(None, reason=SaveReason.REWIND, step=1))
    assert folder.numbers() == [0, 1, 3]


def test_a_later_writer_is_told_and_the_dead_letters_are_waited_for(
    folder: Folder, writer: FolderLease, order: Any, parts: Any
) -> None:
    told: list[Manifest] = []
    waiting = ["letter"]

    def acknowledged(_order: object) -> None:
        if waiting:
            raise CheckpointError("dead letters are not acknowledged")

    options = StoreOptions(
        before_manifest=acknowledged, on_durable=told.append, now=lambda: datetime(2026, 1, 2, tzinfo=UTC)
    )
    store = CheckpointStore(folder, writer, options)
    with pytest.raises(CheckpointError, match="not acknowledged"):
        store.publish(order(None), parts(0))
    assert (told, list(folder.checkpoints.iterdir())) == ([], [])
    waiting.clear()
    manifest = store.publish(order(None), parts(0))
    assert told == [manifest]
    assert manifest.created_at == "2026-01-02T00:00:00.000+00:00"


def test_a_listener_that_fails_does_not_unpublish(folder: Folder, writer: FolderLease, order: Any, parts: Any) -> None:
    def fail(_manifest: Manifest) -> None:
        raise RuntimeError("the commit failed")

    store = CheckpointStore(folder, writer, StoreOptions(on_durable=fail))
    assert store.publish(order(None), parts(0)) == store.newest()


def test_a_record_of_a_term_that_the_disk_does_not_give_fails_no_checkpoint_that_is_there(
    folder: Folder, writer: FolderLease, order: Any, parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(folder, writer, StoreOptions())
    reads, given = list[Path](), Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if path.parent == folder.terms:
            reads.append(path)
            if len(reads) in failing:
                raise OSError(errno.EIO, "Input/output error")
        return given(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    failing = set[int]()
    store.publish(order(None), parts(0))
    whole = len(reads)
    for at in range(1, whole + 1):
        reads.clear()
        failing = {at}
        before, parent = folder.numbers(), folder.numbers()[-1]
        try:
            manifest = store.publish(order(parent, step=at), parts(at))
        except CheckpointError:  # the next save tries again
            assert folder.numbers() == before
        else:
            assert folder.numbers()[-1] == manifest.number
    assert whole > 1


@pytest.mark.parametrize("state", [{"x": object()}, {"x": float("inf")}])
def test_facts_that_are_not_json_are_refused_by_name(store: CheckpointStore, order: Any, state: dict[str, Any]) -> None:
    with pytest.raises(UncapturedStateError, match="live"):
        store.publish(order(None), {"live": PartState(facts=state)})
    assert store.newest() is None


@pytest.mark.parametrize("name", ["../model", "manifest", "Model", "", "a.b"])
def test_a_part_cannot_be_named_out_of_its_folder(store: CheckpointStore, order: Any, name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a part"):
        store.publish(order(None), {name: PartState()})


def test_a_manifest_cannot_name_a_file_out_of_its_folder(
    folder: Folder, store: CheckpointStore, publish_steps: Publish
) -> None:
    publish_steps(1)
    path = folder.checkpoint(0) / FILE_NAME
    body = unseal(path.read_bytes())
    path.write_bytes(seal({**body, "files": {"../../secret.json": {"size": 1, "sha256": "0"}}}))
    with pytest.raises(CorruptError, match="no part could have"):
        store.load(0)


def test_a_number_that_is_not_there_is_named(store: CheckpointStore, publish_steps: Publish) -> None:
    publish_steps(2)
    for ask in (store.verify, store.load, store.manifest):
        with pytest.raises(MissingCheckpointError, match="number 9; the newest there are: 0, 1"):
            ask(9)


@pytest.mark.parametrize("ask", ["verify", "look", "load", "load_verified", "manifest", "pin"])
def test_a_checkpoint_that_is_pruned_while_it_is_read_is_gone_and_not_corrupt(
    folder: Folder, store: CheckpointStore, publish_steps: Publish, ask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_steps(3)
    _prune_at_the_next_read(folder, 1, monkeypatch)
    with pytest.raises(MissingCheckpointError, match="number 1; the newest there are: 0, 2"):
        getattr(store, ask)(1, *["me"] * (ask == "pin"))


def test_the_newest_is_looked_for_again_if_it_is_pruned_while_it_is_read(
    folder: Folder, store: CheckpointStore, publish_steps: Publish, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    publish_steps(3)
    _prune_at_the_next_read(folder, 2, monkeypatch)
    newest = store.newest()
    assert newest is not None
    assert newest.number == 1
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def _prune_at_the_next_read(folder: Folder, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pruning does it: the folder gets another name, here just before its manifest is read."""

    def reading(path: Path) -> bytes:
        if path == folder.checkpoint(number) / FILE_NAME:
            path.parent.rename(folder.removing(number))
        return read(path)

    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", reading)


def test_a_reader_cannot_publish(folder: Folder, store: CheckpointStore, order: Any, parts: Any) -> None:
    with pytest.raises(CheckpointError, match="reading only"):
        CheckpointStore(folder).publish(order(None), parts(0))


def test_leftovers_of_dead_writers_are_removed_and_the_unknown_is_left_alone(
    folder: Folder, store: CheckpointStore, writer: FolderLease
) -> None:
    for name in (".saving-0000000003-0000000001", ".removing-0000000001", ".saving-mine", "kept"):
        (folder.checkpoints / name).mkdir()
        (folder.checkpoints / name / "file").touch()
    assert {found.condition for found in store.listing()} == {Condition.TEMPORARY, Condition.UNKNOWN}
    CheckpointStore(folder, writer)
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == [".saving-mine", "kept"]


def test_arrays_come_back_as_they_were_whatever_their_type(store: CheckpointStore, order: Any) -> None:
    import ml_dtypes

    types = [
        "bool",
        "int8",
        "uint8",
        "int16",
        "uint16",
        "int32",
        "uint32",
        "int64",
        "uint64",
        "float16",
        "float32",
        "float64",
    ]
    arrays: dict[str, Any] = {name: np.arange(6).astype(name).reshape(2, 3) for name in types}
    arrays["bfloat16"] = np.arange(6).astype(ml_dtypes.bfloat16)
    arrays["scalar"] = np.array(2**63 + 1, np.uint64)
    arrays["empty"] = np.zeros((0, 4), np.int32)
    arrays["strided"] = np.arange(12).reshape(3, 4).T[::2]
    arrays["big endian"] = np.arange(3, dtype=">i4")
    store.publish(order(None), {"model": PartState(arrays=arrays)})
    loaded: Mapping[str, Any] = store.load(0)["model"].arrays
    assert loaded.keys() == arrays.keys()
    for name, array in arrays.items():
        assert loaded[name].shape == array.shape
        assert loaded[name].dtype == array.dtype.newbyteorder("=")
        assert loaded[name].flags.writeable
        np.testing.assert_array_equal(loaded[name], array)


def test_the_arrays_are_plain_safetensors_for_anybody(
    folder: Folder, store: CheckpointStore, publish_steps: Publish
) -> None:
    from safetensors.numpy import load_file

    publish_steps(2)
    arrays = load_file(folder.checkpoint(1) / "model.safetensors")
    np.testing.assert_array_equal(arrays["w"], np.ones((3, 4), np.float32))


@pytest.mark.parametrize("array", [np.array(["text"]), np.array([None], object), np.array([1j])])
def test_an_array_that_is_not_numbers_is_refused_by_name(store: CheckpointStore, order: Any, array: Any) -> None:
    with pytest.raises(UncapturedStateError, match="'vocabulary' of the part 'model'"):
        store.publish(order(None), {"model": PartState(arrays={"vocabulary": array})})
