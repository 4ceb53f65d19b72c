"""Initial weights: what a new model takes over of weights that were learnt before, and what begins anew.

Owns the matching and the table of it; runs on the starting thread, before checkpoint 0 is published. A variable is
matched by its place in the model (layer and variable, by name), and taken over only in its own shape. One shape may
differ: a table of embeddings that has more rows than before keeps the rows that it had, where no layer hashes. Any
other is refused by name, because a part of a weight is not what was learnt; a layer of a new name begins anew. The
states of random generators are not weights: those of the new model begin with `training.seed`.

If a changed model goes on with what another has learnt, a variable of an optimizer (a momentum, a count of steps) is
kept where the optimizer is of the same class and the variable has the same owner and shape; all others begin anew.
The rate is the one that was built: it is part of what the new model states.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from millrace.consumers.rounded import cut_list
from millrace.training.checkpoints.parts import Array
from millrace.training.errors import OtherModelError
from millrace.training.model.setup.mixture import members_of, of_mixture
from millrace.training.model.variables import (
    assign,
    automatic_names,
    model_variables,
    optimizer_variables,
    optimizers_of,
    rates_of,
    read,
)
from millrace.training.model.weights.weight_files import FoundWeights, canonical, grows, numbered

_SHOWN = 6
_RECORDED = 50
_SEEDS = "seed_generator"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightTable:
    """What is taken over, variable by variable."""

    what: str
    sha256: str
    kept: Mapping[str, Array]
    """By the variable in this model."""
    grown: Mapping[str, Array]
    """Tables of which the new model has more rows: their first rows."""
    new: tuple[str, ...]
    """Variables of the model that begin anew."""
    dropped: tuple[str, ...]
    """What the source has and the model has not."""
    by_order: tuple[str, ...] = ()
    """Those of `kept` whose layers have no name of their own, where others are new or dropped."""

    def summary(self) -> str:
        """Return the table in one sentence."""
        counts = (
            (len(self.kept), "kept"),
            (len(self.grown), "grown"),
            (len(self.new), "new"),
            (len(self.dropped), "dropped"),
        )
        return f"{self.what}: " + ", ".join(f"{count} {word}" for count, word in counts if count)

    def lines(self) -> Iterator[str]:
        """Give what is not simply kept, a line each, and what to look at."""
        for word, names in (("grown", [*self.grown]), ("new", self.new), ("dropped", self.dropped)):
            if names:
                yield f"{word}: {cut_list([*names], _SHOWN)}"
        if self.by_order:
            yield (
                f"matched by their order alone: {cut_list(self.by_order, _SHOWN)}; name these layers, before a layer "
                "more or less moves them"
            )

    def facts(self) -> dict[str, Any]:
        """Return what a manifest says of it; of each list of names the first fifty."""
        return {
            "source": self.what,
            "sha256": self.sha256,
            "kept": len(self.kept),
            **{name: list(getattr(self, name))[:_RECORDED] for name in ("grown", "new", "dropped")},
        }


def match(model: Any, found: FoundWeights) -> WeightTable:
    """Compare a model with weights; OtherModelError where none fits, or one has another shape. Changes nothing."""
    if members_of(model) and not of_mixture(found.arrays):
        model = members_of(model)[0]  # all members begin with the weights of one model
    variables = {key: one for key, one in model_variables(model).items() if not _is_seed(key)}
    arrays = _by_place(model, variables, found)
    pairs = {key: arrays[key] for key in variables if key in arrays}
    if not pairs:
        raise OtherModelError(
            f"none of the {len(arrays)} variables of {found.what} is one of the model: there they are "
            f"{cut_list([*arrays], _SHOWN)}, and here {cut_list([*variables], _SHOWN)}; name the layers as there, or "
            "name the right file"
        )
    growing = grows(model)
    grown = {
        key: array for key, array in pairs.items() if id(variables[key]) in growing and _grew(variables[key], array)
    }
    kept = {key: array for key, array in pairs.items() if key not in grown}
    unlike = []
    for key, array in kept.items():
        variable = variables[key]
        if tuple(variable.shape) != array.shape:
            unlike.append(f"{key} is {list(variable.shape)} here and {list(array.shape)} there")
        elif _counts(variable.dtype) != _counts(array.dtype):
            unlike.append(f"{key} is {variable.dtype} here and {array.dtype} there")
    if unlike:
        raise OtherModelError(
            f"{found.what} does not fit the model: {cut_list(unlike, _SHOWN, '; ')}. Give each changed layer another "
            "name in model.py, so that it begins with new weights, or take back the change"
        )
    new = tuple(key for key in variables if key not in arrays)
    dropped = tuple(key for key in arrays if key not in variables)
    automatic = automatic_names(model)
    unnamed = tuple(key for key in kept if _by_class(key, automatic)) if new or dropped else ()
    return WeightTable(
        what=found.what, sha256=found.sha256, kept=kept, grown=grown, new=new, dropped=dropped, by_order=unnamed
    )


def take_over(model: Any, table: WeightTable) -> None:
    """Set the model's variables by the table."""
    members = () if of_mixture(table.kept) else members_of(model)
    variables = model_variables(members[0] if members else model)
    for key, array in table.kept.items():
        assign(variables[key], array)
    for key, array in table.grown.items():
        whole = np.array(read(variables[key]))
        whole[: len(array)] = array
        assign(variables[key], whole)
    if members:
        model.begin_with(0)


def _by_place(model: Any, variables: Mapping[str, Any], found: FoundWeights) -> dict[str, Array]:
    """Return the arrays by the keys of the model's variables; what it lacks by the names that they have there."""
    renamed = canonical(found.arrays, automatic_names(model))
    arrays = {renamed[name]: array for name, array in found.arrays.items() if not _is_seed(name)}
    if not found.numbered:
        return arrays
    keys = {id(variable): key for key, variable in variables.items()}
    places = {name: keys[id(one)] for name, one in numbered(model).items() if id(one) in keys}
    return {places.get(name, name): array for name, array in arrays.items()}


def _grew(variable: Any, array: Array) -> bool:
    here, there = tuple(variable.shape), array.shape
    return len(here) == len(there) == 2 and here[1] == there[1] and here[0] > there[0] > 0


def _counts(dtype: Any) -> bool:
    """Return whether a dtype holds integers or bools."""
    return str(dtype).startswith(("int", "uint", "bool"))


def _is_seed(key: str) -> bool:
    return any(part.startswith(_SEEDS) for part in key.split("/"))


def _by_class(key: str, automatic: frozenset[str]) -> bool:
    """Return whether a layer on the way has only the name that Keras gave it."""
    layers = key.split("/")[:-1]
    return any(part in automatic or part.rpartition("_")[0] in automatic for part in layers)


@dataclass(frozen=True, slots=True)
class KeptSlots:
    """How many variables of the optimizers go on, and how many begin anew."""

    kept: int
    new: int


def keep_slots(model: Any, arrays: Mapping[str, Array], classes: Mapping[str, str]) -> KeptSlots:
    """Set the variables of the optimizers that go on; `classes` has the former optimizers' classes, by name."""
    same = {name for name, one in optimizers_of(model).items() if classes.get(name) == type(one).__name__}
    kept = new = 0
    for key, variable in optimizer_variables(model).items():
        if key in rates_of(model):
            continue
        array = arrays.get(key)
        if key.partition("/")[0] in same and array is not None and tuple(variable.shape) == array.shape:
            assign(variable, array)
            kept += 1
        else:
            new += 1
    return KeptSlots(kept, new)
