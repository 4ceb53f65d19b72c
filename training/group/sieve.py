"""The sieve: finds the culprits of a suspect block on a model of this member alone, before the call of all.

In a group nothing may be tried on the group's own model: all members make each of its calls, and after one that raises
no collective of the process works any more. So the block is tried on a copy of the model, with the present weights.
What can be learnt of it goes into the call of all, in as many batches as the search has made of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import tensorflow as tf

from millrace.pipelines.stream.blocks import Delivery
from millrace.training.model.learner import Learner
from millrace.training.model.variables import assign, read
from millrace.training.recovery.isolation import Culprit
from millrace.training.recovery.step_errors import StepRecovery


@dataclass(frozen=True, slots=True)
class Sieved:
    """A block whose culprits are known."""

    delivery: Delivery
    """Without them; of no batch where nothing is left."""
    culprits: Sequence[Culprit] | None
    """None where the block was not suspect."""


class Sieve:
    """Tries suspect blocks; the copy of the model is built for the first of them."""

    def __init__(self, learner: Learner, steps: StepRecovery) -> None:
        self._learner, self._steps = learner, steps
        self._copy: Learner | None = None

    def sieved(self, delivery: Delivery) -> Sieved:
        """Return the block as it is, or without its culprits where it is suspect."""
        learnt = self._steps.sieved(delivery, self._present)
        if learnt is None:
            return Sieved(delivery, None)
        pieces = [piece.rows for piece in learnt.pieces]
        batches = sum(int(rows.weights.shape[0]) for rows in pieces)
        rows = tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), *pieces) if pieces else delivery.rows
        facts = replace(delivery.facts, batches=batches)
        return Sieved(Delivery(rows, facts), learnt.isolated)

    def _present(self) -> Learner:
        """Return the copy with the present weights."""
        if self._copy is None:
            self._copy = self._learner.alone(self._learner.options.batch_size)
            self._copy.trace(self._copy.rows_of(self._copy.probe()), deterministic=False)
        for mine, theirs in zip(self._copy.state, self._learner.state, strict=True):
            assign(mine, read(theirs).numpy())
        return self._copy
