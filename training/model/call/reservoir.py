"""The reservoir: a uniform sample of every row that was learnt, of which each batch is given some again.

Rows are kept at the end of a call, and only where their update was applied. Until the reservoir is full each row is
kept; from then on the row of number n takes the place of another with the chance of size to n, which leaves a uniform
sample of all (Vitter's algorithm R). The chance is drawn by a hash of the row's partition and offset, what a batch is
given by its call's first offset: so a restart keeps and gives the same rows, to the bit. Of classes each has as many
places as any other, and a sample of its own.

Each member of a group keeps a share of the places, for rows that it has learnt itself. What a checkpoint holds is a
list of shares, one by member: as many members take up where these have ended, another number deals the rows anew.

Owns variables in the host's memory, one for each column, which move in the call with the weights. A checkpoint holds
them. The call runs its graph; all else is for the trainer's thread.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import tensorflow as tf

from millrace.consumers.errors import ConfigError
from millrace.pipelines.schema import Schema
from millrace.pipelines.shaping import ReservoirSettings
from millrace.pipelines.shaping.augmentation import folded
from millrace.pipelines.shaping.figures import ReservoirFigures
from millrace.pipelines.shaping.followed_states import packed
from millrace.pipelines.stream.blocks import Rows
from millrace.pipelines.stream.label_masks import masks_of
from millrace.training.checkpoints.parts import Array, PartState
from millrace.training.model.call.held_rows import (
    OF_LABEL,
    WEIGHT,
    bytes_of_numbers,
    columns_of,
    drawn,
    empty,
    layout,
    named,
    places_for,
    refuse_too_many,
    unnamed,
)
from millrace.training.model.call.witness import mixed

log = logging.getLogger(__name__)
NAME = "reservoir"
_NUMBER, _SHARES = "number", "shares"
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


class Classes:
    """The classes of rows, by their label; in a graph, or not."""

    def __init__(self, label: str, values: Sequence[float]) -> None:
        """`label` is the name of the label, of several; `values` are those that it has, in ascending sequence."""
        self._label, self.values = label, tuple(values)

    def of(self, rows: Rows) -> Any:
        """Return the number of each row's class, [k B], below 0 for a row of none; raise ConfigError for other labels.

        These are a number a row, or one-hot.
        """
        labels = rows.labels
        if isinstance(labels, Mapping) and self._label not in labels:
            raise ConfigError(f"reservoir.by: preprocess gives no label {self._label!r}; it gives {', '.join(labels)}")
        label = labels[self._label] if isinstance(labels, Mapping) else labels
        shape = [one for one in label.shape[2:] if one != 1]
        if label.dtype == tf.string or shape not in ([], [len(self.values)]):
            raise ConfigError(
                f"reservoir.by: a label of {label.dtype.name} and the shape {[*label.shape[2:]]} is no class of "
                f"{len(self.values)}; preprocess gives one number a row, or one for each class"
            )
        numbers = self._numbers(tf.reshape(label, [-1, *shape]))
        mask = masks_of(labels).get(self._label)
        return numbers if mask is None else tf.where(tf.reshape(mask, [-1]), numbers, -1)

    def numbers(self, labels: Any) -> Array:
        """Return the same for rows that are held."""
        label = labels[self._label] if isinstance(labels, Mapping) else labels
        shape = [one for one in label.shape[1:] if one != 1]
        numbers: Array = self._numbers(tf.reshape(label, [-1, *shape])).numpy()
        mask = masks_of(labels).get(self._label)
        return numbers if mask is None else np.where(mask, numbers, -1)

    def _numbers(self, label: Any) -> Any:
        if label.shape.rank == 2:
            return tf.argmax(label, 1)
        label, values = tf.cast(label, tf.float64), tf.constant(self.values, tf.float64)
        at = tf.minimum(tf.searchsorted(values, label, out_type=tf.int64), len(self.values) - 1)
        return tf.where(tf.gather(values, at) == label, at, -1)


class Reservoir:
    """The rows and what is drawn of them. Build it outside of the strategy's scope: there is one for all replicas."""

    name = NAME

    def __init__(
        self, size: int, beside: int, rows: Rows, seed: int, *, classes: Classes | None = None, members: int = 1
    ) -> None:
        """Hold at most `size` rows such as these, a block's, and give `beside` of them again with each batch.

        Each of the classes has an equal share of the places; None for one of all rows. `members` is the number of
        those in the group that remember as much, each of its own rows.
        """
        self.size, self.beside, self._seed = size, beside, seed
        self._classes, self._members = classes, members
        refuse_too_many("reservoir.size", size, rows)
        several = 1 if classes is None else len(classes.values)
        self._places = size // several
        """Of each class."""
        if not self._places:
            raise ConfigError(f"reservoir.size: it gives each worker {size} rows for {several} classes; make it larger")
        with tf.device("/CPU:0"):
            self._columns = places_for(size, rows, "reservoir")
            self._columns[_NUMBER] = tf.Variable(tf.zeros([size], tf.int64), trainable=False, name=_NUMBER)
            self._counts = tf.Variable(tf.zeros([2, several], tf.int64), trainable=False, name="reservoir_counts")
            """How many rows of each class are held, and how many were seen."""
        self._kept: list[dict[str, Array]] = []
        """Arrays of released snapshots, to be used again for the next ones."""
        self._whole: PartState | None = None
        """In a group, at the chief: the shares of all members, until each has its own."""
        if classes is not None:
            classes.of(rows)  # what has no class is refused at the start

    @classmethod
    def of(cls, settings: ReservoirSettings, schema: Schema, beside: int, rows: Rows, seed: int, members: int) -> Self:
        """Make one by the settings, for one of the members of a group, or for the only one."""
        assert settings.size is not None
        named = settings.classes_of(schema)
        classes = None if named is None else Classes(*named)
        return cls(settings.size // members, beside, rows, seed, classes=classes, members=members)

    @property
    def variables(self) -> list[Any]:
        """All of its variables."""
        return [*self._columns.values(), self._counts]

    @property
    def nbytes(self) -> int:
        """The memory that its numbers take; texts come on top."""
        return bytes_of_numbers(self._columns)

    @property
    def holds_texts(self) -> bool:
        """Whether some column is of texts."""
        return any(one.dtype == tf.string for one in self._columns.values())

    def figures(self) -> ReservoirFigures:
        """Return what it holds."""
        each, seen = self._counts.numpy()
        held, seen = int(each.sum()), int(seen.sum())
        # Of some thousand rows, as this is asked every second on the trainer's thread.
        some = self._slots(np.arange(0, held, 1 + held // _ASKED), each)
        age = seen - int(np.median(self._columns[_NUMBER].sparse_read(some))) if held else 0
        return ReservoirFigures(rows=held, size=self.size, seen=seen, age=age)

    def draw(self, rows: Rows, identities: Any, visit: Any, *, replay: Any) -> Replays:
        """Return what each batch of a call is given again; in a graph. Without `replay` that is nothing."""
        with tf.device("/CPU:0"):
            each = self._counts.read_value()[0]
            held = tf.reduce_sum(each)
            batches, size = tf.shape(rows.offsets)[0], rows.offsets.shape[1]
            shape = tf.stack([batches, self.beside])

            def again() -> dict[str, Any]:
                identity = tf.gather(identities, tf.maximum(rows.partitions[0, 0], 0))
                seed = folded(tf.constant([self._seed, _OWN_SEED], tf.int64), identity, rows.offsets[0, 0], visit)
                places = self._slots(tf.random.stateless_uniform(shape, seed, 0, held, tf.int64), each)
                return {name: variable.sparse_read(places) for name, variable in self._columns.items()}

            def none() -> dict[str, Any]:
                # Copies of rows that are here, as absent rows are: of zeros some models make infinity.
                places = tf.range(self.beside) % size
                columns = {name: tf.gather(column, places, axis=1) for name, column in named(rows).items()}
                columns[WEIGHT] = tf.zeros_like(columns[WEIGHT])
                return columns | {_NUMBER: tf.fill(shape, tf.constant(-1, tf.int64))}

            # Beside rows that are new: a member of a group that has none gives none again.
            given = tf.cond(replay & (held > 0) & (rows.offsets[0, 0] >= 0), again, none)
        for name, column in given.items():
            column.set_shape([None, self.beside, *self._columns[name].shape[1:]])
        return Replays(*unnamed(given, rows), given[_NUMBER])

    def keep(self, rows: Rows, identities: Any, learnt: Any) -> None:
        """Keep a sample of the rows where `learnt` is true, [k, B]; in a graph, outside of replicas."""
        with tf.device("/CPU:0"):
            learnt = tf.reshape(learnt, [-1])
            of_class = tf.zeros_like(learnt, tf.int64)
            if self._classes is not None:
                of_class = self._classes.of(rows)
                learnt = tf.logical_and(learnt, of_class >= 0)
                of_class = tf.maximum(of_class, 0)
            counts = self._counts.read_value()
            held, seen = counts[0], counts[1]
            ranks, count = _ranked(learnt, of_class, self._counts.shape[1])
            of_all = tf.reduce_sum(seen) + tf.cumsum(tf.cast(learnt, tf.int64))
            before, numbers = tf.gather(held, of_class), tf.gather(seen, of_class) + ranks
            identity = tf.gather(identities, tf.maximum(tf.reshape(rows.partitions, [-1]), 0))
            chosen = drawn(tf.bitwise.bitwise_xor(identity, mixed(tf.reshape(rows.offsets, [-1]))), numbers)
            slots = tf.where(ranks <= self._places - before, before + ranks - 1, chosen)
            places = tf.where(tf.logical_and(learnt, slots < self._places))[:, 0]
            slots = tf.gather(of_class * self._places + slots, places)
            slots, places = last_of_each(slots, places, tf.size(learnt, tf.int64))
            for name, column in (named(rows) | {_NUMBER: tf.reshape(of_all, tf.shape(rows.offsets))}).items():
                flat = tf.reshape(column, tf.concat([[-1], tf.shape(column)[2:]], 0))
                self._columns[name].scatter_update(tf.IndexedSlices(tf.gather(flat, places), slots))
            self._counts.assign(tf.stack([tf.minimum(held + count, self._places), seen + count]))

    def snapshot(self) -> PartState:
        """Copy the rows; numbers into memory that is kept from one save to the next, texts as their bytes."""
        if self._whole is not None:
            return self._whole
        each, seen = self._counts.numpy().tolist()
        held = sum(each)
        arrays = self._kept.pop() if self._kept else {}
        for name, variable in self._columns.items():
            column = np.asarray(variable.read_value())  # on a CPU the variable's own memory
            column = (
                column[:held] if len(each) == 1 else column[np.asarray(self._slots(np.arange(held), np.array(each)))]
            )
            if variable.dtype == tf.string:
                arrays |= packed(name, column)
            elif name in arrays and len(arrays[name]) == held:
                np.copyto(arrays[name], column)
            else:
                arrays[name] = np.array(column)
        facts = {
            "columns": layout(self._columns),
            "classes": None if self._classes is None else list(self._classes.values),
            _SHARES: [{"held": each, "seen": seen}],
        }
        return PartState(arrays=arrays, facts=facts, release=partial(self._kept.append, arrays))

    def restore(self, state: PartState) -> None:
        """Take the rows back; of other columns, or of none, begin anew.

        Of more rows than have room a sample stays. Where there is room for more, what comes first fills it. In a group
        this is for the chief, which holds what all remember until each member has taken its share.
        """
        if self._members > 1:
            self._whole = state
        else:
            self.take(share_of(state, 0, 1))

    def take(self, share: PartState) -> None:
        """Take the rows of one share."""
        self._whole = None
        counts = np.zeros(self._counts.shape, np.int64)
        if share.facts and share.facts["columns"] == layout(self._columns):
            columns = columns_of(share)
            held, seen = (np.array(share.facts[_SHARES][0][key], np.int64) for key in ("held", "seen"))
            order: Any = slice(None)
            if self._classes is None:
                held, seen = held.sum(keepdims=True), seen.sum(keepdims=True)
            elif share.facts["classes"] != list(self._classes.values):
                order, held, seen = self._classed(columns, int(seen.sum()))
            first, chosen, slots = 0, list[Array](), list[Array]()
            for number, (before, of_all) in enumerate(zip(held.tolist(), seen.tolist(), strict=True)):
                kept = min(before, self._places)
                some = np.random.default_rng([self._seed, of_all]).permutation(before)[:kept]
                chosen.append(first + np.sort(some))
                slots.append(number * self._places + np.arange(kept))
                first += before
                counts[:, number] = kept, of_all
            for name, variable in self._columns.items():
                column = empty(variable)
                column[np.concatenate(slots)] = columns[name][order][np.concatenate(chosen)]
                variable.assign(column)
        else:
            log.warning("reservoir: the checkpoint holds %s rows, so it starts empty", "other" if share.facts else "no")
        self._counts.assign(counts)

    def _classed(self, columns: Mapping[str, Array], seen: int) -> tuple[Array, Array, Array]:
        """Return rows of other classes, or of none, in the sequence of these, and how many of each are held and seen.

        How many were seen of each class is not known; it is as among those that are held.
        """
        assert self._classes is not None
        labels = {name.removeprefix(OF_LABEL): one for name, one in columns.items() if name.startswith(OF_LABEL)}
        found = self._classes.numbers(columns.get("label", labels))
        order = np.argsort(found, kind="stable")[int(np.sum(found < 0)) :]
        held = np.bincount(found[order], minlength=self._counts.shape[1])
        return order, held, np.maximum(held, seen * held // max(1, len(found)))

    def _slots(self, places: Any, held: Any) -> Any:
        """Return where the row lies that has this place among those that are held, which are so many of each class."""
        ends = tf.cumsum(tf.cast(held, tf.int64))
        flat = tf.reshape(tf.cast(places, tf.int64), [-1])
        of_class = tf.searchsorted(ends, flat, side="right", out_type=tf.int64)
        slots = flat - tf.gather(ends - held, of_class) + of_class * self._places
        return tf.reshape(slots, tf.shape(places))


def joined(shares: Sequence[PartState]) -> PartState:
    """Put the shares of all members together."""
    columns = [columns_of(share) for share in shares]
    arrays = dict[str, Array]()
    for name in columns[0]:
        arrays |= packed(name, np.concatenate([one[name] for one in columns]))
    return PartState(arrays=arrays, facts={**shares[0].facts, _SHARES: [_shares(share)[0] for share in shares]})


def share_of(whole: PartState, number: int, members: int) -> PartState:
    """Return the share of one of so many members.

    Where as many have remembered it, each goes on with its own; otherwise all rows are shuffled, and dealt evenly.
    """
    if not whole.facts:
        return whole
    if len(_shares(whole)) == members == 1:
        return replace(whole, facts={"classes": None, **whole.facts, _SHARES: _shares(whole)})
    shares = [{key: np.array(one[key], np.int64) for key in ("held", "seen")} for one in _shares(whole)]
    columns = columns_of(whole)
    ends = np.cumsum([one["held"].sum() for one in shares])
    if len(shares) == members:
        mine = np.arange(ends[number] - shares[number]["held"].sum(), ends[number])
        held, seen = shares[number]["held"], shares[number]["seen"]
    else:
        of_class = np.concatenate([np.repeat(np.arange(len(one["held"])), one["held"]) for one in shares])
        shuffled = np.random.default_rng([len(of_class), members]).permutation(len(of_class))
        by_class = shuffled[np.argsort(of_class[shuffled], kind="stable")]
        mine = by_class[number::members]
        held = np.bincount(of_class[mine], minlength=len(shares[0]["held"]))
        seen = np.maximum(held, sum(one["seen"] for one in shares) // members)
        # The numbers count what one member has seen; so they go on from there.
        of_share = np.repeat(np.arange(len(shares)), [one["held"].sum() for one in shares])
        totals = np.array([max(1, one["seen"].sum()) for one in shares])
        columns[_NUMBER] = (columns[_NUMBER] * (seen.sum() / totals[of_share])).astype(np.int64)
    arrays = dict[str, Array]()
    for name, column in columns.items():
        arrays |= packed(name, column[mine])
    facts = {**whole.facts, _SHARES: [{"held": held.tolist(), "seen": seen.tolist()}]}
    return PartState(arrays=arrays, facts={"classes": None, **facts})


def _shares(state: PartState) -> Sequence[Mapping[str, Sequence[int]]]:
    """Return how many rows are held and were seen, by share and class; one share where nothing is told of others."""
    facts = state.facts
    shares: Sequence[Mapping[str, Sequence[int]]]
    shares = facts[_SHARES] if _SHARES in facts else [{"held": [facts["held"]], "seen": [facts["seen"]]}]
    return shares


def beside(column: Any, replays: Any) -> Any:
    """Return a replica's rows with those that are given again behind them, column by column."""
    return tf.nest.map_structure(lambda mine, again: tf.concat([mine, again], 0), column, replays)


def _ranked(learnt: Any, of_class: Any, classes: int) -> tuple[Any, Any]:
    """Return which of the learnt rows of its class each is, from 1, and how many there are of each class."""
    if classes == 1:
        ranks = tf.cumsum(tf.cast(learnt, tf.int64))
        return ranks, ranks[-1:]
    size = tf.size(learnt, tf.int64)
    places = tf.range(size)
    # By class, and within a class as they came; rows that were not learnt behind them.
    keys = tf.sort(tf.where(learnt, of_class, classes) * size + places)
    firsts = tf.searchsorted(keys // size, tf.range(classes + 1, dtype=tf.int64), out_type=tf.int64)
    ranks = places - tf.gather(firsts, keys // size) + 1
    return tf.scatter_nd((keys % size)[:, None], ranks, size[None]), firsts[1:] - firsts[:-1]


def last_of_each(slots: Any, places: Any, most: Any) -> tuple[Any, Any]:
    """Return the slots without repetition, each with the last of its places; `most` is above every place."""
    keys = tf.sort(slots * most + places)
    sorted_slots = keys // most
    is_last = tf.concat([sorted_slots[1:] != sorted_slots[:-1], tf.ones_like(sorted_slots[:1], tf.bool)], 0)
    keys = tf.boolean_mask(keys, is_last)
    return keys // most, keys % most
