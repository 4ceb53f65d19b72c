"""The types of an Avro schema, as far as their bytes go: how lanes move over a value that nobody reads.

Each type moves many lanes at once (`skip`) or a single one (`walk`), and both take and refuse the same bytes.
Immutable; used on any thread.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from millrace.consumers.records import Int64s
from millrace.pipelines.formats.avro.item_blocks import (
    DEEPEST,
    BrokenError,
    moved,
    number_at,
    skip_blocks,
    walk_blocks,
    walk_values,
)
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
