"""The witness: which offsets the weights have really seen, counted inside the compiled call.

By partition it holds the checksums of `training/ledger/offset_checksum.py`. It is computed once from the block, moves
in the same call as the weights, is saved with them, and is independent of the ledger: every save compares the two.

Owns a mirrored int64 variable (never one that is summed on read: on two replicas such a variable assigned 7 reads 6).
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from millrace.consumers.errors import ConfigError
from millrace.consumers.records import Partition
from millrace.pipelines.stream.offset_mix import GOLDEN, MIX_1, MIX_2
from millrace.training.checkpoints.parts import PartState
from millrace.training.ledger.offset_checksum import Evidence
from millrace.training.model.variables import assign, copies, read

CAPACITY = 4096
"""Partitions that one trainer can hold; the variable is 96 kB."""
_COLUMNS = 3


def mixed(offsets: Any) -> Any:
    """Compute SplitMix64 in the graph; multiplication wraps in the same way, signed or not."""

    def shifted(z: Any, by: int) -> Any:
        # SplitMix64 shifts in zeros; on int64 a shift would copy the sign.
        unsigned = tf.bitcast(z, tf.uint64)
        return tf.bitcast(tf.bitwise.right_shift(unsigned, tf.constant(by, tf.uint64)), tf.int64)

    def signed(number: int) -> Any:
        return tf.constant(np.uint64(number).astype(np.int64))

    z = offsets + signed(GOLDEN)
    z = tf.bitwise.bitwise_xor(z, shifted(z, 30)) * signed(MIX_1)
    z = tf.bitwise.bitwise_xor(z, shifted(z, 27)) * signed(MIX_2)
    return tf.bitwise.bitwise_xor(z, shifted(z, 31))


class Witness:
    """The variable and its part of a checkpoint. Build it inside the strategy's scope."""

    name = "witness"

    def __init__(self) -> None:
        self.variable = tf.Variable(
            np.zeros((CAPACITY, _COLUMNS), np.int64),
            trainable=False,
            name="witness",
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
        self._index: dict[Partition, int] = {}
        self.identities = tf.Variable(
            np.arange(CAPACITY),
            dtype=tf.int64,
            trainable=False,
            name="identities",
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
        """A number for the partition in each row of the table, made of its name: the same one wherever the row lies."""

    def add(self, offsets: Any, partitions: Any, learnt: Any) -> None:
        """Add a block's offsets where `learnt` is true, all of shape [k, B]; runs in the graph."""
        with tf.device("/CPU:0"):
            seen = tf.boolean_mask(offsets, learnt)
            rows = tf.stack([tf.ones_like(seen), seen, mixed(seen)], axis=1)
            delta = tf.math.unsorted_segment_sum(rows, tf.boolean_mask(partitions, learnt), CAPACITY)
        self.variable.assign_add(delta)

    def identity(self) -> Any:
        """Return the number of each row's partition, one copy for all replicas; runs in the graph."""
        return copies(self.identities)[0].read_value()

    def know(self, partition: Partition, index: int) -> None:
        """Bind a row of the table to a partition, as a block's spans number them."""
        if index >= CAPACITY:
            raise ConfigError(
                f"kafka.topics: partition {partition} is number {index + 1}; one trainer holds {CAPACITY}: split topics"
            )
        if self._index.get(partition) != index:
            self._index[partition] = index
            identity = int.from_bytes(hashlib.sha256(str(partition).encode()).digest()[:8], "big", signed=True)
            for copy in copies(self.identities):
                copy.scatter_nd_update([[index]], [identity])

    def testimonies(self) -> dict[Partition, Evidence]:
        """Return the checksums of each partition's offsets so far."""
        table = np.asarray(read(self.variable).numpy())
        return {partition: Evidence(*map(int, table[index])) for partition, index in self._index.items()}

    def counts(self) -> Mapping[Partition, int]:
        """Return the number of offsets that the weights have seen, by partition."""
        return {partition: testimony.count for partition, testimony in self.testimonies().items()}

    def snapshot(self) -> PartState:
        """Copy the rows in use, a few bytes a partition."""
        facts = {str(p): [t.count, t.total, t.mixed] for p, t in self.testimonies().items()}
        return PartState(arrays={}, facts=facts)

    def restore(self, state: PartState) -> None:
        """Restore the rows of a checkpoint."""
        self._write({Partition.parse(text): Evidence(*row) for text, row in state.facts.items()})

    def lay(self, partitions: Iterable[Partition]) -> None:
        """Order the rows as a new incarnation's blocks will name them: these partitions, sorted."""
        known = self.testimonies()
        self._write({partition: known.get(partition, Evidence(0, 0, 0)) for partition in partitions})

    def _write(self, testimonies: Mapping[Partition, Evidence]) -> None:
        self._index = {}
        table: npt.NDArray[np.int64] = np.zeros((CAPACITY, _COLUMNS), np.int64)
        for index, partition in enumerate(sorted(testimonies)):
            self.know(partition, index)
            testimony = testimonies[partition]
            table[index] = testimony.count, testimony.total, testimony.mixed
        assign(self.variable, table)
