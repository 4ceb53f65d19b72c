"""A learner's state as it is now, to return to after each trial of the proofs.

The values are copied into the host's memory once: a second copy of a large model on its device might not fit there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.training.model.learner import Learner
from millrace.training.model.variables import assign, model_variables, optimizer_variables, read

Values = dict[str, npt.NDArray[Any]]


class KeptState:
    """Every variable of a model and its optimizers by name, with the values that each trial is undone to."""

    def __init__(self, learner: Learner) -> None:
        self._witness = learner.witness.variable
        self.variables = {**model_variables(learner.model), **optimizer_variables(learner.model)}
        self.values = self.copied()

    def copied(self) -> Values:
        """Return a copy of the present values."""
        return {key: np.array(read(variable)) for key, variable in self.variables.items()}

    def take(self, other: "KeptState") -> None:
        """Set every variable to another learner's kept value, and keep these."""
        for key, variable in self.variables.items():
            assign(variable, other.values[key])
        self.values = dict(other.values)

    def changed(self) -> list[tuple[str, Any]]:
        """Return the variables that differ from the kept values, by name."""
        pairs = self.variables.items()
        return [(key, variable) for key, variable in pairs if not np.array_equal(read(variable), self.values[key])]

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Restore the kept values at the end."""
        # The made-up offsets are counted by the call as well, and the ledger knows nothing of them.
        witness = np.array(read(self._witness))
        try:
            yield
        finally:
            for key, variable in self.changed():
                assign(variable, self.values[key])
            assign(self._witness, witness)
