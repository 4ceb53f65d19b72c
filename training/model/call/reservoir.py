"""The reservoir: a uniform sample of every row that was learnt, of which each batch is given some again.

Rows are kept at the end of a call, and only where their update was applied. Until the reservoir is full each row is
kept; from then on the row of number n takes the place of another with the chance of size to n, which leaves a uniform
sample of all (Vitter's algorithm R). The chance is drawn by a hash of the row's partition and offset, what a batch is
given by its call's first offset: so a restart keeps and gives the same rows, to the bit.

Owns variables in the host's memory, one for each column, which move in the call with the weights. A checkpoint holds
them. The call runs its graph; all else is for the trainer's thread.
"""

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from millrace.consumers.errors import ConfigError
from millrace.pipelines.shaping.augmentation import folded
from millrace.pipelines.shaping.figures import ReservoirFigures
from millrace.pipelines.shaping.followed_states import packed, unpacked
from millrace.pipelines.stream.blocks import Rows
from millrace.training.checkpoints.parts import Array, PartState
from millrace.training.model.call.witness import mixed

log = logging.getLogger(__name__)
NAME = "reservoir"
_NUMBER, _WEIGHT = "number", "weight"
_ASKED = 10_000
"""The most rows of which the age is found."""
_OWN_SEED = 1
"""Tells what is drawn here from what `augment` draws."""


class Replays(NamedTuple):
    """The rows that are given again; tensors [k, R, …], or [R, …] of one batch."""

    features: Any
    labels: Any
    weights: Any
    numbers: Any
    """Below 0 where there is none."""


class Reservoir:
    """The rows and what is drawn of them. Build it outside of the strategy's scope: there is one for all replicas."""

    name = NAME

    def __init__(self, size: int, beside: int, rows: Rows, seed: int) -> None:
        """Hold at most `size` rows such as these, a block's, and give `beside` of them again with each batch."""
        self.size, self.beside, self._seed = size, beside, seed
        _refuse_too_many(size, rows)
        with tf.device("/CPU:0"):
            self._columns = {
                name: tf.Variable(
                    tf.zeros([size, *column.shape[2:]], column.dtype), trainable=False, name=f"reservoir_{name}"
                )
                for name, column in _named(rows).items()
            }
            self._columns[_NUMBER] = tf.Variable(tf.zeros([size], tf.int64), trainable=False, name=_NUMBER)
            self._counts = tf.Variable(tf.zeros([2], tf.int64), trainable=False, name="reservoir_counts")
            """How many rows are held, and how many were seen."""
        self._kept: list[dict[str, Array]] = []
        """Arrays of released snapshots, to be used again for the next ones."""

    @property
    def variables(self) -> list[Any]:
        """All of its variables."""
        return [*self._columns.values(), self._counts]

    @property
    def nbytes(self) -> int:
        """The memory that its numbers take; texts come on top."""
        return sum(int(np.prod(one.shape)) * one.dtype.size for one in self._columns.values() if one.dtype != tf.string)

    @property
    def holds_texts(self) -> bool:
        """Whether some column is of texts."""
        return any(one.dtype == tf.string for one in self._columns.values())

    def figures(self) -> ReservoirFigures:
        """Return what it holds."""
        held, seen = map(int, self._counts.numpy())
        # Of some thousand rows, as this is asked every second on the trainer's thread.
        some = np.arange(0, held, 1 + held // _ASKED)
        age = seen - int(np.median(self._columns[_NUMBER].sparse_read(some))) if held else 0
        return ReservoirFigures(rows=held, size=self.size, seen=seen, age=age)

    def draw(self, rows: Rows, identities: Any, visit: Any, *, replay: Any) -> Replays:
        """Return what each batch of a call is given again; in a graph. Without `replay` that is nothing."""
        with tf.device("/CPU:0"):
            held = self._counts.read_value()[0]
            batches, size = tf.shape(rows.offsets)[0], rows.offsets.shape[1]
            shape = tf.stack([batches, self.beside])

            def again() -> dict[str, Any]:
                identity = tf.gather(identities, tf.maximum(rows.partitions[0, 0], 0))
                seed = folded(tf.constant([self._seed, _OWN_SEED], tf.int64), identity, rows.offsets[0, 0], visit)
                places = tf.random.stateless_uniform(shape, seed, 0, held, tf.int64)
                return {name: variable.sparse_read(places) for name, variable in self._columns.items()}

            def none() -> dict[str, Any]:
                # Copies of rows that are here, as absent rows are: of zeros some models make infinity.
                places = tf.range(self.beside) % size
                columns = {name: tf.gather(column, places, axis=1) for name, column in _named(rows).items()}
                columns[_WEIGHT] = tf.zeros_like(columns[_WEIGHT])
                return columns | {_NUMBER: tf.fill(shape, tf.constant(-1, tf.int64))}

            drawn = tf.cond(tf.logical_and(replay, held > 0), again, none)
        for name, column in drawn.items():
            column.set_shape([None, self.beside, *self._columns[name].shape[1:]])
        features = {name: drawn[_of_feature(name)] for name in rows.features}
        labels = drawn["label"] if "label" in drawn else {name: drawn[_of_label(name)] for name in rows.labels}
        return Replays(features, labels, drawn[_WEIGHT], drawn[_NUMBER])

    def keep(self, rows: Rows, identities: Any, learnt: Any) -> None:
        """Keep a sample of the rows where `learnt` is true, [k, B]; in a graph, outside of replicas."""
        with tf.device("/CPU:0"):
            learnt = tf.reshape(learnt, [-1])
            counts = self._counts.read_value()
            held, seen = counts[0], counts[1]
            ranks = tf.cumsum(tf.cast(learnt, tf.int64))
            numbers, count = seen + ranks, ranks[-1]
            free = self.size - held
            identity = tf.gather(identities, tf.maximum(tf.reshape(rows.partitions, [-1]), 0))
            drawn = _drawn(tf.bitwise.bitwise_xor(identity, mixed(tf.reshape(rows.offsets, [-1]))), numbers)
            slots = tf.where(ranks <= free, held + ranks - 1, drawn)
            places = tf.where(tf.logical_and(learnt, slots < self.size))[:, 0]
            slots, places = last_of_each(tf.gather(slots, places), places, tf.size(learnt, tf.int64))
            for name, column in (_named(rows) | {_NUMBER: tf.reshape(numbers, tf.shape(rows.offsets))}).items():
                flat = tf.reshape(column, tf.concat([[-1], tf.shape(column)[2:]], 0))
                self._columns[name].scatter_update(tf.IndexedSlices(tf.gather(flat, places), slots))
            self._counts.assign(tf.stack([tf.minimum(held + count, self.size), seen + count]))

    def snapshot(self) -> PartState:
        """Copy the rows; numbers into memory that is kept from one save to the next, texts as their bytes."""
        held, seen = map(int, self._counts.numpy())
        arrays = self._kept.pop() if self._kept else {}
        for name, variable in self._columns.items():
            column = np.asarray(variable.read_value())[:held]  # on a CPU the variable's own memory
            if variable.dtype == tf.string:
                arrays |= packed(name, column)
            elif name in arrays and len(arrays[name]) == held:
                np.copyto(arrays[name], column)
            else:
                arrays[name] = np.array(column)
        facts = {"held": held, "seen": seen, "columns": self._layout()}
        return PartState(arrays=arrays, facts=facts, release=partial(self._kept.append, arrays))

    def restore(self, state: PartState) -> None:
        """Take the rows back; of other columns, or of none, begin anew.

        Of more rows than have room a sample stays. Where there is room for more, what comes first fills it.
        """
        held = seen = 0
        if state.facts and state.facts["columns"] == self._layout():
            before, seen = int(state.facts["held"]), int(state.facts["seen"])
            held = min(before, self.size)
            chosen = np.sort(np.random.default_rng([self._seed, seen]).permutation(before)[:held])
            for name, variable in self._columns.items():
                column = np.zeros(variable.shape, variable.dtype.as_numpy_dtype)
                if variable.dtype == tf.string:
                    column[...] = b""
                column[:held] = unpacked(state.arrays, name, variable.shape[1:])[chosen]
                variable.assign(column)
        else:
            log.warning("reservoir: the checkpoint holds %s rows, so it starts empty", "other" if state.facts else "no")
        self._counts.assign([held, seen])

    def _layout(self) -> dict[str, Any]:
        return {name: [one.dtype.name, *one.shape[1:]] for name, one in self._columns.items()}


def beside(column: Any, replays: Any) -> Any:
    """Return a replica's rows with those that are given again behind them, column by column."""
    return tf.nest.map_structure(lambda mine, again: tf.concat([mine, again], 0), column, replays)


def _named(rows: Rows) -> dict[str, Any]:
    """Return the columns of rows that are kept, by name."""
    labels = rows.labels
    named = {_of_label(name): one for name, one in labels.items()} if isinstance(labels, Mapping) else {"label": labels}
    return {_of_feature(name): one for name, one in rows.features.items()} | named | {_WEIGHT: rows.weights}


def _refuse_too_many(size: int, rows: Rows) -> None:
    """Raise ConfigError where so many rows cannot be in memory, even before their texts."""
    columns = _named(rows).values()
    each = 8 + sum(int(np.prod(one.shape[2:])) * one.dtype.size for one in columns if one.dtype != tf.string)
    there = usable_memory()
    if size * each > there:
        raise ConfigError(
            f"reservoir.size: {size:,} rows take {size * each / 1e9:,.1f} GB, and this process may use "
            f"{there / 1e9:,.1f} GB; make it smaller"
        )


def _of_feature(name: str) -> str:
    return f"feature.{name}"


def _of_label(name: str) -> str:
    return f"label.{name}"


def _drawn(hashes: Any, numbers: Any) -> Any:
    """Return a place below each number, evenly drawn by its hash."""
    unsigned = tf.bitwise.right_shift(tf.bitcast(mixed(hashes), tf.uint64), tf.constant(11, tf.uint64))
    # 53 bits are as many as a float64 holds.
    uniform = tf.cast(tf.bitcast(unsigned, tf.int64), tf.float64) * 2.0**-53
    return tf.cast(tf.floor(uniform * tf.cast(numbers, tf.float64)), tf.int64)


def last_of_each(slots: Any, places: Any, most: Any) -> tuple[Any, Any]:
    """Return the slots without repetition, each with the last of its places; `most` is above every place."""
    keys = tf.sort(slots * most + places)
    sorted_slots = keys // most
    is_last = tf.concat([sorted_slots[1:] != sorted_slots[:-1], tf.ones_like(sorted_slots[:1], tf.bool)], 0)
    keys = tf.boolean_mask(keys, is_last)
    return keys // most, keys % most


def usable_memory() -> int:
    """Return the bytes that this process may use: the machine's, or its cgroup's limit, as of a pod."""
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(there, memory_limit(Path("/sys/fs/cgroup")) or there)


def memory_limit(cgroups: Path) -> int | None:
    """Return the limit that cgroups set (v2, or v1); None where they set none."""
    for file in (cgroups / "memory.max", cgroups / "memory" / "memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            return int(file.read_text())
    return None
