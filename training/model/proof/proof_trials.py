"""The trials of the proof: batches that are run or recorded from the same state, each one once.

Every trial is undone, so that the next one begins from that state again. The state is copied into the host's memory
once: a second copy of a large model on its device might not fit there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from millrace.pipelines.stream.blocks import Rows
from millrace.training.model.call.compiled_call import CallResult
from millrace.training.model.learner import Learner, Mask
from millrace.training.model.probes import Probe
from millrace.training.model.proof.row_pull import RecordedBatch
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


_Batch = tuple[int, bytes, float, int]
"""A batch by its probe's id, the rows that are present, the factor of their weights, and their number."""


@dataclass(frozen=True, slots=True)
class StateAfterCall:
    """The model's state and the scores after one call."""

    values: Values
    result: CallResult


class ProofTrials:
    """Runs and records batches of one learner; the same batch from the same state gives the same, so it runs once."""

    def __init__(self, learner: Learner) -> None:
        self.kept = KeptState(learner)
        self._learner = learner
        weights = {id(variable) for variable in learner.model.trainable_variables}
        self._weights = [key for key, variable in self.kept.variables.items() if id(variable) in weights]
        self._results: dict[_Batch, tuple[Probe, CallResult]] = {}
        self._records: dict[_Batch, tuple[Probe, RecordedBatch]] = {}

    def begin_as(self, other: "ProofTrials") -> None:
        """Begin every trial from another learner's kept state."""
        self.kept.take(other.kept)
        self._results.clear()
        self._records.clear()

    def result(self, probe: Probe, present: Mask | None = None) -> CallResult:
        """Run one batch from the kept state, and undo it."""
        key = _key(probe, present)
        if key not in self._results:
            with self.kept.undone():
                self._call(probe, present)
        return self._results[key][1]

    def outcome(self, probe: Probe, present: Mask | None = None) -> StateAfterCall:
        """Run one batch from the kept state, copy the resulting state, and undo it."""
        with self.kept.undone():
            result = self._call(probe, present)
            return StateAfterCall(self.kept.copied(), result)

    def _call(self, probe: Probe, present: Mask | None) -> CallResult:
        # One pass: in a second one two halves would start from other weights than the whole, and not add up to it.
        # As they are: `augment` may mix a row's neighbours into it, and draws.
        result = self._learner.call(self._learner.rows_of(probe, present), passes=1, visit=None)
        self._results[_key(probe, present)] = probe, result  # with the probe, as its id is in the key
        return result

    def recorded(
        self, probe: Probe, present: Mask | None = None, *, weight: float = 1.0, size: int | None = None
    ) -> RecordedBatch:
        """Record one batch as `record` does, unless it was recorded already."""
        key = _key(probe, present, weight, size or self._learner.options.batch_size)
        if key not in self._records:
            self._records[key] = probe, self.record(probe, present, weight=weight, size=size)
        return self._records[key][1]

    def record(
        self,
        probe: Probe,
        present: Mask | None = None,
        *,
        weight: float | npt.NDArray[np.float32] = 1.0,
        size: int | None = None,
    ) -> RecordedBatch:
        """Record one batch from the kept state and undo it.

        Its weights are multiplied by `weight`, one number or one a row; its rows are cut or repeated to a batch of
        `size`.
        """
        rows = self._learner.rows_of(probe, present)
        rows = rows._replace(weights=rows.weights * weight)
        with self.kept.undone():
            step = self._learner.call.record(rows if size is None else _resized(rows, size))
            moved = {
                key: np.array(read(variable)) - self.kept.values[key]
                for key, variable in self.kept.changed()
                if tf.as_dtype(variable.dtype).is_floating
            }
        direct = {f"{key}, assigned by the step,": moved[key] for key in self._weights if key in moved}
        gradients = {_place(*place): gradient for place, gradient in step.gradients.items()}
        return RecordedBatch(
            pulls={**gradients, **{key: value.astype(np.float64) for key, value in direct.items()}},
            loss=step.loss,
            graph=step.graph,
            assigned=frozenset(moved),
        )


def _key(probe: Probe, present: Mask | None, weight: float = 1.0, size: int = 0) -> _Batch:
    return id(probe), b"" if present is None or present.all() else present.tobytes(), weight, size


def _resized(rows: Rows, size: int) -> Rows:
    """Return a block whose batch holds the first rows, or all of them several times over."""
    order = np.resize(np.arange(rows.weights.shape[1]), size)
    resized: Rows = tf.nest.map_structure(lambda column: tf.gather(column, order, axis=1), rows)
    return resized


def _place(update: int, optimizer: str, variable: str) -> str:
    by = "" if optimizer == "optimizer" else f" for {optimizer}"
    return f"the gradient of {variable}{by}" + (f" in update {update + 1}" if update else "")
