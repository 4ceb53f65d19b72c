"""What differs between two checkpoints, down to each variable's numbers. Reads only; NumPy does, without TensorFlow.

Owns the comparing. One part of both checkpoints is in memory at a time, and each variable is compared piece by piece,
so that a large one is not copied whole into float64.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from training.checkpoints.parts import Array, PartState
from training.checkpoints.store import CheckpointStore
from training.errors import CorruptError
from training.history.lineage import CheckpointLineage, lineage_of
from training.ledger.account import PartitionAccount

_PIECE = 1 << 20
_HYPERPARAMETERS = "hyperparameters"
_OWN_FACTS = ("step", "incarnation", "term", "reason", "ordered_by", "note", "created_at")
Pair = tuple[Any, Any]
"""A value in the one and in the other; None where it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableDifference:
    """One variable of both."""

    name: str
    shapes: Pair
    """None for one that only the other has."""
    dtypes: Pair
    largest: float | None = None
    """The largest absolute difference; None where shapes or presence differ, or where it is not finite."""
    mean: float | None = None
    """The mean absolute difference, over all elements."""
    differing: int | None = None
    """How many elements are not the same."""
    values: Pair | None = None
    """Of a scalar: both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two checkpoints, side by side. Mappings hold what differs, and nothing else."""

    lineages: tuple[CheckpointLineage, CheckpointLineage]
    manifest: Mapping[str, Pair]
    """What their manifests say of themselves."""
    made_with: Mapping[str, Pair]
    """Settings and code by hash, versions, cluster, topics."""
    hyperparameters: Mapping[str, Pair]
    history: Mapping[str, Mapping[str, Pair]]
    """By partition: position, learnt, and the rest of the account by name."""
    model: tuple[VariableDifference, ...] = field(default=())
    """Every variable of either, the same ones included."""
    optimizer: tuple[VariableDifference, ...] = field(default=())


def compare(store: CheckpointStore, first: int, second: int) -> Comparison:
    """Compare two checkpoints; raises where one may not be loaded."""
    ours, theirs = _lineage(store, first), _lineage(store, second)
    return Comparison(
        lineages=(ours, theirs),
        manifest=_differing(_own(ours), _own(theirs)),
        made_with=_differing(_provenance(ours), _provenance(theirs)),
        hyperparameters=_differing(
            _part(store, first, _HYPERPARAMETERS).facts, _part(store, second, _HYPERPARAMETERS).facts
        ),
        history={str(at): found for at, found in _histories(ours, theirs)},
        model=tuple(_variables(store, (first, second), "model")),
        optimizer=tuple(_variables(store, (first, second), "optimizer")),
    )


def _lineage(store: CheckpointStore, number: int) -> CheckpointLineage:
    found = lineage_of(store, store.look(number))
    if found.found.problems:
        raise CorruptError(
            f"checkpoint {number} is {found.found.condition}: {'; '.join(found.found.problems)}; compare other ones"
        )
    return found


def _own(lineage: CheckpointLineage) -> Mapping[str, Any]:
    return {name: getattr(lineage.found.manifest, name) for name in _OWN_FACTS}


def _provenance(lineage: CheckpointLineage) -> Mapping[str, Any]:
    return {} if lineage.found.manifest is None else lineage.found.manifest.provenance


def _part(store: CheckpointStore, number: int, name: str) -> PartState:
    """A part; an empty one where the checkpoint has none."""
    return store.load(number, only={name}).get(name, PartState())


def _differing(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Pair]:
    names = dict.fromkeys([*ours, *theirs])
    pairs = {name: (ours.get(name), theirs.get(name)) for name in names}
    return {name: (a, b) for name, (a, b) in pairs.items() if a != b}


def _histories(ours: CheckpointLineage, theirs: CheckpointLineage) -> Iterator[tuple[Any, Mapping[str, Pair]]]:
    for partition in sorted(ours.partitions.keys() | theirs.partitions.keys()):
        found = _differing(_flat(ours.partitions.get(partition)), _flat(theirs.partitions.get(partition)))
        if found:
            yield partition, found


def _flat(facts: PartitionAccount | None) -> Mapping[str, int]:
    if facts is None:
        return {}
    return {
        "start": facts.start,
        "position": facts.position,
        "learnt": facts.learnt,
        **{f"set aside {reason.value}": count for reason, count in facts.set_aside.items()},
        **{f"skipped by {order}": count for order, count in facts.skipped.items()},
        "gaps": facts.gaps,
        "lost": facts.lost,
    }


def _variables(store: CheckpointStore, numbers: tuple[int, int], part: str) -> Iterator[VariableDifference]:
    ours, theirs = (_part(store, number, part).arrays for number in numbers)
    for name in dict.fromkeys([*ours, *theirs]):
        yield _variable(name, ours.get(name), theirs.get(name))


def _variable(name: str, ours: Array | None, theirs: Array | None) -> VariableDifference:
    shapes = (_shape(ours), _shape(theirs))
    dtypes = (_dtype(ours), _dtype(theirs))
    if ours is None or theirs is None or ours.shape != theirs.shape:
        return VariableDifference(name=name, shapes=shapes, dtypes=dtypes)
    largest, total, differing = _measured(ours, theirs)
    mean = total / max(1, ours.size)
    finite = bool(np.isfinite(largest) and np.isfinite(mean))
    return VariableDifference(
        name=name,
        shapes=shapes,
        dtypes=dtypes,
        largest=largest if finite else None,
        mean=mean if finite else None,
        differing=differing,
        values=(_scalar(ours), _scalar(theirs)) if ours.shape == () else None,
    )


def _shape(array: Array | None) -> list[int] | None:
    return None if array is None else list(array.shape)


def _dtype(array: Array | None) -> str | None:
    return None if array is None else str(array.dtype)


def _measured(ours: Array, theirs: Array) -> tuple[float, float, int]:
    """The largest difference, their sum, and how many there are; NaN beside NaN is none."""
    largest, total, differing = 0.0, 0.0, 0
    flat, other = ours.reshape(-1), theirs.reshape(-1)
    for start in range(0, flat.size, _PIECE):
        apart = _apart(flat[start : start + _PIECE], other[start : start + _PIECE])
        largest = float(np.maximum(largest, apart.max()))
        total += float(apart.sum())
        differing += int(np.count_nonzero(apart))
    return largest, total, differing


def _apart(ours: Array, theirs: Array) -> npt.NDArray[np.float64]:
    a, b = ours.astype(_wide(ours)), theirs.astype(_wide(theirs))
    same = (a == b) | ((a != a) & (b != b))  # noqa: PLR0124 - what is not itself is NaN, in any dtype
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(a - b)
    return np.where(same, 0.0, apart).astype(np.float64)


def _wide(array: Array) -> npt.DTypeLike:
    return np.complex128 if np.iscomplexobj(array) else np.float64


def _scalar(array: Array) -> Any:
    """As JSON can hold it."""
    value = array.item()
    if isinstance(value, bool | int):
        return value
    return float(value) if np.isfinite(value) and not isinstance(value, complex) else str(value)
