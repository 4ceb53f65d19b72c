"""Two checkpoints side by side, down to each variable's numbers."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from millrace.training.checkpoints import CheckpointStore, Folder, FolderLease, PartState, SaveReason, SaveRequest
from millrace.training.errors import CorruptError, MissingCheckpointError
from millrace.training.history import comparison
from millrace.training.history.comparison import Comparison, VariableDifference, compare
from millrace.training.ledger.ledger import Ledger
from tests.app.checkpoint_history import P0, PROVENANCE, folder_in

ROOT = Path(__file__).parents[3]
Publish = Callable[..., None]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return folder_in(tmp_path)


def publish(folder: Folder, *models: Mapping[str, Any], **differing: Any) -> CheckpointStore:
    """Publish a checkpoint for each model; only the last one has what `differing` holds."""
    writer = FolderLease.acquire(folder, "a test")
    try:
        store, ledger, parent = CheckpointStore(folder, writer), Ledger(), None
        ledger.join(P0, 0)
        for index, model in enumerate(models):
            last = differing if index == len(models) - 1 else {}
            parts = {
                "ledger": ledger.snapshot(),
                "model": PartState(arrays=dict(model)),
                "optimizer": PartState(arrays={"adam/iterations": np.array(index), **last.get("optimizer", {})}),
                "hyperparameters": PartState(facts={"training.batch_size": 64, **last.get("hyperparameters", {})}),
            }
            order = SaveRequest(
                reason=SaveReason.START if parent is None else SaveReason.INTERVAL,
                parent=parent,
                step=index,
                incarnation=0,
                positions=ledger.positions(),
                provenance={**PROVENANCE, **last.get("provenance", {})},
            )
            parent = store.publish(order, parts).number
    finally:
        writer.release()
    return CheckpointStore(folder)


def variables(found: Comparison) -> dict[str, VariableDifference]:
    return {one.name: one for one in found.model}


def test_the_largest_and_the_mean_difference_are_those_of_the_numbers(folder: Folder) -> None:
    a, b = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32)
    b[0, 0], b[1, 2] = -3.0, 1.5
    found = variables(compare(publish(folder, {"w": a, "still": a}, {"w": b, "still": a}), 0, 1))
    assert (found["w"].largest, found["w"].mean, found["w"].differing) == (3.0, 0.75, 2)
    assert (found["w"].shapes, found["w"].dtypes) == (([2, 3], [2, 3]), ("float32", "float32"))
    assert (found["still"].largest, found["still"].mean, found["still"].differing) == (0.0, 0.0, 0)


def test_a_variable_is_compared_piece_by_piece_to_the_same_figures(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(3)
    a, b = random.normal(size=(7, 11)).astype(np.float32), random.normal(size=(7, 11)).astype(np.float32)
    monkeypatch.setattr(comparison, "_PIECE", 8)
    found = variables(compare(publish(folder, {"w": a}, {"w": b}), 0, 1))["w"]
    apart = np.abs(a.astype(np.float64) - b)
    assert found.largest == apart.max()
    assert found.mean == pytest.approx(apart.mean())
    assert found.differing == 77


@pytest.mark.parametrize(
    ("a", "b", "largest"),
    [
        (np.array([1, 2], ml_dtypes.bfloat16), np.array([1, 4], ml_dtypes.bfloat16), 2.0),
        (np.array([0, 2**32 - 1], np.uint32), np.array([1, 0], np.uint32), 2.0**32 - 1),
        (np.array([True, False]), np.array([True, True]), 1.0),
        (np.array([3j, 4], np.complex64), np.array([0, 4], np.complex64), 3.0),
        (np.array([np.nan, 1.0]), np.array([np.nan, 1.5]), 0.5),
        (np.array([np.inf, 1.0]), np.array([np.inf, 1.0]), 0.0),
        (np.array([np.nan, 1.0]), np.array([0.0, 1.0]), None),
        (np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32), 0.0),
    ],
    ids=["bfloat16", "uint32", "bool", "complex", "nan beside nan", "inf beside inf", "nan", "empty"],
)
def test_any_dtype_is_compared(folder: Folder, a: Any, b: Any, largest: float | None) -> None:
    assert variables(compare(publish(folder, {"w": a}, {"w": b}), 0, 1))["w"].largest == largest


def test_whole_numbers_that_float64_does_not_tell_apart_differ(folder: Folder) -> None:
    one, other = np.array([2**60, 7]), np.array([2**60 + 1, 7])
    assert variables(compare(publish(folder, {"w": one}, {"w": other}), 0, 1))["w"].differing == 1


def test_other_dtypes_of_the_same_numbers_are_compared(folder: Folder) -> None:
    found = variables(
        compare(publish(folder, {"w": np.ones(3, ml_dtypes.bfloat16)}, {"w": np.ones(3, np.float16)}), 0, 1)
    )
    assert (found["w"].dtypes, found["w"].differing) == (("bfloat16", "float16"), 0)


def test_other_shapes_and_variables_that_one_lacks_stand_beside_each_other(folder: Folder) -> None:
    a, b = np.zeros(4, np.float32), np.zeros((2, 2), np.float64)
    found = variables(compare(publish(folder, {"w": a, "gone": a}, {"w": b, "new": b}), 0, 1))
    assert (found["w"].shapes, found["w"].dtypes, found["w"].differing) == (([4], [2, 2]), ("float32", "float64"), None)
    assert (found["gone"].shapes, found["new"].shapes) == (([4], None), (None, [2, 2]))


def test_facts_that_differ_are_named_and_others_are_not(folder: Folder) -> None:
    model = {"w": np.zeros(1)}
    differing = {
        "provenance": {"keras": "4.0", "config_sha256": "c1" * 32},
        "hyperparameters": {"training.batch_size": 128, "adam.beta_1": 0.8},
        "optimizer": {"adam/learning_rate": np.array(0.5, np.float32)},
    }
    found = compare(publish(folder, model, model, **differing), 0, 1)
    assert found.made_with == {"keras": ("3.15.1", "4.0"), "config_sha256": ("c0" * 32, "c1" * 32)}
    assert found.hyperparameters == {"training.batch_size": (64, 128), "adam.beta_1": (None, 0.8)}
    assert found.manifest.keys() == {"step", "reason", "created_at"}
    assert found.history == {}
    optimizer = {one.name: one for one in found.optimizer}
    assert optimizer["adam/iterations"].values == (0, 1)
    assert optimizer["adam/learning_rate"].shapes == (None, [])


def test_a_checkpoint_is_the_same_as_itself(folder: Folder) -> None:
    found = compare(publish(folder, {"w": np.ones(3)}), 0, 0)
    assert (found.manifest, found.made_with, found.hyperparameters, found.history) == ({}, {}, {}, {})
    assert [one.differing for one in (*found.model, *found.optimizer)] == [0, 0]


def test_a_damaged_one_is_refused_rather_than_compared(folder: Folder) -> None:
    store = publish(folder, {"w": np.ones(3)}, {"w": np.ones(3)})
    path = folder.checkpoint(1) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(CorruptError, match="SHA-256 differs"):
        compare(store, 0, 1)
    (folder.checkpoint(1) / "ledger.json").unlink()
    with pytest.raises(CorruptError, match=r"checkpoint 1 is corrupt: ledger\.json is missing"):
        compare(store, 0, 1)
    with pytest.raises(MissingCheckpointError):
        compare(store, 0, 7)


@pytest.mark.parametrize("module", ["millrace.app.cli.checkpoint_texts", "millrace.app.tools.rewind"])
def test_looking_and_ordering_without_a_trainer_load_no_tensorflow(module: str) -> None:
    code = f"import sys, {module}; print('tensorflow' in sys.modules or 'keras' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "False\n"
