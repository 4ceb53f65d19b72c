"""Key slots: which keys are held, each in a place of its own, and which one has to make room for a new one.

Owns the keys of one partition and when each was last seen. The one that was seen least recently makes room; so what is
held depends on the sequence of keys alone, and not on how it was cut into chunks. Used by one thread at a time.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import repeat

import numpy as np

from millrace.consumers.records import Int64s
from millrace.pipelines.schema import Column

Key = int | bytes
LONGEST_KEY = 64
"""Bytes of a key as it is held; a longer one is held by its digest."""


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
    return [_held(text) for text in places], np.fromiter(map(places.__getitem__, texts), np.int64, len(texts))


def _held(key: bytes) -> bytes:
    # A digest has 64 bytes, and a key that is held as it is has fewer, so they are never taken for each other.
    return key if len(key) < LONGEST_KEY else blake2b(key).digest()


class KeySlots:
    """The places of the keys of one partition."""

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
        slots = list(map(self._slots.get, distinct, repeat(-1)))
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
        slot = self._slots[key] = len(self._keys)
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

    def fill(self, keys: Iterable[Key]) -> None:
        """Hold these keys, the one that was seen least recently first, in the places 0, 1, …, and no others."""
        self._keys = [*keys]
        self._slots = {key: slot for slot, key in enumerate(self._keys)}
        self._records = len(self._keys)
        self._seen_at = np.arange(self._records)

    def copy(self) -> "KeySlots":
        """Return the same keys in the same places."""
        other = KeySlots(self.capacity)
        other._slots, other._keys = self._slots.copy(), self._keys.copy()
        other._seen_at, other._records = self._seen_at.copy(), self._records
        return other
