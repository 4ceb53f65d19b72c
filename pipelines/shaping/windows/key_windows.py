"""Key windows: the last records of each key of one partition, and the sequences that new records make with them.

Owns the state of a partition: the keys, how many records of each have come, and the last of them in rings, a place for
each key. All of it is bounded in bytes; the key that was seen least recently makes room for a new one, and begins anew
when it comes again. The state, and which rows there are, depend on the partition's records alone, not on how they are
cut. Everything is done for all records of a chunk at once; only its distinct keys are looked up one by one.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import accumulate, repeat
from typing import NamedTuple

import numpy as np

from millrace.consumers.records import Int64s
from millrace.pipelines.schema import Column
from millrace.pipelines.shaping.followed_states import Taken
from millrace.pipelines.shaping.windows.window_layout import WindowLayout

KEYS = "keys"
"""The column of keys."""
Key = int | bytes
LONGEST_KEY = 64
"""Bytes of a key as it is held; a longer one is held by its digest."""


def as_held(column: Column) -> list[Key]:
    """Return the key of each record as it is held."""
    if column.dtype != object:
        found: list[Key] = column.tolist()
        return found
    # A digest has 64 bytes, and a key that is held as it is has fewer, so they are never taken for each other.
    return [text if len(text) < LONGEST_KEY else blake2b(text).digest() for text in column.tolist()]


def numbered(column: Column) -> tuple[list[Key], Int64s]:
    """Return the distinct keys as they are held, in the order in which they first come, and each record's by number."""
    if column.dtype != object:
        found, first, which = np.unique(column, return_index=True, return_inverse=True)
        order = np.argsort(first)
        numbers = np.empty(len(order), np.int64)
        numbers[order] = np.arange(len(order))
        keys: list[Key] = found[order].tolist()
        return keys, numbers[which]
    texts: list[bytes] = column.tolist()
    places = dict(zip(dict.fromkeys(texts), range(len(texts)), strict=False))
    return as_held(np.array([*places], object)), np.fromiter(map(places.__getitem__, texts), np.int64, len(texts))


_places: list[int] = []
_growing = threading.Lock()


def places(count: int) -> list[int]:
    """Return the numbers of at least so many places: one object for each, which all partitions share."""
    if len(_places) < count:
        with _growing:
            _places.extend(range(len(_places), max(count, 2 * len(_places))))
    return _places


class KeySlots:
    """Which keys of one partition are held, each in a place of its own, and when each was last seen.

    The one that was seen least recently makes room for a new one; so what is held depends on the sequence of keys
    alone, and not on how it was cut into chunks.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._slots: dict[Key, int] = {}
        self._keys: list[Key] = []
        """By place."""
        self._seen_at = np.zeros(0, np.int64)
        """By place: the number of the record in which the key was last seen."""
        self._records = 0

    def __len__(self) -> int:
        return len(self._keys)

    def oldest_first(self) -> tuple[list[Key], Int64s]:
        """Return all keys, the one that was seen least recently first, and the place of each."""
        slots = np.argsort(self._seen_at[: len(self)])
        return [self._keys[slot] for slot in slots.tolist()], slots

    def place(self, distinct: Sequence[Key], last: Int64s, records: int) -> tuple[Int64s, Int64s, int]:
        """Place the keys of so many records, given in the order in which they first come there.

        `last` is in which of the records each comes for the last time. Return the place of each, the indexes of those
        that are new, and how many others had to make room. No more than `capacity` keys at once: so none of them makes
        room for another.
        """
        slots = self.slots_of(distinct)
        new = [index for index, slot in enumerate(slots) if slot < 0]
        evicted = 0
        if len(self) + len(new) <= self.capacity:
            for index in new:
                slots[index] = self._added(distinct[index])
        else:
            slots, new, evicted = self._with_room_made(distinct)
        placed = np.array(slots, np.int64)
        if len(self) > len(self._seen_at):
            grown = np.zeros(max(len(self), 2 * len(self._seen_at)), np.int64)
            grown[: len(self._seen_at)] = self._seen_at
            self._seen_at = grown
        self._seen_at[placed] = self._records + last
        self._records += records
        return placed, np.array(new, np.int64), evicted

    def _added(self, key: Key) -> int:
        slot = self._slots[key] = places(len(self) + 1)[len(self)]
        self._keys.append(key)
        return slot

    def _with_room_made(self, distinct: Sequence[Key]) -> tuple[list[int], list[int], int]:
        """Go through the keys one by one: a key may have to make room before it comes again, and is new then."""
        slots, new, touched = list[int](), list[int](), set[int]()
        before, oldest = len(self), self._oldest(2 * len(distinct))
        evicted = 0
        for index, key in enumerate(distinct):
            slot = self._slots.get(key)
            if slot is None:
                new.append(index)
                if len(self) < self.capacity:
                    slot = self._added(key)
                else:
                    slot = next(each for each in oldest if each not in touched)
                    del self._slots[self._keys[slot]]
                    self._slots[key], self._keys[slot] = slot, key
                    evicted += 1
            if slot < before:
                touched.add(slot)
            slots.append(slot)
        return slots, new, evicted

    def _oldest(self, most: int) -> Iterator[int]:
        """Return the places by when their keys were last seen; as many as may be passed over, or make room."""
        seen_at = self._seen_at[: len(self)]
        first = np.argpartition(seen_at, most)[:most] if most < len(seen_at) else np.arange(len(seen_at))
        return iter(first[np.argsort(seen_at[first])].tolist())

    def slots_of(self, keys: Iterable[Key]) -> list[int]:
        """Return the place of each key; -1 for one that is not held."""
        return list(map(self._slots.get, keys, repeat(-1)))

    def seen_at(self, slot: int) -> int:
        """Return when the key in a place was last seen: greater is later."""
        return int(self._seen_at[slot])

    def advance(self, records: int) -> None:
        """Give the next record this number or a greater one, so that partitions that share a count can be compared."""
        self._records = max(self._records, records)

    @property
    def records(self) -> int:
        """The number of the next record."""
        return self._records

    def fill(self, keys: Iterable[Key]) -> None:
        """Hold these keys, the one that was seen least recently first, in the places 0, 1, …, and no others."""
        self._keys = [*keys]
        self._slots = dict(zip(self._keys, places(len(self)), strict=False))
        self._records = len(self._keys)
        self._seen_at = np.arange(self._records)

    def copy(self) -> "KeySlots":
        """Return the same keys in the same places."""
        other = KeySlots(self.capacity)
        other._slots, other._keys = self._slots.copy(), self._keys.copy()
        other._seen_at, other._records = self._seen_at.copy(), self._records
        return other


@dataclass(frozen=True, slots=True)
class Windows:
    """The rows that records make, and columns in which the records of each row's sequence lie one after another."""

    rows: Int64s
    """Which of the records give a row, ascending."""
    newest: Int64s
    """Where the newest record of each row's sequence lies in the columns."""
    lengths: Int64s
    """How many records each sequence has; before them lies filling."""
    columns: Mapping[str, Column]
    """Of what becomes a sequence."""
    singles: Mapping[str, Column]
    """Of what has one value a row, that of an earlier record: a value for each row."""


class _Groups(NamedTuple):
    """Records sorted by key, each key's in their order."""

    order: Int64s
    slots: Int64s
    """The place of each key."""
    sizes: Int64s
    """How many records of each key there are."""
    of: Int64s
    """The key of each record, by its number among the keys of these records."""
    ranks: Int64s
    """How many records of the same key are before each."""


class KeyWindows:
    """The state of one partition."""

    def __init__(self, layout: WindowLayout) -> None:
        self.layout = layout
        self.slots = KeySlots(layout.capacity)
        self.evicted = 0
        """How often a key has made room for another."""
        self._seen = np.zeros(0, np.int64)
        self._rings: dict[str, Column] = {}
        self._grow(1)

    @property
    def nbytes(self) -> int:
        """The most memory that the keys take."""
        return len(self.slots) * self.layout.key_nbytes

    def take(self, taken: Taken) -> None:
        """Take records in, which follow those before."""
        for part in self._parts(taken):
            groups = self._grouped(part)
            self._write(part, groups)

    def cut(self, taken: Taken) -> Windows:
        """Take records in, and return the rows that they give."""
        found, first = list[Windows](), 0
        for part in self._parts(taken):
            groups = self._grouped(part)
            windows = self._cut(part, groups)
            self._write(part, groups)
            found.append(replace(windows, rows=windows.rows + first))
            first += len(part)
        return _joined(found)

    def copy(self) -> "KeyWindows":
        """Return a copy that shares nothing that changes."""
        other = KeyWindows(self.layout)
        other.slots, other.evicted, other._seen = self.slots.copy(), self.evicted, self._seen.copy()
        other._rings = {name: ring.copy() for name, ring in self._rings.items()}
        return other

    def held(self) -> tuple[Sequence[Key], Int64s, Mapping[str, Column]]:
        """Return the keys, least recently seen first, how many records each has had, and its last ones, oldest first.

        The columns hold of each key in turn as many records as there are, up to those that a row may be made of.
        """
        history = self.layout.history
        keys, slots = self.slots.oldest_first()
        seen = self._seen[slots]
        counts = np.minimum(seen, history)
        of = np.repeat(np.arange(len(slots)), counts)
        back = np.repeat(np.cumsum(counts), counts) - np.arange(len(of))
        places = (seen[of] - back) % max(1, history)
        return keys, seen, {name: ring[slots[of], places] for name, ring in self._rings.items()}

    def fill(self, keys: Sequence[Key], seen: Int64s, columns: Mapping[str, Column]) -> None:
        """Take over what `held` has returned. With room for fewer keys, those seen least recently are left out."""
        history, left_out = self.layout.history, max(0, len(keys) - self.layout.capacity)
        counts = np.minimum(seen, history)
        first = int(counts[:left_out].sum())
        keys, seen, counts = keys[left_out:], seen[left_out:], counts[left_out:]
        self.evicted += left_out
        self.slots.fill(keys)
        self._grow(len(keys))
        self._seen[: len(keys)] = seen
        of = np.repeat(np.arange(len(keys)), counts)
        back = np.repeat(np.cumsum(counts), counts) - np.arange(len(of))
        places = (seen[of] - back) % max(1, history)
        for name, ring in self._rings.items():
            ring[of, places] = columns[name][first:]

    def before(self, slots: Int64s, steps: Int64s) -> tuple[Int64s, dict[str, Column]]:
        """Return how many records the keys in these places have had, and a copy of some of them.

        `steps` says how far before the next record of its key each is. Of one that there is not the value is filling.
        """
        seen, history = self._seen[slots], self.layout.history
        if not history:
            return seen, {name: ring[slots, :0] for name, ring in self._rings.items()}
        # A record that there is not would lie in a place of the ring that was never written.
        places = slots[:, None] * history + (seen[:, None] - steps) % history
        return seen, {name: _flat(ring).take(places, axis=0) for name, ring in self._rings.items()}

    def without_oldest(self, count: int) -> "KeyWindows":
        """Return a state without so many keys, those that were seen least recently."""
        keys, seen, columns = self.held()
        first = int(np.minimum(seen, self.layout.history)[:count].sum())
        other = KeyWindows(self.layout)
        other.fill(keys[count:], seen[count:], {name: column[first:] for name, column in columns.items()})
        other.evicted = self.evicted
        return other

    def _parts(self, taken: Taken) -> Iterable[Taken]:
        """Yield the records in parts of no more keys than are held, so that no key of a part makes room in it."""
        if not len(taken):
            return
        if self.layout.options.by is None or len(taken) <= self.layout.capacity:
            yield taken
            return
        if len(set(taken.columns[KEYS].tolist())) <= self.layout.capacity:
            yield taken
            return
        half = len(taken) // 2
        yield from self._parts(taken.rows(0, half))
        yield from self._parts(taken.rows(half, len(taken)))

    def _grouped(self, taken: Taken) -> _Groups:
        """Place the keys of these records, and sort the records by key."""
        count = len(taken)
        if self.layout.options.by is None:
            self.slots.place([0], np.array([count - 1]), count)
            order = np.arange(count)
            return _Groups(order, np.zeros(1, np.int64), np.array([count]), np.zeros(count, np.int64), order)
        keys, which = numbered(taken.columns[KEYS])
        last = np.zeros(len(keys), np.int64)
        last[which] = np.arange(count)  # of equal indexes the last one stays
        slots, new, evicted = self.slots.place(keys, last, count)
        self.evicted += evicted
        self._grow(len(self.slots))
        fresh = slots[new]
        self._seen[fresh] = 0
        for ring in self._rings.values():
            ring[fresh] = b"" if ring.dtype == object else 0
        # Numbers of 16 bits are sorted in a few passes.
        short = which.astype(np.uint16) if len(keys) <= 2**16 else which
        sizes = np.bincount(which, minlength=len(keys))
        ranks = np.arange(count) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return _Groups(np.argsort(short, kind="stable"), slots, sizes, np.repeat(np.arange(len(sizes)), sizes), ranks)

    def _cut(self, taken: Taken, groups: _Groups) -> Windows:
        layout, options = self.layout, self.layout.options
        of, ranks, dilation, past = groups.of, groups.ranks, options.dilation, layout.length - 1
        # The newest record of the sequence that each record would give is this one of its key's, counted from 0.
        newest = self._seen[groups.slots][of] + ranks - layout.ahead
        gives = (newest + 1 >= options.min_length) & ((newest + 1 - options.min_length) % options.every == 0)
        place_of = np.empty(len(of), np.int64)
        place_of[groups.order] = np.arange(len(of))
        rows = np.flatnonzero(gives[place_of])
        chosen = place_of[rows]
        if not len(chosen):
            return Windows(rows, rows, rows, {}, {})
        # A sequence takes every `dilation`-th record of its key, so the records of a key fall into as many strands, of
        # which each row needs one. In a column lie, strand by strand, its records before these (before them filling),
        # then those of these records. Strands without a row are left out: a row takes its sequence's memory at most.
        strands = np.minimum(groups.sizes, dilation)
        strand = np.repeat(np.cumsum(strands) - strands, groups.sizes) + ranks % dilation
        used = np.zeros(int(strands.sum()), np.bool_)
        used[strand[gives]] = True
        own = np.flatnonzero(used[strand])
        strand = (np.cumsum(used) - 1)[strand[own]]
        sizes = np.bincount(strand)
        starts = np.cumsum(sizes + past) - sizes - past
        places = starts[strand] + past + ranks[own] // dilation
        first = own[ranks[own] < dilation]
        # Where each of them is taken from: what is held of the strands, and behind it the records as they are sorted.
        source = np.empty(len(own) + past * len(sizes), np.int64)
        source[starts[:, None] + np.arange(past)] = np.arange(past * len(sizes)).reshape(len(sizes), past)
        source[places] = past * len(sizes) + np.arange(len(own))
        before = newest[first][:, None] - dilation * np.arange(past, 0, -1)
        held_at = (groups.slots[of[first]][:, None] * layout.history + before % max(1, layout.history)).ravel()
        columns = {
            # Of whole rows: `take` copies each at once, which an index of two dimensions does not.
            name: np.concatenate(
                [_flat(self._rings[name]).take(held_at, axis=0), self._earlier(name, layout.ahead, own, taken, groups)]
            ).take(source, axis=0)
            for name in layout.in_sequences
        }
        singles = {name: self._earlier(name, steps, chosen, taken, groups) for name, steps in layout.singles.items()}
        place = np.empty(len(of), np.int64)
        place[own] = places
        lengths = np.minimum(newest[chosen] // dilation + 1, layout.length)
        return Windows(rows, place[chosen], lengths, columns, singles)

    def _earlier(self, name: str, steps: int, which: Int64s, taken: Taken, groups: _Groups) -> Column:
        """Return the values of the records that come this many records of their key before these sorted ones."""
        values: Column = taken.columns[name].take(groups.order[np.maximum(which - steps, 0)], axis=0)
        ranks = groups.ranks[which]
        if (held := ranks < steps).any():
            slots = groups.slots[groups.of[which[held]]]
            back = self._seen[slots] + ranks[held] - steps
            values[held] = self._rings[name][slots, back % self.layout.history]
        return values

    def _write(self, taken: Taken, groups: _Groups) -> None:
        history = self.layout.history
        before = self._seen[groups.slots]
        if history:
            of, ranks = groups.of, groups.ranks
            kept = ranks >= groups.sizes[of] - history
            slots, places = groups.slots[of[kept]], (before[of[kept]] + ranks[kept]) % history
            which = groups.order[kept]
            for name, ring in self._rings.items():
                ring[slots, places] = taken.columns[name][which]
        self._seen[groups.slots] = before + groups.sizes

    def _grow(self, keys: int) -> None:
        if keys <= len(self._seen):
            return
        room = min(self.layout.capacity, max(keys, 2 * len(self._seen)))
        self._seen = np.concatenate([self._seen, np.zeros(room - len(self._seen), np.int64)])
        for held in self.layout.held:
            shape = (room, self.layout.history, *held.shape)
            # Zeros take no memory before they are written to.
            ring: Column = np.full(shape, b"", held.dtype) if held.text else np.zeros(shape, held.dtype)
            if held.name in self._rings:
                ring[: len(self._rings[held.name])] = self._rings[held.name]
            self._rings[held.name] = ring


def _flat(ring: Column) -> Column:
    """Return the records of all keys one after another."""
    return ring.reshape(-1, *ring.shape[2:])


def _joined(found: Sequence[Windows]) -> Windows:
    some = [one for one in found if len(one.rows)] or [*found[:1]]
    if not some:
        none = np.empty(0, np.int64)
        return Windows(none, none, none, {}, {})
    if len(some) == 1:
        return some[0]
    sizes = [max(len(column) for column in one.columns.values()) for one in some]
    return Windows(
        np.concatenate([one.rows for one in some]),
        np.concatenate([one.newest + first for one, first in zip(some, accumulate([0, *sizes]), strict=False)]),
        np.concatenate([one.lengths for one in some]),
        {name: np.concatenate([one.columns[name] for one in some]) for name in some[0].columns},
        {name: np.concatenate([one.singles[name] for one in some]) for name in some[0].singles},
    )
