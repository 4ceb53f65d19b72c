"""The types of an Avro schema, as far as their bytes go: how lanes move over a value that nobody reads.

Each type moves many lanes at once (`skip`) or a single one (`walk`), and both take and refuse the same bytes.
Immutable; used on any thread.

Arrays and maps are blocks of items, each after a count. Where the items are is found for many lanes at once: items of
one size are found by multiplication, numbers by the bytes that end them, all others by moving over them: the first item
of every lane, then the second, and so on. Where few lanes are left, they are walked through one by one, because a step
costs the same for one lane as for hundreds. Both ways take and refuse the same bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np

from millrace.consumers.records import Int64s
from millrace.pipelines.formats.avro.lanes import Lanes

_NUMBERS = frozenset({"int", "long", "enum"})


@dataclass(frozen=True, slots=True)
class AvroScalar:
    """A value without parts."""

    kind: str
    """As Avro calls the type."""
    size: int | None = None
    """The number of its bytes, where all values have the same."""
    logical: str | None = None
    scale: int = 0
    """Of a decimal."""
    symbols: tuple[str, ...] = ()
    """Of an enum."""

    def skip(self, lanes: Lanes) -> None:
        """Move over a value."""
        if self.size is not None:
            lanes.over(self.size)
        elif self.is_number:
            lanes.number()
        else:
            lanes.move(lanes.number())

    def walk(self, text: bytes, pos: int, end: int, depth: int) -> int:  # noqa: ARG002 - of all nodes
        """Return where a value ends."""
        if self.size is not None:
            return moved(pos, self.size, end)
        number, pos = number_at(text, pos, end)
        return pos if self.is_number else moved(pos, number, end)

    @property
    def is_number(self) -> bool:
        """Whether a value is one number of varying length."""
        return self.kind in _NUMBERS


@dataclass(frozen=True, slots=True)
class AvroRecord:
    """A record: its fields one after another."""

    fields: tuple["AvroField", ...]
    size: int | None
    is_number: bool = field(default=False, init=False)

    def skip(self, lanes: Lanes) -> None:
        """Move over a value."""
        if self.size is not None:
            lanes.over(self.size)
            return
        for member in self.fields:
            member.node.skip(lanes)

    def walk(self, text: bytes, pos: int, end: int, depth: int) -> int:
        """Return where a value ends."""
        for member in self.fields:
            pos = member.node.walk(text, pos, end, depth)
        return pos


@dataclass(frozen=True, slots=True)
class AvroField:
    """A field of a record."""

    name: str
    aliases: tuple[str, ...]
    node: "AvroNode"


@dataclass(frozen=True, slots=True)
class AvroUnion:
    """A union: the number of a branch, then a value of it."""

    branches: tuple["AvroNode", ...]
    size: int | None = field(default=None, init=False)
    is_number: bool = field(default=False, init=False)

    def skip(self, lanes: Lanes) -> None:
        """Move over a value."""
        for branch, which in self.parts(lanes):
            part = lanes.at(which)
            self.branches[branch].skip(part)
            lanes.adopt(which, part)

    def walk(self, text: bytes, pos: int, end: int, depth: int) -> int:
        """Return where a value ends."""
        branch, pos = number_at(text, pos, end)
        if not 0 <= branch < len(self.branches):
            raise BrokenError
        return self.branches[branch].walk(text, pos, end, depth)

    def parts(self, lanes: Lanes) -> list[tuple[int, Int64s]]:
        """Read the numbers; return the branches that lanes take, each with its lanes."""
        numbers = lanes.number()
        beyond = (numbers < 0) | (numbers >= len(self.branches))
        if np.count_nonzero(beyond):
            lanes.kill(beyond)
            numbers[beyond] = 0
        counted = np.bincount(numbers, minlength=len(self.branches))
        return [(int(branch), np.flatnonzero(numbers == branch)) for branch in np.flatnonzero(counted)]


@dataclass(frozen=True, slots=True)
class AvroArray:
    """An array: blocks of items."""

    items: "AvroNode"
    size: int | None = field(default=None, init=False)
    is_number: bool = field(default=False, init=False)

    def skip(self, lanes: Lanes) -> None:
        """Move over a value."""
        skip_blocks(lanes, self.items)

    def walk(self, text: bytes, pos: int, end: int, depth: int) -> int:
        """Return where a value ends."""
        return walk_blocks(self.items, text, pos, end, depth)


@dataclass(frozen=True, slots=True)
class AvroMap:
    """A map: blocks of keys with values."""

    values: "AvroNode"
    size: int | None = field(default=None, init=False)
    is_number: bool = field(default=False, init=False)

    def skip(self, lanes: Lanes) -> None:
        """Move over a value."""
        skip_blocks(lanes, self.entry)

    def walk(self, text: bytes, pos: int, end: int, depth: int) -> int:
        """Return where a value ends."""
        return walk_blocks(self.entry, text, pos, end, depth)

    @property
    def entry(self) -> "AvroRecord":
        """A key with its value."""
        return AvroRecord((AvroField("key", (), AvroScalar("string")), AvroField("value", (), self.values)), None)


@dataclass(slots=True)
class AvroBackReference:
    """A record inside itself, by name."""

    name: str
    made: Mapping[str, "AvroNode"]
    size: int | None = field(default=None, init=False)
    is_number: bool = field(default=False, init=False)

    @property
    def node(self) -> "AvroNode":
        """The record."""
        return self.made[self.name]

    def skip(self, lanes: Lanes) -> None:
        """Move over a value, lane by lane: how deep it goes differs."""
        walk_values(lanes, self)

    def walk(self, text: bytes, pos: int, end: int, depth: int) -> int:
        """Return where a value ends."""
        if depth >= DEEPEST:
            raise BrokenError
        return self.node.walk(text, pos, end, depth + 1)


AvroNode: TypeAlias = AvroScalar | AvroRecord | AvroUnion | AvroArray | AvroMap | AvroBackReference


DEEPEST = 64
"""Records within records of the same type go no deeper; a value that does is refused."""
_FEW = 24
"""So many lanes or fewer are walked through one by one."""
_STEPS = 16
"""Not before so many steps, which most arrays do not have."""
_LONGEST = 10
"""Bytes of a number."""


class BrokenError(Exception):
    """Bytes that the schema does not allow."""


class Movable(Protocol):
    """A type that lanes can move over."""

    @property
    def size(self) -> int | None:
        """The number of bytes of a value, where all have the same."""
        ...

    @property
    def is_number(self) -> bool:
        """Whether a value is one number of varying length."""
        ...

    def skip(self, lanes: Lanes) -> None:
        """Move all lanes over a value."""
        ...

    def walk(self, text: bytes, pos: int, end: int, depth: int) -> int:
        """Return where the value at `pos` ends; raise BrokenError where it does not, before `end`."""
        ...


def skip_blocks(lanes: Lanes, items: Movable) -> None:
    """Move over blocks of items; those that say how many bytes they have are not looked into."""
    active, steps = np.arange(len(lanes)), 0
    while len(active):
        if steps >= _STEPS and len(active) <= _FEW:
            _walk_on(lanes, active, items)
            return
        part = lanes.at(active)
        counts = part.number()
        sized = np.flatnonzero(counts < 0)
        if len(sized):
            jumping = part.at(sized)
            jumping.move(jumping.number())
            part.adopt(sized, jumping)
        begins_of(part, np.maximum(counts, 0), items)
        lanes.adopt(active, part)
        active, steps = active[(counts != 0) & ~lanes.buffer.broken[lanes.record[active]]], steps + 1


def places_of(lanes: Lanes, items: Movable) -> tuple[Int64s, Int64s]:
    """Move over blocks of items; return the lane and the place of each item, lane by lane, in order."""
    found: list[tuple[Int64s, Int64s]] = []
    active, steps = np.arange(len(lanes)), 0
    while len(active):
        if steps >= _STEPS and len(active) <= _FEW:
            found.append(_walk_on(lanes, active, items, keep=True))
            break
        part = lanes.at(active)
        counts = part.number()
        sized = np.flatnonzero(counts < 0)
        if len(sized):
            behind = part.at(sized)
            behind.number()
            part.adopt(sized, behind)
        of, places = begins_of(part, np.abs(counts), items)
        found.append((active[of], places))
        lanes.adopt(active, part)
        active, steps = active[(counts != 0) & ~lanes.buffer.broken[lanes.record[active]]], steps + 1
    return _in_order(found)


def begins_of(lanes: Lanes, counts: Int64s, items: Movable) -> tuple[Int64s, Int64s]:
    """Move over so many items a lane. Return the lane and the place of each, in order."""
    left = lanes.end - lanes.pos
    # An item without bytes has no place: a count of them is bounded by nothing, so such an array is taken for broken.
    bad = (counts < 0) | (counts > left // max(1, items.size or 1)) | ((counts > 0) & (items.size == 0))
    if np.count_nonzero(bad):
        lanes.kill(bad)
        counts = np.where(bad, 0, counts)
    of = np.repeat(np.arange(len(lanes)), counts)
    if items.size is not None:
        places = lanes.pos[of] + _within(of, counts) * items.size
        lanes.move(counts * items.size)
        return of, places
    if items.is_number:
        return of, _numbers(lanes, counts, of)
    return _one_by_one(lanes, counts, items)


def _within(of: Int64s, counts: Int64s) -> Int64s:
    """Return the number of each item in its lane."""
    numbers: Int64s = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
    return numbers


def _numbers(lanes: Lanes, counts: Int64s, of: Int64s) -> Int64s:
    """Return where numbers begin: each where the one before it ends, which the bytes show without being decoded."""
    lasts = lanes.buffer.last_bytes
    first, within = np.searchsorted(lasts, lanes.pos), _within(of, counts)
    after = np.where(counts > 0, lasts[np.minimum(first + counts - 1, len(lasts) - 1)] + 1, lanes.pos)
    before = lasts[np.minimum(first[of] + within - 1, len(lasts) - 1)] + 1
    places: Int64s = np.where(within == 0, lanes.pos[of], before)
    lanes.move(after - lanes.pos)
    return places


def _one_by_one(lanes: Lanes, counts: Int64s, items: Movable) -> tuple[Int64s, Int64s]:
    found: list[tuple[Int64s, Int64s]] = []
    active, done = np.flatnonzero(counts > 0), 0
    while len(active):
        if done >= _STEPS and len(active) <= _FEW:
            found.append(_walk_items(lanes, active, counts[active] - done, items))
            break
        part = lanes.at(active)
        found.append((active, part.pos.copy()))
        items.skip(part)
        lanes.adopt(active, part)
        done += 1
        active = active[(counts[active] > done) & ~lanes.buffer.broken[lanes.record[active]]]
    return _in_order(found)


def _in_order(found: list[tuple[Int64s, Int64s]]) -> tuple[Int64s, Int64s]:
    if len(found) == 1:
        return found[0]
    of = np.concatenate([np.empty(0, np.int64), *(lanes for lanes, _ in found)])
    places = np.concatenate([np.empty(0, np.int64), *(places for _, places in found)])
    order = np.argsort(of, kind="stable")
    return of[order], places[order]


# Lane by lane.


def walk_values(lanes: Lanes, items: Movable) -> None:
    """Move over one value of each lane."""
    _walk_items(lanes, np.arange(len(lanes)), np.ones(len(lanes), np.int64), items)


def _walk_items(lanes: Lanes, active: Int64s, counts: Int64s, items: Movable) -> tuple[Int64s, Int64s]:
    of, places = list[int](), list[int]()
    broken = np.zeros(len(lanes), bool)
    for lane, count in zip(active.tolist(), counts.tolist(), strict=True):
        pos, end = int(lanes.pos[lane]), int(lanes.end[lane])
        try:
            for _ in range(count):
                of.append(lane)
                places.append(pos)
                pos = items.walk(lanes.buffer.text, pos, end, 1)
            lanes.pos[lane] = pos
        except BrokenError:
            broken[lane] = True
    if np.count_nonzero(broken):
        lanes.kill(broken)
    return np.array(of, np.int64), np.array(places, np.int64)


def _walk_on(lanes: Lanes, active: Int64s, items: Movable, *, keep: bool = False) -> tuple[Int64s, Int64s]:
    """Move over the rest of the blocks. `keep`: return the items too, so sized blocks are looked into."""
    of, places = list[int](), list[int]()
    broken = np.zeros(len(lanes), bool)
    for lane in active.tolist():
        found: list[int] | None = [] if keep else None
        try:
            lanes.pos[lane] = walk_blocks(
                items, lanes.buffer.text, int(lanes.pos[lane]), int(lanes.end[lane]), 1, found
            )
        except BrokenError:
            broken[lane] = True
        of += [lane] * len(found or ())
        places += found or ()
    if np.count_nonzero(broken):
        lanes.kill(broken)
    return np.array(of, np.int64), np.array(places, np.int64)


def walk_blocks(items: Movable, text: bytes, pos: int, end: int, depth: int, places: list[int] | None = None) -> int:
    """Return where blocks of items end; note the place of each item if asked to."""
    while True:
        count, pos = number_at(text, pos, end)
        if not count:
            return pos
        if count < 0:
            size, pos = number_at(text, pos, end)
            if places is None:
                pos = moved(pos, size, end)
                continue
        count = abs(count)
        if items.size == 0 or count > (end - pos) // max(1, items.size or 1):
            raise BrokenError
        for _ in range(count):
            if places is not None:
                places.append(pos)
            pos = items.walk(text, pos, end, depth) if not items.is_number else _behind_number(text, pos, end)


def number_at(text: bytes, pos: int, end: int) -> tuple[int, int]:
    """Return the number at a place, and where it ends."""
    behind = _behind_number(text, pos, end)
    if behind - pos > _LONGEST or (behind - pos == _LONGEST and text[behind - 1] > 1):
        raise BrokenError
    value = 0
    for at in range(behind - 1, pos - 1, -1):
        value = value << 7 | text[at] & 0x7F
    return value >> 1 ^ -(value & 1), behind


def _behind_number(text: bytes, pos: int, end: int) -> int:
    while pos < end:
        pos += 1
        if text[pos - 1] < 0x80:
            return pos
    raise BrokenError


def moved(pos: int, size: int, end: int) -> int:
    """Return the place so many bytes further, if it is before the end."""
    if not 0 <= size <= end - pos:
        raise BrokenError
    return pos + size
