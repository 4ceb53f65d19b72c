"""Blocks of the size that a group's call has: filled up with absent rows, or made of them alone.

Absent rows are copies of present ones with weight 0 and offset -1, since BatchNormalization sees them too. A member
that has had no block yet takes a probe for it.
"""

from dataclasses import replace

import tensorflow as tf

from pipelines.blocks import BlockFacts, Delivery, Rows
from training.model.compiled_call import batch_of
from training.model.culprit_search import absent


class Filling:
    """Fills the blocks of one member up; keeps one batch to copy."""

    def __init__(self, probe: Rows) -> None:
        """`probe` is a block of one batch."""
        self._spare = absent(probe)

    def filled(self, delivery: Delivery | None, batches: int, empty: BlockFacts) -> Delivery:
        """Return the block with so many batches; without one, a block of absent rows alone with the facts `empty`."""
        if delivery is None or not delivery.facts.batches:
            facts = empty if delivery is None else delivery.facts
            return Delivery(self._spares(batches), replace(facts, batches=batches))
        rows, have = delivery.rows, delivery.facts.batches
        self._spare = absent(batch_of(rows, have - 1))
        if have < batches:
            spares = self._spares(batches - have)
            rows = tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), rows, spares)
        return replace(delivery, rows=rows, facts=replace(delivery.facts, batches=batches))

    def _spares(self, batches: int) -> Rows:
        spares: Rows = tf.nest.map_structure(lambda column: tf.repeat(column, batches, axis=0), self._spare)
        return spares
