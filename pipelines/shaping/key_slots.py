"""Key slots: which keys are held, each in a place of its own, and which one has to make room for a new one.

Owns the keys of one partition in the order in which they were last seen. The one that was seen least recently makes
room; so what is held depends on the sequence of keys alone, and not on how it was cut into chunks. Used by one thread
at a time.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import numpy as np

from consumers.records import Int64s
from pipelines.schema import Column

Key = int | bytes
LONGEST_KEY = 64
"""Bytes of a key as it is held; a longer one is held by its digest."""


def plain_keys(column: Column) -> list[Key]:
    """Return the keys of a column as they are held."""
    keys: list[Key] = column.tolist()
    if column.dtype == object and any(len(key) >= LONGEST_KEY for key in keys):  # type: ignore[arg-type]  # texts
        return [_held(key) for key in keys]
    return keys


def _held(key: Key) -> Key:
    # A digest has 64 bytes, and a key that is held as it is has fewer, so they are never taken for each other.
    return key if isinstance(key, int) or len(key) < LONGEST_KEY else blake2b(key).digest()


class KeySlots:
    """The places of the keys of one partition."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._slots: OrderedDict[Key, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def keys(self) -> list[Key]:
        """All keys, the one that was seen least recently first."""
        return list(self._slots)

    @property
    def slots(self) -> Int64s:
        """The place of each key, in the same sequence."""
        return np.fromiter(self._slots.values(), np.int64, len(self._slots))

    def place(self, distinct: Sequence[Key], last_seen: Iterable[int]) -> tuple[Int64s, Int64s, int]:
        """Place the keys of a range of records, given in the order in which they first come there.

        `last_seen` gives the same keys by their index, in the order in which they come there for the last time. Return
        the place of each, the indexes of those that are new, and how many others had to make room. No more than
        `capacity` keys at once: so none of them makes room for another.
        """
        slots, new, held = [0] * len(distinct), list[int](), self._slots
        evicted = 0
        for index, key in enumerate(distinct):
            slot = held.get(key)
            if slot is None:
                if len(held) < self.capacity:
                    slot = len(held)
                else:
                    _, slot = held.popitem(last=False)
                    evicted += 1
                held[key] = slot
                new.append(index)
            else:
                held.move_to_end(key)
            slots[index] = slot
        for index in last_seen:
            held.move_to_end(distinct[index])
        return np.array(slots, np.int64), np.array(new, np.int64), evicted

    def fill(self, keys: Iterable[Key]) -> None:
        """Hold these keys, the one that was seen least recently first, in the places 0, 1, …, and no others."""
        self._slots = OrderedDict((key, slot) for slot, key in enumerate(keys))

    def copy(self) -> "KeySlots":
        """Return the same keys in the same places."""
        other = KeySlots(self.capacity)
        other._slots = self._slots.copy()
        return other
