"""The recent rows: the last ones that were learnt, of which the later passes of each batch draw theirs.

A batch enters the ring before its later passes, so that these draw from it too, and stays there only if its update was
applied; absent rows never do. Which rows a pass draws is a hash of the seed, of the partition and the first offset of
the batch and of the pass: so nothing random is state, and a restart draws the same rows, to the bit.

The ring has room for a batch more than it holds. A batch is written there, over rows that are too old already, and
counted once it was applied; so a batch that was not leaves no trace.

Owns variables in the host's memory, one for each column, which move in the call with the weights. A checkpoint holds
the rows. The call runs its graph; all else is for the trainer's thread.
"""

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from millrace.pipelines.shaping.followed_states import packed
from millrace.pipelines.stream.blocks import Rows
from millrace.pipelines.stream.offset_mix import mix
from millrace.training.checkpoints.parts import Array, PartState
from millrace.training.model.call.held_rows import (
    WEIGHT,
    bytes_of_numbers,
    columns_of,
    empty,
    layout,
    named,
    places_for,
    refuse_too_many,
    uniform,
    unnamed,
)
from millrace.training.model.call.witness import mixed

log = logging.getLogger(__name__)
NAME = "recent"
_OWN_SEED = 2
"""Tells what is drawn here from what `augment` and the reservoir draw."""


class RecentDraws(NamedTuple):
    """By what the later passes of a batch draw; tensors, of a call [k, …], or of one batch."""

    uniforms: Any
    """By pass and row, from 0 to below 1, float64."""
    ranks: Any
    """The place of each row among those of the batch; absent ones, which are copies, come last."""
    here: Any
    """How many rows are present."""
    live: Any
    """Whether they draw at all; otherwise they repeat the batch."""


class Entered(NamedTuple):
    """What the later passes of a batch take, [passes - 1, B]; those of a mixture's members one after another."""

    places: Any
    small: Mapping[str, Any]
    """The columns of one value a row, which are got for all passes at once."""
    here: Any


class RecentRows:
    """The ring. Build it outside of the strategy's scope: there is one for all replicas."""

    name = NAME

    def __init__(self, size: int, passes: int, rows: Rows, seed: int, members: int = 1) -> None:
        """Hold the last `size` rows such as these, a block's, for calls of so many passes; each member has its own."""
        self.size, self._batch = size, int(rows.offsets.shape[1])
        self._places = size + self._batch
        refuse_too_many("training.memory", self._places, rows)
        self._columns = places_for(self._places, rows, NAME)
        with tf.device("/CPU:0"):
            self._count = tf.Variable(0, dtype=tf.int64, trainable=False, name="recent_count")
            """How many rows were learnt. Row number n lies at n modulo the number of places."""
        [self._salt] = mix(np.array([seed * 256 + _OWN_SEED], np.int64)).tolist()
        self._small = [name for name, one in self._columns.items() if one.shape.rank == 1]
        self._later = passes - 1
        self._draws = np.arange(members * self._later * self._batch, dtype=np.int64).reshape(-1, self._batch)

    @property
    def variables(self) -> list[Any]:
        """All of its variables."""
        return [*self._columns.values(), self._count]

    @property
    def nbytes(self) -> int:
        """The memory that its numbers take; texts come on top."""
        return bytes_of_numbers(self._columns)

    # In a graph, outside of replicas.

    def draws(self, rows: Rows, identities: Any, visit: Any, *, replay: Any) -> RecentDraws:
        """Return by what the batches of a call draw: if `replay`, and rows are not learnt as they came.

        For all batches at once: batch by batch, the same would be some forty small operations in each.
        """
        with tf.device("/CPU:0"):
            identity = tf.gather(identities, tf.maximum(rows.partitions[:, 0], 0))
            hashes = mixed(tf.bitwise.bitwise_xor(identity, mixed(rows.offsets[:, 0])))
            hashes = tf.bitwise.bitwise_xor(hashes, tf.constant(self._salt, tf.int64))
            hashes = mixed(tf.bitwise.bitwise_xor(hashes, mixed(tf.cast(visit, tf.int64))))
            uniforms = uniform(hashes[:, tf.newaxis, tf.newaxis] + tf.constant(self._draws))
            present = tf.cast(rows.offsets >= 0, tf.int64)
            here = tf.reduce_sum(present, axis=1)
            last = here[:, tf.newaxis] + tf.cumsum(1 - present, axis=1)
            ranks = tf.where(present > 0, tf.cumsum(present, axis=1), last) - 1
        return RecentDraws(uniforms, ranks, here, tf.logical_and(replay, visit >= 0))

    def enter(self, rows: Rows, draws: RecentDraws, young: Any = None) -> Entered:
        """Write a batch, [B, …], behind the rows that are held; return what its later passes take.

        `young` says for each member of a mixture how many of the last rows it draws from; None takes all that are held.
        """
        with tf.device("/CPU:0"):
            count = self._count.read_value()
            own = (count + draws.ranks) % self._places
            for name, column in named(rows).items():
                self._columns[name].scatter_update(tf.IndexedSlices(column, own))
            total = count + draws.here
            held = tf.minimum(total, self.size)
            if young is not None:
                held = tf.repeat(tf.minimum(held, young), self._later)[:, tf.newaxis]
            held = tf.maximum(held, 1)
            numbers = tf.cast(draws.uniforms * tf.cast(held, tf.float64), tf.int64) + tf.maximum(total - held, 0)
            places = tf.where(draws.live, numbers % self._places, own)
            small = {name: self._columns[name].sparse_read(places) for name in self._small}
            # If the batch has no row there, an absent one.
            small[WEIGHT] = tf.where(rows.offsets >= 0, small[WEIGHT], 0)
        return Entered(places, small, draws.here)

    def take(self, entered: Entered, again: Any, rows: Rows, member: int = 0) -> Rows:
        """Return the rows of pass number `again`, from 0, in place of a batch's."""
        again += member * self._later
        with tf.device("/CPU:0"):
            columns = {name: tf.gather(column, again) for name, column in entered.small.items()}
            places = tf.gather(entered.places, again)
            columns |= {
                name: variable.sparse_read(places) for name, variable in self._columns.items() if name not in columns
            }
        features, labels, weights = unnamed(columns, rows)
        return rows._replace(features=features, labels=labels, weights=weights)

    def keep(self, entered: Entered, learnt: Any) -> None:
        """Keep the rows that have entered last, if `learnt`."""
        with tf.device("/CPU:0"):
            self._count.assign_add(tf.where(learnt, entered.here, 0))

    # The part of a checkpoint.

    def snapshot(self) -> PartState:
        """Copy the rows, the oldest first; texts as their bytes."""
        count = int(self._count.numpy())
        places = np.arange(max(0, count - self.size), count) % self._places
        arrays = dict[str, Array]()
        for name, variable in self._columns.items():
            arrays |= packed(name, np.array(variable.sparse_read(places)))
        return PartState(arrays=arrays, facts={"columns": layout(self._columns)})

    def restore(self, state: PartState) -> None:
        """Take the rows back: of more than have room the last ones, of other columns or of none no row at all."""
        fits = bool(state.facts) and state.facts["columns"] == layout(self._columns)
        if not fits:
            log.warning(
                "training.memory: the checkpoint holds %s rows, so it is filled by the next %d records",
                "other" if state.facts else "no",
                self.size,
            )
        columns = columns_of(state) if fits else {}
        held = min(len(columns[WEIGHT]), self.size) if fits else 0
        for name, variable in self._columns.items():
            column = empty(variable)
            if held:
                column[:held] = columns[name][-held:]
            variable.assign(column)
        self._count.assign(held)
