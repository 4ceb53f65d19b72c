"""The variables of a model and its optimizers: keyed by structure, copied between calls, restored whole or not at all.

Owns the naming and the two parts `model` and `optimizer`; runs on the trainer's thread. A snapshot is copied at once,
into memory that is kept from one save to the next: 120 MB take about 20 ms. Keeping TensorFlow's own buffers instead
costs nothing at first, but then the next update takes 130 ms, because it must allocate as much new memory.

Auto-generated names (`dense_17`) count up through a process, so a path is renumbered by first appearance in this model:
the same code gives the same keys in any process, after any number of models.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from millrace.consumers.rounded import cut_list
from millrace.training.checkpoints.parts import PartState
from millrace.training.errors import OtherModelError, UncapturedStateError
from millrace.training.model.setup.keras_internals import layers_of

Array = npt.NDArray[Any]
_COUNTED = re.compile(r"^(.*?)_(\d+)$")
_UNNAMED = re.compile(r"^variable_\d+$")
_MUTATING_OPS = ("LookupTableInsert", "LookupTableImport", "LookupTableRemove", "MutableHashTable", "MutableDenseHash")
_RANDOM_OPS = ("Random", "TruncatedNormal", "ParameterizedTruncatedNormal", "Multinomial")
"""Prefixes of the operations that draw random numbers from TensorFlow's own state; `StatelessRandom…` do not."""


def automatic_names(model: Any) -> frozenset[str]:
    """Return the names that Keras gives by itself, without their counters: classes of layers in snake case."""
    # Only these are renumbered: a name that a user gave may end with a number and must stay as it is.
    layers = layers_of(model)
    classes = {"seed_generator", "variable", *(_snake(type(layer).__name__) for layer in layers)}
    if any(isinstance(layer, keras.layers.Bidirectional) for layer in layers):  # names its halves after what it wraps
        classes |= {f"{side}_{name}" for side in ("forward", "backward") for name in classes}
    return frozenset(classes)


def by_structure(variables: Sequence[Any], automatic: Collection[str]) -> dict[str, Any]:
    """Key Keras variables by their place: automatic names renumbered by first appearance, duplicates counted."""
    renamed: dict[tuple[str, str], str] = {}
    counts: dict[tuple[str, str], int] = {}
    keyed: dict[str, Any] = {}
    for variable in variables:
        place = ""
        for component in variable.path.split("/"):
            if (place, component) not in renamed:
                renamed[place, component] = _renumbered(place, component, counts, automatic)
            name = renamed[place, component]
            place = f"{place}/{name}" if place else name
        keyed[_free(place, keyed)] = variable
    return keyed


def _renumbered(place: str, component: str, counts: dict[tuple[str, str], int], automatic: Collection[str]) -> str:
    match = _COUNTED.match(component)
    base = match.group(1) if match else component
    if base not in automatic:
        return component
    number = counts.get((place, base), 0)
    counts[place, base] = number + 1
    return f"{base}_{number}" if number else base


def _free(key: str, taken: Collection[str]) -> str:
    """Return a key that is not taken: the key itself, or the key with the number of its duplicate."""
    free, twin = key, 1
    while free in taken:
        twin += 1
        free = f"{key}#{twin}"
    return free


def _snake(name: str) -> str:
    """Return a class name as Keras turns it into a layer's name: Conv2DTranspose becomes conv2d_transpose."""
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def model_variables(model: Any) -> dict[str, Any]:
    """Return every variable of the model, seeds included, by structure."""
    return by_structure(model.variables, automatic_names(model))


def optimizers_of(model: Any) -> dict[str, Any]:
    """Return the compiled optimizer as `optimizer`, and any other that the model holds as an attribute, by name."""
    found = {"optimizer": model.optimizer} if model.optimizer is not None else {}
    for name, value in vars(model).items():
        if isinstance(value, keras.optimizers.Optimizer) and all(value is not known for known in found.values()):
            found[name.lstrip("_")] = value
    return found


def optimizer_variables(model: Any) -> dict[str, Any]:
    """Return every variable of every optimizer, by its kind and the structure of the variable that it belongs to."""
    owners = {v.path.replace("/", "_"): key.replace("/", "_") for key, v in model_variables(model).items()}
    # One path may begin another, so the longest that fits is the owner.
    longest_first = sorted(owners, key=len, reverse=True)
    keyed: dict[str, Any] = {}
    for name, optimizer in optimizers_of(model).items():
        for variable in optimizer.variables:
            leaf = variable.path.rpartition("/")[2]
            owner = next((path for path in longest_first if leaf.startswith(f"{path}_")), None)
            leaf = _UNNAMED.sub("variable", leaf) if owner is None else f"{owners[owner]}{leaf[len(owner) :]}"
            keyed[_free(f"{name}/{leaf}", keyed)] = variable
    return keyed


def rates_of(model: Any) -> frozenset[str]:
    """Return the keys of the optimizers' rates; a rate is a variable only where it is a number, not a schedule."""
    return frozenset(f"{name}/learning_rate" for name in optimizers_of(model))


def copies(variable: Any) -> tuple[Any, ...]:
    """Return the TensorFlow variables behind one Keras variable, one a replica."""
    value = backing(variable)
    return tuple(getattr(value, "values", (value,)))


@contextmanager
def unmoved(model: Any) -> Iterator[None]:
    """Put back what the model moves by itself meanwhile, as the seeds of layers that always draw."""
    # By the copies: to assign what is reduced on read would change each replica's portion.
    kept = [(copy, copy.read_value()) for one in model.non_trainable_variables for copy in copies(one)]
    try:
        yield
    finally:
        for copy, value in kept:
            copy.assign(value)


def backing(variable: Any) -> Any:
    """Return the TensorFlow variable, mirrored or not, behind a Keras variable, or the argument if it is one."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def read(variable: Any) -> Any:
    """Return the variable's present value as a tensor that no later update changes."""
    value = backing(variable)
    # Each replica holds only its portion of a variable that is reduced on read.
    if getattr(value, "_policy", None) is not None and value.synchronization == tf.VariableSynchronization.ON_READ:
        return tf.convert_to_tensor(value)
    return copies(variable)[0].read_value()


def assign(variable: Any, array: Array) -> None:
    """Set every replica's copy."""
    value = backing(variable)
    value.assign(tf.convert_to_tensor(array, dtype=value.dtype))


@dataclass(frozen=True, slots=True)
class VariablesPart:
    """One part of a checkpoint: a group of variables."""

    name: str
    variables: Mapping[str, Any]
    optional: Collection[str] = ()
    """Keys that may be in the checkpoint and not in the model, or in the model and not in the checkpoint."""
    _kept: list[dict[str, Array]] = field(default_factory=list, repr=False)
    """Arrays of released snapshots, to be used again for the next ones."""

    def snapshot(self) -> PartState:
        """Copy all values between calls."""
        arrays = self._kept.pop() if self._kept else {}
        for key, variable in self.variables.items():
            value = np.asarray(read(variable))  # on a CPU the variable's own memory
            if key in arrays:
                np.copyto(arrays[key], value)
            else:
                arrays[key] = np.array(value)
        return PartState(arrays=arrays, facts={}, release=partial(self._kept.append, arrays))

    def restore(self, state: PartState) -> None:
        """Set all values; refuses another model before anything is touched."""
        self.check(state)
        arrays = state.arrays
        for key, variable in self.variables.items():
            if key in arrays:
                assign(variable, arrays[key])
        # The first save then finds memory in place, instead of allocating as much as the model takes.
        if not self._kept:
            self._kept.append({key: np.array(array) for key, array in arrays.items() if key in self.variables})

    def check(self, state: PartState) -> None:
        """Refuse a state whose names or shapes differ from the model's; the text shows the differences."""
        found = differences(self.variables, state.arrays, self.optional)
        if found:
            raise OtherModelError(
                f"the checkpoint holds another model ({self.name}): {found}. "
                "Take back the change to model.py, model.args or training.members, or give the new model a name of its "
                "own"
            )


def differences(variables: Mapping[str, Any], arrays: Mapping[str, Array], optional: Collection[str] = ()) -> str:
    """Describe how the names or shapes of a checkpoint differ from the model's; empty where they do not."""
    found = [f"{key} is new" for key in variables if key not in arrays and key not in optional]
    found += [f"{key} is gone" for key in arrays if key not in variables and key not in optional]
    for key in variables.keys() & arrays.keys():
        wanted, there = tuple(variables[key].shape), tuple(arrays[key].shape)
        if wanted != there:
            found.append(f"{key} is {list(wanted)} here and {list(there)} there")
    return cut_list(sorted(found), 6, "; ")


def refuse_uncaptured(function: Any, captured: Iterable[Any], *, deterministic: bool) -> None:
    """Refuse, by name, state that the traced call changes or reads and no part saves."""
    known = {id(copy) for variable in captured for copy in copies(variable)}
    strangers = sorted({v.name for v in function.graph.variables if id(v) not in known and v.trainable is not None})
    if strangers:
        raise UncapturedStateError(
            f"the model uses variables that no checkpoint would hold: {', '.join(strangers[:5])}. "
            "Create them with add_weight (or as keras.Variable attributes of a layer) so that they are saved"
        )
    traced = function.graph.as_graph_def().library.function
    inside = [_Node(name=node.name, type=node.op) for each in traced for node in each.node_def]
    operations = [*function.graph.get_operations(), *inside]
    tables = sorted({op.name for op in operations if op.type.startswith(_MUTATING_OPS)})
    if tables:
        raise UncapturedStateError(
            f"the model changes lookup tables while it trains ({', '.join(tables[:3])}), and no checkpoint would hold "
            "them; use Hashing or a fixed vocabulary"
        )
    random = sorted({op.name for op in operations if op.type.startswith(_RANDOM_OPS)})
    if random and deterministic:
        raise UncapturedStateError(
            f"training.deterministic: the model draws random numbers outside Keras' seed generators "
            f"({', '.join(random[:3])}); use keras.random with a keras.random.SeedGenerator"
        )


@dataclass(frozen=True, slots=True)
class _Node:
    name: str
    type: str
