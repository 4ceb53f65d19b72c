"""Blocks of the size that a group's call has: filled up with absent rows, or made of them alone.

Absent rows are copies of present ones with weight 0 and offset -1, since BatchNormalization sees them too. A member
without a block takes those of its last block that was not full, which is the last one before its records ran out, or of
a probe. A full block goes as it is, at no cost; the rest is compiled, as one by one the operations take 3 to 10 ms.
"""

from dataclasses import replace
from typing import Any

import tensorflow as tf

from millrace.pipelines.stream.blocks import BlockFacts, Delivery, Rows
from millrace.training.model.call.culprit_search import absent


class Filling:
    """Fills the blocks of one member up; keeps one batch to copy."""

    def __init__(self, probe: Rows) -> None:
        """`probe` is a block of one batch."""
        self._spare = absent(probe)
        self._batch_size = int(probe.weights.shape[1])
        self._last = tf.function(_last_absent, autograph=False, reduce_retracing=True)
        self._fill = tf.function(_filled, autograph=False, reduce_retracing=True)
        self._repeat = tf.function(_repeated, autograph=False, reduce_retracing=True)

    def filled(self, delivery: Delivery | None, batches: int, empty: BlockFacts) -> Delivery:
        """Return the block with so many batches; without one, a block of absent rows alone with the facts `empty`."""
        if delivery is None or not delivery.facts.batches:
            facts = empty if delivery is None else delivery.facts
            return Delivery(self._repeat(self._spare, tf.constant(batches)), replace(facts, batches=batches))
        rows, have = delivery.rows, delivery.facts.batches
        if delivery.facts.rows < batches * self._batch_size:
            self._spare = self._last(rows)
        if have < batches:
            rows = self._fill(rows, self._spare, tf.constant(batches - have))
        return replace(delivery, rows=rows, facts=replace(delivery.facts, batches=batches))


def _last_absent(rows: Rows) -> Rows:
    """Return the last batch with all its rows absent."""
    last: Rows = tf.nest.map_structure(lambda column: column[-1:], rows)
    return absent(last)


def _filled(rows: Rows, spare: Rows, more: Any) -> Rows:
    """Return the rows with so many spare batches behind them."""
    filled: Rows = tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), rows, _repeated(spare, more))
    return filled


def _repeated(spare: Rows, batches: Any) -> Rows:
    repeated: Rows = tf.nest.map_structure(lambda column: tf.repeat(column, batches, axis=0), spare)
    return repeated
