"""The first thing in which two states differ, in words: a file, an array in it, and how much. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from millrace.training.checkpoints.parts import Array, PartState
from millrace.training.history.journal import comparable
from millrace.training.ledger.ledger import NAME


def first_difference(files: Sequence[str], ours: Mapping[str, PartState], theirs: Mapping[str, PartState]) -> str:
    """Describe the first difference in one of these files; weights come before all else."""
    for name in sorted(files, key=lambda name: (not name.startswith(("model.", "optimizer.")), name)):
        part = name.partition(".")[0]
        one, other = ours.get(part), theirs.get(part)
        if one is None or other is None:
            return f"{name} is on one side only"
        if name.endswith(".safetensors"):
            found = _of_arrays(one, other)
        elif part == NAME:
            found = _of_facts(comparable(one.facts), comparable(other.facts))
        else:
            found = _of_facts(one.facts, other.facts)
        if found is not None:
            return f"{name}: {found}"
    return f"{', '.join(files)}, by hash"


def _of_arrays(one: PartState, other: PartState) -> str | None:
    for key in sorted(one.arrays.keys() | other.arrays.keys()):
        if key not in one.arrays or key not in other.arrays:
            return f"{key} is on one side only"
        found = _apart(one.arrays[key], other.arrays[key])
        if found is not None:
            return f"{key} {found}"
    return None


def _apart(one: Array, other: Array) -> str | None:
    if one.shape != other.shape or one.dtype != other.dtype:
        return f"is {one.dtype} {list(one.shape)}, and was {other.dtype} {list(other.shape)}"
    if one.tobytes() == other.tobytes():
        return None
    flat, there = one.reshape(-1), other.reshape(-1)
    different = np.frombuffer(flat.tobytes(), np.uint8) != np.frombuffer(there.tobytes(), np.uint8)
    count = int(different.reshape(flat.size, -1).any(axis=1).sum())
    most = float(np.max(np.abs(flat.astype(np.float64) - there.astype(np.float64))))
    return f"differs in {count:,} of {flat.size:,} numbers, by {most:.3g} at most"


def _of_facts(one: Any, other: Any, path: str = "") -> str | None:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        keys = sorted(one.keys() | other.keys())
        return next(
            (found for key in keys if (found := _of_facts(one.get(key), other.get(key), f"{path} {key}"))), None
        )
    return None if one == other else f"{path.strip()} is {one!r}, and was {other!r}"
