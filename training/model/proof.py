"""The proof at every start, on the user's own model: a record has the same weight everywhere.

It runs the real compiled call on made-up rows and compares what the state is afterwards, then puts the state back:

1. what absent rows hold changes nothing: neither a weight nor a metric;
2. a present row pulls with 1/B of the global batch, in a full batch and in a partial one;
3. one replica and several come to the same weights (where there are several, and the model draws no random numbers).

A model that fails is refused with the layer or metric at fault and what to do, or only warned of (`training.proof`).
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from training.model.compiled_call import CallResult
from training.model.learner import Learner, Mask
from training.model.probe_batches import Probe
from training.model.variables import assign, model_variables, optimizer_variables, read

Values = dict[str, npt.NDArray[Any]]
_RELATIVE, _ABSOLUTE = 1e-4, 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One claim of the proof, and whether it holds."""

    claim: str
    holds: bool | None
    """None where the claim could not be examined; `detail` says why."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class StateAfterCall:
    """The model's state and the scores after one call."""

    values: Values
    result: CallResult


class _NotFiniteError(Exception):
    """An update on some rows is not finite."""


class ModelProof:
    """Examines one learner, and leaves its state as it was."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._variables = {**model_variables(learner.model), **optimizer_variables(learner.model)}
        self._probe = self._finite_probe()

    def findings(self) -> list[Finding]:
        """Examine everything."""
        if self._probe is None:
            detail = "the model gives NaN or infinity on made-up rows; its own records will show"
            return [Finding(claim="absent rows change nothing", holds=None, detail=detail)]
        findings = [self._absent_rows(self._probe), self._weight_of_a_row(self._probe)]
        if self._learner.replicas > 1:
            findings.append(self._replicas(self._probe))
        return findings

    def outcome(self, probe: Probe, present: Mask | None = None) -> StateAfterCall:
        """Run one batch from the present state, copy the resulting state, and restore the present one."""
        before = {key: np.array(read(variable)) for key, variable in self._variables.items()}
        # The made-up offsets are counted by the call as well, and the ledger knows nothing of them.
        witness = np.array(read(self._learner.witness.variable))
        try:
            # One pass: after more of them the sum of two halves' updates is no longer the update of the whole.
            result = self._learner.call(self._learner.rows_of(probe, present), passes=1)
            after = {key: np.array(read(variable)) for key, variable in self._variables.items()}
        finally:
            for key, variable in self._variables.items():
                assign(variable, before[key])
            assign(self._learner.witness.variable, witness)
        return StateAfterCall(after, result)

    def _absent_rows(self, probe: Probe) -> Finding:
        claim = "absent rows change nothing"
        size = self._learner.options.batch_size
        if size < 4:
            return Finding(claim=claim, holds=None, detail=f"a batch of {size} is too small to show it")
        half = size // 2
        present = np.arange(size) < half
        one = self.outcome(probe.arranged(_order(size, half, fill=0)), present)
        other = self.outcome(probe.arranged(_order(size, half, fill=half - 1)), present)
        moved = _differences(one.values, other.values)
        if moved:
            return Finding(claim=claim, holds=False, detail=self._blame(moved))
        wrong = self._metrics_that_differ(one, other)
        if wrong:
            text = f"metric {wrong[0]} counts absent rows: compile it in metrics=[…], or update it with sample_weight"
            return Finding(claim=claim, holds=False, detail=text)
        return Finding(claim=claim, holds=True)

    def _weight_of_a_row(self, probe: Probe) -> Finding:
        """Check that the losses of two halves, each alone in the batch, add up to the loss of the whole."""
        claim = "a present row pulls with 1/B of the global batch"
        first = np.arange(self._learner.options.batch_size) % 2 == 0  # on every replica half of its rows
        none = np.zeros_like(first)
        # A loss of regularization is in every batch, with or without rows, so the loss of no rows is subtracted.
        apart, left, right, whole = (
            float(self.outcome(probe, present).result.losses[0]) for present in (none, first, ~first, ~none)
        )
        if np.isnan([apart, left, right, whole]).any():
            return Finding(claim=claim, holds=None, detail="the model's train_step reports no finite loss")
        if np.isclose((left - apart) + (right - apart), whole - apart, rtol=1e-3, atol=1e-6):
            return Finding(claim=claim, holds=True)
        text = "the loss is a mean over present rows: use the default reduction, sum_over_batch_size"
        return Finding(claim=claim, holds=False, detail=text)

    def _replicas(self, probe: Probe) -> Finding:
        replicas = self._learner.replicas
        claim = f"1 replica and {replicas} agree"
        if any("seed_generator" in key for key in self._variables):
            return Finding(claim=claim, holds=None, detail="the model draws random numbers, on each replica the same")
        single = ModelProof(self._learner.alone())
        for key, variable in single._variables.items():
            assign(variable, np.array(read(self._variables[key])))
        size = self._learner.options.batch_size
        for rows in (size, max(1, size // (2 * replicas))):
            present = np.arange(size) < rows
            several, alone = self.outcome(probe, present), single.outcome(probe, present)
            moved = _differences(several.values, alone.values)
            if moved:
                return Finding(claim=claim, holds=False, detail=self._blame(moved))
        return Finding(claim=claim, holds=True)

    def _finite_probe(self) -> Probe | None:
        """Find a probe on which the model's update is finite; None where a few tries give none."""
        with suppress(_NotFiniteError):
            self._learner.probes.require(self._require_finite)
        for seed in range(1, 4):
            probe = self._learner.probe(seed)
            if self.outcome(probe).result.finite.all():
                return probe
        return None

    def _require_finite(self, probe: Probe) -> None:
        if not self.outcome(probe).result.finite.all():
            raise _NotFiniteError

    def _blame(self, moved: Sequence[str]) -> str:
        layers = [*self._learner.model._flatten_layers()]  # noqa: SLF001 - Keras has no public recursive walk
        norms = [layer.name for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]
        if norms:
            return (
                f"layer {norms[0]} (BatchNormalization) takes its statistics over absent rows and by replica: use "
                "LayerNormalization or GroupNormalization, or accept it with training.proof: warn"
            )
        return (
            f"{moved[0]} comes out otherwise: whatever computes it mixes the rows of a batch or ignores sample_weight; "
            "honour the weights there, or accept it with training.proof: warn"
        )

    def _metrics_that_differ(self, one: StateAfterCall, other: StateAfterCall) -> list[str]:
        wrong, at = [], 0
        for name, metric in self._learner.call.metrics.metrics.items():
            count = len(metric.variables)
            pairs = zip(one.result.states[at : at + count], other.result.states[at : at + count], strict=True)
            if not all(np.allclose(a, b, rtol=_RELATIVE, atol=_ABSOLUTE) for a, b in pairs):
                wrong.append(name)
            at += count
        return wrong


def _order(size: int, present: int, fill: int) -> npt.NDArray[np.int64]:
    """Return an order of rows: the present ones as they are, each absent one a copy of the row `fill`."""
    order = np.arange(size)
    order[present:] = fill
    return order


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the keys whose values differ by more than rounding, the largest difference first."""
    gaps = {
        key: float(np.max(np.abs(one[key].astype(np.float64) - other[key].astype(np.float64)), initial=0.0))
        for key in one
        if not np.allclose(one[key], other[key], rtol=_RELATIVE, atol=_ABSOLUTE)
    }
    return sorted(gaps, key=lambda key: -gaps[key])
