"""What an optimizer keeps of its state when a changed model goes on with what another has learnt. Runs at a start.

A variable of an optimizer (a momentum, a count of steps) is kept where the optimizer is of the same class and the
variable has the same owner and shape; all others begin anew. The rate is the one that was built: it is part of what the
new model states.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millrace.training.checkpoints.parts import Array
from millrace.training.model.variables import assign, optimizer_variables, optimizers_of, rates_of


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
