"""The balance of classes: how often each was seen, a part of every checkpoint, and how the model's output is corrected.

Owns the counts, a mirrored variable. It moves in the call with the weights, batch by batch, and only where a batch was
applied; a checkpoint holds it to the bit, so a restart continues with the same weights of classes.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from millrace.pipelines.shaping import BalanceSettings
from millrace.pipelines.shaping.balance.class_weights import Output, correctable, corrected, decay, one_hot, weights_of
from millrace.pipelines.shaping.figures import ClassFigures
from millrace.pipelines.shaping.options import LABEL
from millrace.training.checkpoints.parts import PartState
from millrace.training.model.call.replica_sums import summed_by_workers
from millrace.training.model.setup.keras_internals import arguments_of, last_operation
from millrace.training.model.variables import assign, copies, read

NAME = "shaping"


class BalancePlan(NamedTuple):
    """What the batches of a call are balanced by; tensors."""

    factors: Any
    """By what the weight of each row is multiplied, [k, B]."""
    class_weights: Any
    """Of each batch, [k, classes]."""
    seen: Any
    """How many rows that are present are of each class, [k, classes], float64."""


class ClassBalance:
    """The counts and what follows from them. Build it inside the strategy's scope."""

    name = NAME

    def __init__(self, options: BalanceSettings, model: Any) -> None:
        self.options = options
        self.output = output_of(model, options)
        """What the model's output is, if what is scored can be corrected; else None."""
        self.counts = tf.Variable(
            np.zeros(len(options.classes)),
            dtype=tf.float64,
            trainable=False,
            name="class_counts",
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )

    def weights(self) -> Any:
        """Return the weight of each class, float32, as the counts stand."""
        return weights_of(self._counts(), self.options)

    def plan(self, rows: tuple[Any, Any, Any, Any], strategy: Any, *, live: Any) -> "BalancePlan":
        """Return what the batches of a call are balanced by: features, labels, weights, offsets [k, B, …]; in a graph.

        Each batch is weighed by the counts of those before it. For all batches at once: batch by batch, the same would
        be some thirty small operations in each step. Where not `live`, all weights are 1.
        """
        features, labels, weights, offsets = rows
        batches, size = tf.shape(offsets)[0], offsets.shape[1]
        x, y = tf.nest.map_structure(lambda one: tf.reshape(one, [-1, *one.shape[2:]]), (features, labels))
        classes = tf.reshape(one_hot(x, y, self.options), [batches, size, len(self.options.classes)])
        # Where records are left out, those that are kept stand for them by their weight; absent rows have none.
        counted = weights if self.options.how == "resample" else tf.cast(offsets >= 0, tf.float32)
        seen = summed_by_workers(strategy, tf.linalg.matvec(classes, counted, transpose_a=True))
        seen = tf.cast(seen, tf.float64)
        upto = tf.cumsum(tf.reduce_sum(seen, axis=1))
        before = upto - tf.reduce_sum(seen, axis=1)
        earlier = tf.linalg.band_part(tf.ones([batches, batches], tf.float64), -1, 0) - tf.eye(
            batches, dtype=tf.float64
        )
        # What comes later is left out before its decay, which would be a growth.
        decays = decay((before[:, None] - upto[None]) * earlier, self.options) * earlier
        counts = self._counts() * decay(before, self.options)[:, None] + tf.linalg.matmul(decays, seen)
        class_weights = weights_of(counts, self.options)
        class_weights = tf.where(live, class_weights, tf.ones_like(class_weights))
        factors = 1.0 + tf.linalg.matvec(classes, class_weights - 1.0)
        return BalancePlan(factors, class_weights, tf.where(live, seen, tf.zeros_like(seen)))

    def factors(self, features: Any, labels: Any, plan: "BalancePlan") -> Any:
        """Return by what the weights of other rows are multiplied, [k, R], that go with the batches of a plan."""
        x, y = tf.nest.map_structure(lambda one: tf.reshape(one, [-1, *one.shape[2:]]), (features, labels))
        shape = tf.shape(plan.class_weights)
        classes = tf.reshape(one_hot(x, y, self.options), [shape[0], -1, shape[1]])
        return 1.0 + tf.linalg.matvec(classes, plan.class_weights - 1.0)

    def count(self, plan: "BalancePlan", applied: Any) -> None:
        """Count the rows of the batches that were applied; in a graph, outside of replicas."""
        counted = plan.seen * tf.cast(applied, tf.float64)[:, None]
        upto = tf.cumsum(tf.reduce_sum(counted, axis=1))
        after = self._counts() * decay(upto[-1], self.options)
        after += tf.reduce_sum(counted * decay(upto[-1] - upto, self.options)[:, None], axis=0)
        for copy in copies(self.counts):
            copy.assign(after)

    def _counts(self) -> Any:
        return copies(self.counts)[0].read_value()

    def corrected(self, predicted: Any, weights: Any) -> Any:
        """Return the output as it would be without the weights; in a graph."""
        return predicted if self.output is None else corrected(predicted, weights, self.output)

    def figures(self) -> dict[str, ClassFigures]:
        """Return how the classes are balanced just now, by class: shares by the decayed counts, 0 before the first."""
        counts, weights = np.asarray(read(self.counts)), np.asarray(self.weights(), np.float64)
        before = counts / max(counts.sum(), 1.0)
        after = before * weights / max(float((before * weights).sum()), 1e-300)
        shares = map(ClassFigures, before.tolist(), weights.tolist(), after.tolist())
        return dict(zip(self.options.classes, shares, strict=True))

    def snapshot(self) -> PartState:
        """Copy the counts, by class; JSON holds a float64 to the bit."""
        return PartState(facts={"counts": dict(zip(self.options.classes, map(float, read(self.counts)), strict=True))})

    def restore(self, state: PartState) -> None:
        """Take the counts back; a class that the checkpoint does not know, or a checkpoint without any, begins at 0."""
        known: Mapping[str, float] = state.facts.get("counts", {})
        assign(self.counts, np.array([float(known.get(one, 0.0)) for one in self.options.classes]))


def correct_last_layer(model: Any, options: BalanceSettings, state: PartState) -> bool:
    """Have a model that learnt with these counts predict the stream as it is, by its last bias; False where it cannot.

    For a model that is taken out. The one that learns keeps its bias, as its next updates are weighed again.
    """
    output = output_of(model, options)
    if output is None:
        return False
    layer = last_operation(model)
    linear, sigmoid, softmax = keras.activations.linear, keras.activations.sigmoid, keras.activations.softmax
    wanted = {Output.PROBABILITY: sigmoid, Output.PROBABILITIES: softmax, Output.LOGIT: linear, Output.LOGITS: linear}
    if not isinstance(layer, keras.layers.Dense) or layer.bias is None or layer.activation is not wanted[output]:
        return False
    known: Mapping[str, float] = state.facts.get("counts", {})
    counts = tf.constant([float(known.get(one, 0.0)) for one in options.classes], tf.float64)
    moved = np.log(np.asarray(weights_of(counts, options)))
    layer.bias.assign(np.asarray(layer.bias) - (moved[1:] - moved[:1] if layer.units == 1 else moved))
    return True


def output_of(model: Any, options: BalanceSettings) -> Output | None:
    """Return what the model's output is to its loss; None where no correction of it is known."""
    loss, outputs = model.loss, getattr(model, "outputs", None)
    if options.by != LABEL or not isinstance(loss, str | keras.losses.Loss) or not outputs or len(outputs) != 1:
        return None
    loss = keras.losses.get(loss)
    # As a string Keras gives the function, as an object what wraps it.
    named = getattr(loss, "fn", loss)
    logits = bool(arguments_of(loss).get("from_logits", False))
    columns = outputs[0].shape[-1] if len(outputs[0].shape) == 2 else 1
    if len(outputs[0].shape) > 2 or not correctable(options.classes, columns):
        return None
    if named is keras.losses.binary_crossentropy and columns == 1:
        return Output.LOGIT if logits else Output.PROBABILITY
    if named in {keras.losses.categorical_crossentropy, keras.losses.sparse_categorical_crossentropy}:
        return Output.LOGITS if logits else Output.PROBABILITIES
    return None
