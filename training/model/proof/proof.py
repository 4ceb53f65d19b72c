"""The proof at every start, on the user's own model: a record has the same weight everywhere.

It runs the real compiled call on made-up rows and compares what the state is afterwards, then puts the state back. It
also records what reaches the optimizers (`training/model/proof/row_pull.py`), because an optimizer may hide a wrong
pull:

1. what absent rows hold changes nothing: neither a weight nor a metric, and a batch of them counts in no metric;
2. a present row pulls with 1/B of the global batch, in a full batch and in a partial one, wherever in the batch it
   stands and in proportion to its weight, and something is learnt;
3. one replica and several come to the same weights (where there are several, and the model draws no random numbers).

With `training.rows: together` the loss compares rows of whole batches, and other rules hold: no absent row is ever
learnt or scored, so the first two are replaced by this: something is learnt, and a row's prediction is its own.

A model that fails is refused with the layer or metric at fault and what to do, or only warned of (`training.proof`).
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from millrace.pipelines.schema import PRESENT
from millrace.training.model.learner import Learner, Mask
from millrace.training.model.probes import Probe
from millrace.training.model.proof.proof_trials import ProofTrials, StateAfterCall
from millrace.training.model.proof.row_mixing import calmest_first, mixes_rows
from millrace.training.model.proof.row_pull import Pulls, RecordedBatch, clips, differing, divides_by, ratio, together
from millrace.training.model.setup.keras_internals import layers_of

_RELATIVE, _ABSOLUTE = 1e-4, 1e-6
_ROUNDING, _COARSE_ROUNDING = 1e-3, 0.1
"""By how much pulls that should be equal may differ: in float32, and where a layer computes in 16 bits."""
_FAINT = 1e-3
"""Weights so small that no gradient reaches the bound at which a step clips it."""
_EVERYWHERE = "a record weighs the same everywhere"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One claim of the proof, and whether it holds."""

    claim: str
    holds: bool | None
    """None where the claim could not be examined; `detail` says why."""
    detail: str = ""
    rounding: bool = False
    """Whether rounding may be why it does not hold, as what is summed nearly cancels."""


class _NotFiniteError(Exception):
    """An update on some rows is not finite."""


class ModelProof:
    """Examines one learner, and leaves its state as it was."""

    def __init__(self, learner: Learner, *, whole_batches: bool = False) -> None:
        self._learner, self._whole_batches = learner, whole_batches
        self._trials = ProofTrials(learner)
        kept = {id(variable) for variable in learner.model.non_trainable_variables}
        self._learnt = {key for key, variable in self._trials.kept.variables.items() if id(variable) not in kept}
        in_16_bits = {"bfloat16", "float16"} & {getattr(each, "compute_dtype", "") for each in layers_of(learner.model)}
        self._rounding = _COARSE_ROUNDING if in_16_bits else _ROUNDING
        self._probe = self._finite_probe()

    def findings(self) -> list[Finding]:
        """Examine everything."""
        if self._probe is None:
            detail = "the model gives NaN or infinity on made-up rows; its own records will show"
            return [Finding(claim="absent rows change nothing", holds=None, detail=detail)]
        once = self._trials.recorded(self._probe)
        again = self._trials.record(self._probe)
        if differing(once.pulls, again.pulls, self._rounding):
            detail = (
                "the step gives something else each time: it draws random numbers outside of Keras' seed generators"
            )
            return [Finding(claim=_EVERYWHERE, holds=None, detail=detail)]
        if self._learner.options.rows_together:
            return self._of_rows_together(once)
        absent = self._absent_rows(self._probe)
        if absent.holds is False and self._whole_batches:
            detail = (
                f"training.partial_batches: wait leaves absent rows to a search for culprits alone ({absent.detail})"
            )
            absent = Finding(claim=absent.claim, holds=None, detail=detail)
        findings = [absent, self._pull_of_a_row(self._probe, once), *self._masked_labels(self._probe)]
        if self._learner.replicas > 1:
            findings.append(self._replicas(self._probe))
        return findings

    def _of_rows_together(self, whole: RecordedBatch) -> list[Finding]:
        """Check what holds for a loss that compares rows: such batches are whole, and no other is learnt or scored."""
        claim = "a whole batch is learnt, and each row predicted of itself alone"
        if text := self._updates_nothing(whole):
            return [Finding(claim=claim, holds=False, detail=text)]
        if mixes_rows(self._learner, self._trials.kept, self._rounding, in_use=True):
            text = (
                "the prediction of a row changes with the rows beside it, and a request is answered beside others: "
                "have the model give each row's own outputs, such as both embeddings side by side, and compare the "
                "rows in the loss; or accept it with training.proof: warn"
            )
            return [Finding(claim=claim, holds=False, detail=text)]
        return [Finding(claim=claim, holds=True)]

    def _absent_rows(self, probe: Probe) -> Finding:
        claim = "absent rows change nothing"
        size = self._learner.options.batch_size
        if size < 4:
            return Finding(claim=claim, holds=None, detail=f"a batch of {size} is too small to show it")
        half = size // 2
        present = np.arange(size) < half
        # The calm rows are present, and what is absent is extreme in one batch, and calm in the other.
        extreme = probe.arranged(calmest_first(self._learner, probe))
        arranged = [extreme, extreme.arranged(_order(size, half, fill=0))]
        one, other = (self._trials.outcome(rows, present) for rows in arranged)
        pulls, others = (self._trials.recorded(rows, present).pulls for rows in arranged)
        state, pulled = _differences(one.values, other.values), differing(pulls, others, _ROUNDING)
        if moved := state or pulled:
            # An optimizer such as Adam turns the rounding of a small gradient into a whole step.
            rounding = self._cancels(probe) if pulled else self._learnt.issuperset(state)
            return Finding(claim=claim, holds=False, detail=self._blame(moved), rounding=rounding)
        if mixes_rows(self._learner, self._trials.kept, self._rounding):
            text = (
                "the prediction of a row changes with the rows beside it, so a layer mixes the rows of a batch: have "
                "it compute each row of that row alone, or accept it with training.proof: warn"
            )
            return Finding(claim=claim, holds=False, detail=text)
        if wrong := self._metrics_that_differ(one, other):
            way_out = "compile it in metrics=[…], or update it with sample_weight"
            if wrong[0] in self._learner.call.metrics.compiled:
                way_out = "have its update_state multiply by sample_weight whatever it adds up"
            text = f"metric {wrong[0]} counts absent rows: {way_out}"
            return Finding(claim=claim, holds=False, detail=text)
        if wrong := self._metrics_that_count_nothing(probe):
            text = (
                f"metric {wrong[0]} counts a batch without any records: have its update_state multiply by "
                "sample_weight whatever it adds up, counts included"
            )
            return Finding(claim=claim, holds=False, detail=text)
        return Finding(claim=claim, holds=True)

    def _masked_labels(self, probe: Probe) -> list[Finding]:
        """Check that a row without a label does not learn that output; no findings if each row has all labels.

        What stands for a label that is missing is that of the first row that has one: here of an absent row, which has
        no other part in the batch.
        """
        size = self._learner.options.batch_size
        masked = [one for one in self._learner.options.schema.labels if one.masked]
        if not masked:
            return []
        claim = "a row without a label does not learn that output"
        if size < 4:
            return [Finding(claim=claim, holds=None, detail=f"a batch of {size} is too small to show it")]
        untold = list[str]()
        for label in masked:
            column = probe.labels[label.name]
            unlike = [row for row in range(size) if not np.array_equal(column[row], column[0])]
            if not unlike:
                untold.append(label.name)
                continue
            other = column.copy()
            other[0] = column[unlike[0]]
            mask, present = np.arange(size) % 2 == 0, np.arange(size) > 0
            pair = [
                replace(probe, labels={**probe.labels, label.name: each, label.name + PRESENT: mask})
                for each in (column, other)
            ]
            one, same = (self._trials.recorded(rows, present).pulls for rows in pair)
            if found := differing(one, same, self._rounding):
                text = (
                    f"{found[0]} depends on what stands for {label.name!r} in a row without it: sample_weight has a "
                    "weight for each output then; give it to self.compute_loss, or multiply the losses of each output"
                )
                return [Finding(claim=claim, holds=False, detail=text)]
            if wrong := self._metrics_that_differ(*(self._trials.outcome(rows, present) for rows in pair)):
                text = (
                    f"metric {wrong[0]} counts rows without {label.name!r}: compile it in metrics={{…}} under the name "
                    "of its output, or update it with the sample_weight of that output"
                )
                return [Finding(claim=claim, holds=False, detail=text)]
        detail = f"all rows at hand have the same {untold[0]!r}" if untold else ""
        return [Finding(claim=claim, holds=None if untold else True, detail=detail)]

    def _pull_of_a_row(self, probe: Probe, whole: RecordedBatch) -> Finding:
        """Check that two halves, each alone in the batch, pull together as the whole does, and that B divides it."""
        claim = "a present row pulls with 1/B of the global batch"
        if text := self._updates_nothing(whole):
            return Finding(claim=claim, holds=False, detail=text)
        wrong = self._not_additive(probe, 1.0)
        if wrong and not self._clips_by_itself(probe):
            return Finding(claim=claim, holds=False, detail=_of_present_rows(wrong[0]), rounding=self._cancels(probe))
        if self._ignores_size(probe):
            text = (
                "the loss is a sum over rows, so that a batch twice as large pulls twice as far: use the default "
                "reduction, sum_over_batch_size, or divide by training.batch_size"
            )
            return Finding(claim=claim, holds=False, detail=text)
        if text := self._minds_place(probe, whole) or self._minds_weight(probe, whole):
            return Finding(claim=claim, holds=False, detail=text, rounding=self._cancels(probe))
        return self._reported_loss(claim, probe)

    def _updates_nothing(self, whole: RecordedBatch) -> str:
        """Return why a batch teaches nothing; nothing if it does teach."""
        if whole.pulls or whole.assigned:
            return ""
        name = type(self._learner.model).__name__
        return (
            f"{name}.train_step updates nothing: it hands no gradient to an optimizer and assigns no weight; "
            "call self.optimizer.apply(gradients, self.trainable_variables), and see that something is trainable"
        )

    def _not_additive(self, probe: Probe, weight: float) -> list[str]:
        """Return where two halves of a batch do not pull together as the whole does."""
        *halves, whole = self._pulls_of(probe, self._halves(), weight)
        return differing(together(*halves), whole, self._rounding, beside=halves)

    def _pulls_of(self, probe: Probe, parts: Sequence[Mask], weight: float) -> list[Pulls]:
        """Return how these parts of a batch pull, each alone in it and with this weight of each row."""
        # What is in every batch, with or without rows (a loss of regularization), is subtracted.
        none = np.zeros(self._learner.options.batch_size, np.bool_)
        apart = self._trials.recorded(probe, none, weight=weight)
        return [self._trials.recorded(probe, part, weight=weight).beyond(apart) for part in parts]

    def _minds_place(self, probe: Probe, whole: RecordedBatch) -> str:
        """Return what is wrong if the same rows in another order pull otherwise; nothing where they pull the same."""
        if self._draws():
            return ""  # a mask as that of Dropout is drawn by place
        order = np.random.default_rng(1).permutation(self._learner.options.batch_size)
        wrong = differing(self._trials.recorded(probe.arranged(order)).pulls, whole.pulls, self._rounding)
        if not wrong:
            return ""
        return (
            f"{wrong[0]} changes with the order of the rows, as if some places of a batch counted less than others, or "
            "not at all: take all rows of the batch, and treat them alike"
        )

    def _minds_weight(self, probe: Probe, whole: RecordedBatch) -> str:
        """Return what is wrong if rows of half the weight pull otherwise than half as far; nothing without weights."""
        options = self._learner.options
        if options.schema.weight is None and (options.balance is None or options.balance.how != "weight"):
            return ""
        apart = self._trials.recorded(probe, np.zeros(options.batch_size, np.bool_))
        wrong = list[str]()
        for full in (1.0, _FAINT):  # a step that clips by itself does not reach its bound with the faint one
            one = whole if full == 1.0 else self._trials.recorded(probe, weight=full)
            half = self._trials.recorded(probe, weight=full / 2)
            twice = {place: 2 * pull for place, pull in half.beyond(apart).items()}
            if not (wrong := differing(twice, one.beyond(apart), self._rounding, beside=[apart.pulls])):
                return ""
        return (
            f"{wrong[0]} is not half as large with half the weight of each row: multiply the loss of each row by its "
            "sample_weight, as self.compute_loss does"
        )

    def _draws(self) -> bool:
        """Return whether the model draws random numbers."""
        return any("seed_generator" in key for key in self._trials.kept.variables)

    def _clips_by_itself(self, probe: Probe) -> bool:
        """Return whether gradients do not add up because the step clips them, and for no other reason.

        Below the bound they add up. So do those of a mean over present rows whose divisor is kept above some number, as
        by `maximum(sum(weight), 1)`: weights as small as these do not reach it. But then it is a sum over rows, or it
        shortens parts of a batch by how many rows they have and not by how hard they pull.
        """
        if self._not_additive(probe, _FAINT) or self._ignores_size(probe, _FAINT):
            return False
        size, parts = self._learner.options.batch_size, list[list[Mask]]()
        for count in (4, 2):  # a quarter may be below the bound that a half reaches
            if size >= 2 * count * self._learner.replicas:
                parts.append([np.arange(size) % count == part for part in range(count)])
        for masks in parts or [[*self._halves()[:2]]]:
            faint, full = (self._pulls_of(probe, masks, weight) for weight in (_FAINT, 1.0))
            free = [{place: pull / _FAINT for place, pull in pulls.items()} for pulls in faint]
            if differing(_joined(free), _joined(full), self._rounding):
                rows_alone = not differing({}, self._trials.recorded(probe, ~self._halves()[2]).pulls, 0.0)
                return clips([*zip(free, full, strict=True)], self._rounding, alone=rows_alone)
        return True  # only the whole batch reaches the bound

    def _cancels(self, probe: Probe) -> bool:
        """Return whether rows pull against each other by so much that their sum is little more than its rounding.

        Then it changes when each weight changes by its own last digits.
        """
        signs = np.random.default_rng(1).choice([-1.0, 1.0], self._learner.options.batch_size)
        weights = (1 + self._rounding / 1000 * signs).astype(np.float32)
        whole, beside = self._trials.recorded(probe).pulls, self._trials.record(probe, weight=weights).pulls
        return bool(differing(whole, beside, self._rounding / 10))

    def _halves(self) -> tuple[Mask, Mask, Mask]:
        """Return masks of two halves, and of all rows; of each half every replica has half of its rows."""
        first = np.arange(self._learner.options.batch_size) % 2 == 0
        return first, ~first, np.ones_like(first)

    def _ignores_size(self, probe: Probe, weight: float = 1.0) -> bool:
        """Return whether the same rows several times over pull several times as far; False where that cannot be run."""
        size, replicas = self._learner.options.batch_size, self._learner.replicas
        # A part of the batch costs less than a larger one. Of a single row a replica, a layer may make nothing at all.
        parts = [size // part for part in (4, 2) if size % (part * replicas) == 0 and size // part >= 2 * replicas]
        pairs = [(part, size) for part in parts[:1]] + [(size, (replicas + 1) * size)]
        for small, large in pairs:
            with suppress(Exception):  # the user's own code may need the batch to have the size that it has
                return self._pulls_by_rows(probe, small, large, weight)
        return False

    def _pulls_by_rows(self, probe: Probe, small: int, large: int, weight: float) -> bool:
        """Return whether some rows, repeated to a larger batch, pull as much farther in it."""
        size, replicas = self._learner.options.batch_size, self._learner.replicas
        same, none = probe.arranged(np.resize(np.arange(small), size)), np.zeros(size, np.bool_)
        few, many = (self._trials.recorded(same, weight=weight, size=each) for each in (small, large))
        few_apart = many_apart = self._trials.recorded(same, none, size=small)
        if differing(
            few_apart.pulls, self._trials.recorded(probe, none).pulls, self._rounding
        ):  # by the rows, or their number
            many_apart = self._trials.recorded(same, none, size=large)
        pulled, times = ratio(many.beyond(many_apart), few.beyond(few_apart)), large / small
        # A step that divides by a batch size of its own pulls with 1/B as well, and has that number in its graph. In
        # the graph of a batch of B rows it may be their number, too.
        graph, share = (few if large == size else many).graph, size / replicas
        return pulled > (1 + times) / 2 and not divides_by(graph, [size, share, 1 / size, 1 / share])

    def _reported_loss(self, claim: str, probe: Probe) -> Finding:
        """Check the same of the loss that the live metrics show."""
        none = np.zeros(self._learner.options.batch_size, np.bool_)
        apart, left, right, whole = (self._trials.recorded(probe, each).loss for each in (none, *self._halves()))
        if np.isnan([apart, left, right, whole]).any():
            return Finding(claim=claim, holds=True, detail="the model's train_step reports no finite loss")
        if np.isclose((left - apart) + (right - apart), whole - apart, rtol=self._rounding, atol=1e-6):
            return Finding(claim=claim, holds=True)
        text = (
            "the loss that train_step reports is a mean over present rows, and the live loss would be wrong: use "
            "self.compute_loss, or report the mean over all rows of the batch"
        )
        return Finding(claim=claim, holds=False, detail=text)

    def _replicas(self, probe: Probe) -> Finding:
        replicas = self._learner.replicas
        claim = f"1 replica and {replicas} agree"
        if self._draws():
            return Finding(claim=claim, holds=None, detail="the model draws random numbers, on each replica the same")
        single = ProofTrials(self._learner.alone(self._learner.batch_size))
        single.begin_as(self._trials)
        size = self._learner.options.batch_size
        # Every member of a group takes the same rows. Together they are those of one replica several times over, row by
        # row: Keras' Adam squares the gradient of an embedding by row, not that of its sum.
        members = self._learner.batch_size // size
        whole = probe.arranged(np.tile(np.arange(size), members))
        for rows in (size, max(1, size // (2 * replicas))):
            present = np.arange(size) < rows
            of_all = np.tile(present, members)
            several, alone = self._trials.recorded(probe, present), single.recorded(whole, of_all)
            if moved := differing(several.pulls, alone.pulls, self._rounding):
                detail = self._blame_replicas(moved[0], several, alone)
                return Finding(claim=claim, holds=False, detail=detail, rounding=self._cancels(probe))
            if not np.isclose(several.loss, alone.loss, rtol=self._rounding, atol=1e-6, equal_nan=True):
                text = (
                    f"train_step reports a loss of {alone.loss:.4g} on 1 and of {several.loss:.4g} on {replicas}: use "
                    "self.compute_loss, or report the mean over the replica's own rows"
                )
                return Finding(claim=claim, holds=False, detail=text)
            if self._rounding == _COARSE_ROUNDING:
                continue  # an optimizer such as Adam turns the rounding of a small gradient into a whole step
            moved = _differences(self._trials.outcome(probe, present).values, single.outcome(whole, of_all).values)
            if moved:
                rounding = self._learnt.issuperset(moved)
                return Finding(claim=claim, holds=False, detail=self._blame(moved), rounding=rounding)
        return Finding(claim=claim, holds=True)

    def _finite_probe(self) -> Probe | None:
        """Find a probe on which the model's update is finite; None where a few tries give none."""
        tried: list[Probe] = []

        def require_finite(probe: Probe) -> None:
            tried.append(probe)
            if not self._trials.result(probe).finite.all():
                raise _NotFiniteError

        with suppress(_NotFiniteError):
            self._learner.probes.require(require_finite)
            if len(tried) == 1:
                return tried[0]  # a whole batch, which need not be run again
        for seed in range(1, 4):
            probe = self._learner.probe(seed)
            if self._trials.result(probe).finite.all():
                return probe
        return None

    def _blame(self, moved: Sequence[str]) -> str:
        layers = layers_of(self._learner.model)
        norms = [layer.name for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]
        if norms:
            return (
                f"layer {norms[0]} (BatchNormalization) takes its statistics over absent rows and by replica: use "
                "LayerNormalization or GroupNormalization, or on one replica training.partial_batches: wait, or accept "
                "it with training.proof: warn"
            )
        regularized = [layer.name for layer in layers if getattr(layer, "activity_regularizer", None) is not None]
        if regularized:
            return (
                f"layer {regularized[0]} has an activity_regularizer, which counts the activations of absent rows: "
                "regularize the kernel instead, have the layer call add_loss with one value a row, or accept it with "
                "training.proof: warn"
            )
        if self._learner.call.adds_loss_of_batches:
            return (
                "a layer calls add_loss with one number that is taken over all rows, absent ones among them: give it "
                "one value a row, which is then weighed and averaged, or accept it with training.proof: warn"
            )
        return (
            f"{moved[0]} comes out otherwise: whatever computes it mixes the rows of a batch or ignores sample_weight; "
            "honour the weights there, or accept it with training.proof: warn; a loss that compares rows needs "
            "training.rows: together"
        )

    def _blame_replicas(self, place: str, several: RecordedBatch, alone: RecordedBatch) -> str:
        times = ratio(several.pulls, alone.pulls)
        return (
            f"{place} is {times:.3g} times as large on {self._learner.replicas} replicas as on one: what the replicas "
            "hand to the optimizer is added up, so divide by the global batch; self.compute_loss does"
        )

    def _metrics_that_count_nothing(self, probe: Probe) -> list[str]:
        """Return the metrics whose values a batch without records changes, beside a batch with some."""
        none = np.zeros(self._learner.options.batch_size, np.bool_)
        empty, whole = self._trials.result(probe, none).states, self._trials.result(probe).states
        metrics, wrong, at = self._learner.call.metrics, [], 0
        for name, metric in metrics.metrics.items():
            own = slice(at, at + len(metric.variables))
            alone, beside = whole[own], [a + b for a, b in zip(whole[own], empty[own], strict=True)]
            # What is given one value a batch, as a mean of losses is, has no rows to weigh.
            if name not in metrics.of_batches and not _same_values(_value(metric, alone), _value(metric, beside)):
                wrong.append(name)
            at = own.stop
        return wrong

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


def _joined(parts: Sequence[Pulls]) -> Pulls:
    """Return the pulls of several batches beside each other."""
    return {f"{place} of part {part}": pull for part, pulls in enumerate(parts) for place, pull in pulls.items()}


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the keys whose values differ by more than rounding, the largest difference first."""
    # Most are equal to the bit, which is found in a fraction of the time.
    unequal = [key for key in one if not np.array_equal(one[key], other[key])]
    gaps = {
        key: float(np.max(np.abs(one[key].astype(np.float64) - other[key].astype(np.float64)), initial=0.0))
        for key in unequal
        if not np.allclose(one[key], other[key], rtol=_RELATIVE, atol=_ABSOLUTE)
    }
    return sorted(gaps, key=lambda key: -gaps[key])


def _value(metric: Any, states: Sequence[npt.NDArray[Any]]) -> Any:
    """Return a metric's value for these states."""
    pairs = zip(states, metric.variables, strict=True)
    return metric.stateless_result([tf.constant(state, tf.as_dtype(variable.dtype)) for state, variable in pairs])


def _same_values(one: Any, other: Any) -> bool:
    pairs = zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True)
    return all(np.allclose(a, b, rtol=_RELATIVE, atol=_ABSOLUTE, equal_nan=True) for a, b in pairs)


def _of_present_rows(place: str) -> str:
    return (
        f"{place} is not the sum of what the rows pull by themselves, as if the loss were a mean over present rows: "
        "use the default reduction, sum_over_batch_size, or divide by the number of all rows of the batch; a loss "
        "that compares rows needs training.rows: together"
    )
