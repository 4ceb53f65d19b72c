"""Comparing two checkpoints, down to each variable's numbers. Reads only, by NumPy without TensorFlow.

One part of both checkpoints is in memory at a time, and each variable is compared piece by piece, so that a large one
is not copied whole into float64.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.training.checkpoints.parts import Array, PartState
from millrace.training.checkpoints.store import CheckpointStore
from millrace.training.errors import CorruptError
from millrace.training.history.journal import comparable
from millrace.training.history.lineage import CheckpointLineage, lineage_of
from millrace.training.ledger.account import PartitionAccount
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


_PIECE = 1 << 20
_HYPERPARAMETERS = "hyperparameters"
_OWN_FACTS = ("step", "incarnation", "term", "reason", "ordered_by", "note", "created_at")
Pair = tuple[Any, Any]
"""A value in the first checkpoint and in the second; None where one has no such value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableDifference:
    """How one variable differs between the two."""

    name: str
    shapes: Pair
    """None on the side that lacks the variable."""
    dtypes: Pair
    largest: float | None = None
    """The largest absolute difference; None where shapes or presence differ, or where it is not finite."""
    mean: float | None = None
    """The mean absolute difference, over all elements."""
    differing: int | None = None
    """The number of elements that differ."""
    values: Pair | None = None
    """Both values of a scalar; None for other shapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two checkpoints, side by side. Mappings hold only what differs."""

    lineages: tuple[CheckpointLineage, CheckpointLineage]
    manifest: Mapping[str, Pair]
    """The fields of their manifests."""
    made_with: Mapping[str, Pair]
    """Settings and code by hash, versions, cluster, topics."""
    hyperparameters: Mapping[str, Pair]
    history: Mapping[str, Mapping[str, Pair]]
    """By partition: position, learnt, and the other fields of the account by name."""
    model: tuple[VariableDifference, ...] = field(default=())
    """Every variable of either model, those without differences included."""
    optimizer: tuple[VariableDifference, ...] = field(default=())


def compare(store: CheckpointStore, first: int, second: int) -> Comparison:
    """Compare two checkpoints. Raises CorruptError where one may not be loaded."""
    a, b = _lineage(store, first), _lineage(store, second)
    partitions = sorted(a.partitions.keys() | b.partitions.keys())
    history = {str(at): _differing(_flat(a.partitions.get(at)), _flat(b.partitions.get(at))) for at in partitions}
    return Comparison(
        lineages=(a, b),
        manifest=_differing(_own(a), _own(b)),
        made_with=_differing(_provenance(a), _provenance(b)),
        hyperparameters=_differing(
            _part(store, first, _HYPERPARAMETERS).facts, _part(store, second, _HYPERPARAMETERS).facts
        ),
        history={partition: differing for partition, differing in history.items() if differing},
        model=tuple(_variables(store, (first, second), "model")),
        optimizer=tuple(_variables(store, (first, second), "optimizer")),
    )


def _lineage(store: CheckpointStore, number: int) -> CheckpointLineage:
    lineage = lineage_of(store, store.look(number))
    look = lineage.found
    if look.problems:
        raise CorruptError(f"checkpoint {number} is {look.condition}: {'; '.join(look.problems)}; compare other ones")
    return lineage


def _own(lineage: CheckpointLineage) -> Mapping[str, Any]:
    return {name: getattr(lineage.found.manifest, name) for name in _OWN_FACTS}


def _provenance(lineage: CheckpointLineage) -> Mapping[str, Any]:
    return {} if lineage.found.manifest is None else lineage.found.manifest.provenance


def _part(store: CheckpointStore, number: int, name: str) -> PartState:
    """Load a part; an empty one where the checkpoint lacks it."""
    return store.load(number, only={name}).get(name, PartState())


def _differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Pair]:
    pairs = {name: (a.get(name), b.get(name)) for name in dict.fromkeys([*a, *b])}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _flat(facts: PartitionAccount | None) -> Mapping[str, int]:
    if facts is None:
        return {}
    return {
        "start": facts.start,
        "position": facts.position,
        "learnt": facts.learnt,
        **{f"set aside {reason.value}": count for reason, count in facts.set_aside.items()},
        **{f"skipped by {order}": count for order, count in facts.skipped.items()},
        **({"filtered": facts.filtered} if facts.filtered else {}),
        "gaps": facts.gaps,
        "lost": facts.lost,
    }


def _variables(store: CheckpointStore, numbers: tuple[int, int], part: str) -> Iterator[VariableDifference]:
    a, b = (_part(store, number, part).arrays for number in numbers)
    for name in dict.fromkeys([*a, *b]):
        yield _variable(name, a.get(name), b.get(name))


def _variable(name: str, a: Array | None, b: Array | None) -> VariableDifference:
    shapes = (_shape(a), _shape(b))
    dtypes = (_dtype(a), _dtype(b))
    if a is None or b is None or a.shape != b.shape:
        return VariableDifference(name=name, shapes=shapes, dtypes=dtypes)
    largest, total, differing = _measured(a, b)
    mean = total / max(1, a.size)
    finite = bool(np.isfinite(largest) and np.isfinite(mean))
    return VariableDifference(
        name=name,
        shapes=shapes,
        dtypes=dtypes,
        largest=largest if finite else None,
        mean=mean if finite else None,
        differing=differing,
        values=(_scalar(a), _scalar(b)) if a.shape == () else None,
    )


def _shape(array: Array | None) -> list[int] | None:
    return None if array is None else list(array.shape)


def _dtype(array: Array | None) -> str | None:
    return None if array is None else str(array.dtype)


def _measured(a: Array, b: Array) -> tuple[float, float, int]:
    """Return the largest difference, the sum of all, and their number; NaN beside NaN is no difference."""
    largest, total, differing = 0.0, 0.0, 0
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)
    for start in range(0, flat_a.size, _PIECE):
        one, other = flat_a[start : start + _PIECE], flat_b[start : start + _PIECE]
        same = _same(one, other)
        distances = _distances(one, other, same)
        largest = float(np.maximum(largest, distances.max()))
        total += float(distances.sum())
        differing += int(np.count_nonzero(~same))
    return largest, total, differing


def _same(a: Array, b: Array) -> npt.NDArray[np.bool_]:
    # Not widened unless they have to be: float64 has one value for several large integers.
    if a.dtype != b.dtype:
        a, b = a.astype(_wide(a)), b.astype(_wide(b))
    found: npt.NDArray[np.bool_] = (a == b) | ((a != a) & (b != b))  # noqa: PLR0124 - what is not itself is NaN
    return found


def _distances(a: Array, b: Array, same: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    # Widened first: bool has no difference, and small or unsigned integers wrap around.
    a, b = a.astype(_wide(a)), b.astype(_wide(b))
    with np.errstate(invalid="ignore", over="ignore"):
        distances = np.abs(a - b)
    return np.where(same, 0.0, distances).astype(np.float64)


def _wide(array: Array) -> npt.DTypeLike:
    return np.complex128 if np.iscomplexobj(array) else np.float64


def _scalar(array: Array) -> Any:
    """Return a scalar as JSON can hold it."""
    value = array.item()
    if isinstance(value, bool | int):
        return value
    return float(value) if np.isfinite(value) and not isinstance(value, complex) else str(value)
