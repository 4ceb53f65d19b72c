"""Reading Avro records by a plan: it moves lanes over a value, and returns what is asked of it as columns.

A plan returns one Arrow array for each source, one row for each lane. Immutable; used on any thread.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from millrace.consumers.records import Int64s
from millrace.pipelines.formats.avro.item_blocks import places_of
from millrace.pipelines.formats.avro.lanes import Lanes
from millrace.pipelines.formats.avro.leaves import Read
from millrace.pipelines.formats.avro.nodes import (
    AvroArray,
    AvroBackReference,
    AvroField,
    AvroMap,
    AvroNode,
    AvroRecord,
    AvroScalar,
    AvroUnion,
)
from millrace.pipelines.formats.shared.arrow_columns import Show

_NULL = AvroScalar("null", 0)
Arrays = dict[str, pa.Array]


class ColumnPlan(Protocol):
    """Reads a value of each lane."""

    def read(self, lanes: Lanes) -> Arrays:
        """Move over a value; return what is asked of it."""
        ...


@dataclass(frozen=True, slots=True)
class LeafPlan:
    """A single value, for one source or more."""

    node: AvroScalar
    reads: tuple[tuple[str, Read], ...]

    def read(self, lanes: Lanes) -> Arrays:
        """Move over a value; return what is asked of it."""
        if self.node.size is not None:
            lanes.need(self.node.size)
            arrays = self.at(lanes, 0)
            lanes.pos += self.node.size
            return arrays
        if len(self.reads) == 1:
            ((source, read),) = self.reads
            return {source: read(lanes, 0)}
        arrays = {}
        for source, read in self.reads:
            again = Lanes(lanes.buffer, lanes.pos.copy(), lanes.end.copy(), lanes.record)
            arrays[source] = read(again, 0)
            last = again
        lanes.pos[:], lanes.end[:], lanes.even = last.pos, last.end, None
        lanes.bury()
        return arrays

    def at(self, lanes: Lanes, offset: int) -> Arrays:
        """Return the values of one size that begin so many bytes behind the lanes."""
        return {source: read(lanes, offset) for source, read in self.reads}


@dataclass(frozen=True, slots=True)
class LackingPlan:
    """A value that is moved over, and sources that are not in it as they are asked for."""

    inner: "ColumnPlan | None"
    node: AvroNode
    absent: tuple[tuple[str, pa.DataType, Any], ...] = ()
    """Sources with their types and values: None for null."""
    unlike: tuple[tuple[str, pa.DataType, Show], ...] = ()
    """Sources of another type or shape."""

    def read(self, lanes: Lanes) -> Arrays:
        """Move over a value; return what is asked of it."""
        for source, _, show in self.unlike:
            lanes.buffer.show(source, lanes.record, show)
        arrays = {source: _constant(type_, value, len(lanes)) for source, type_, value in self.absent}
        arrays |= {source: pa.nulls(len(lanes), type_) for source, type_, _ in self.unlike}
        if self.inner is None:
            self.node.skip(lanes)
            return arrays
        return arrays | self.inner.read(lanes)


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Neighbouring fields of one size each: looked at where they are, and moved over at once."""

    size: int
    leaves: tuple[tuple[int, LeafPlan], ...]

    def read(self, lanes: Lanes) -> Arrays:
        """Move over a value; return what is asked of it."""
        lanes.need(self.size)
        arrays: Arrays = {}
        for offset, leaf in self.leaves:
            arrays |= leaf.at(lanes, offset)
        lanes.pos += self.size
        return arrays


@dataclass(frozen=True, slots=True)
class FieldsPlan:
    """A record."""

    parts: tuple["ColumnPlan | AvroNode", ...]

    def read(self, lanes: Lanes) -> Arrays:
        """Move over a value; return what is asked of it."""
        arrays: Arrays = {}
        for part in self.parts:
            if isinstance(part, AvroScalar | AvroRecord | AvroUnion | AvroArray | AvroMap | AvroBackReference):
                part.skip(lanes)
            else:
                arrays |= part.read(lanes)
        return arrays


@dataclass(frozen=True, slots=True)
class BranchesPlan:
    """A union."""

    node: AvroUnion
    plans: tuple["ColumnPlan | None", ...]
    types: Mapping[str, pa.DataType]

    def read(self, lanes: Lanes) -> Arrays:
        """Move over a value; return what is asked of it."""
        found: dict[str, list[tuple[Int64s, pa.Array]]] = {source: [] for source in self.types}
        for branch, which in self.node.parts(lanes):
            plan = self.plans[branch]
            if self.node.branches[branch] == _NULL:
                continue  # nothing to move over, and nothing that is found
            part = lanes.at(which)
            if plan is None:
                self.node.branches[branch].skip(part)
            else:
                for source, array in plan.read(part).items():
                    found[source].append((which, array))
            lanes.adopt(which, part)
        return {source: _merged(found[source], type_, len(lanes)) for source, type_ in self.types.items()}


@dataclass(frozen=True, slots=True)
class ItemsPlan:
    """An array."""

    node: AvroArray
    plan: ColumnPlan

    def read(self, lanes: Lanes) -> Arrays:
        """Move over a value; return what is asked of it."""
        items, counts = _items(lanes, self.node.items)
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        offsets = pa.array(bounds.astype(np.int32))
        arrays = self.plan.read(items)
        lanes.bury()
        return {source: pa.ListArray.from_arrays(offsets, array) for source, array in arrays.items()}


@dataclass(frozen=True, slots=True)
class KeysPlan:
    """A map, of which some keys are asked for. Of a key that stands twice, the last value counts."""

    node: AvroMap
    plans: tuple[tuple[bytes, ColumnPlan], ...]
    types: Mapping[str, pa.DataType]

    def read(self, lanes: Lanes) -> Arrays:
        """Move over a value; return what is asked of it."""
        of, places = places_of(lanes, self.node.entry)
        entries = Lanes(lanes.buffer, places, lanes.end[of], lanes.record[of])
        lengths = entries.number()
        begins = entries.pos.copy()
        entries.move(lengths)
        # Where that broke a record, its key may end behind all bytes.
        lengths = np.where(entries.pos == begins + lengths, lengths, -1)
        arrays: Arrays = {}
        for key, plan in self.plans:
            matching = _equal(lanes.buffer.data, begins, lengths, key)
            rows = np.full(len(lanes), -1, np.int64)
            rows[of[matching]] = np.arange(len(matching))
            for source, array in plan.read(entries.at(matching)).items():
                arrays[source] = array.take(pa.array(rows, mask=rows < 0))
        lanes.bury()
        return {source: arrays[source] for source in self.types}


def _equal(data: Any, begins: Int64s, lengths: Int64s, key: bytes) -> Int64s:
    candidates = np.flatnonzero(lengths == len(key))
    letters = data[begins[candidates, None] + np.arange(len(key))]
    found: Int64s = candidates[(letters == np.frombuffer(key, np.uint8)).all(axis=1)]
    return found


def _items(lanes: Lanes, node: AvroNode) -> tuple[Lanes, Int64s]:
    """Return lanes at all items, and how many items each lane has."""
    of, places = places_of(lanes, node)
    return Lanes(lanes.buffer, places, lanes.end[of], lanes.record[of]), np.bincount(of, minlength=len(lanes))


def _merged(pieces: Sequence[tuple[Int64s, pa.Array]], type_: pa.DataType, count: int) -> pa.Array:
    """Return the rows of all branches in order; null where no branch has one."""
    if len(pieces) == 1 and len(pieces[0][0]) == count:
        return pieces[0][1]
    rows, begin = np.full(count, -1, np.int64), 0
    for which, array in pieces:
        rows[which] = np.arange(begin, begin + len(array))
        begin += len(array)
    if not begin:
        return pa.nulls(count, type_)
    joined = pieces[0][1] if len(pieces) == 1 else pa.concat_arrays([array for _, array in pieces])
    return joined.take(pa.array(rows, mask=rows < 0))


def _constant(type_: pa.DataType, value: Any, count: int) -> pa.Array:
    if value is None:
        return pa.nulls(count, type_)
    return pa.array([value], type_).take(pa.array(np.zeros(count, np.int64)))


def in_runs(members: Sequence[tuple[AvroField, ColumnPlan | None]]) -> Iterator["ColumnPlan | AvroNode"]:
    """Yield the parts of a record; fields of one size that are neighbours become one part."""
    size, leaves = 0, list[tuple[int, LeafPlan]]()
    for member, plan in members:
        within = None if member.node.size is None else _leaves(plan)
        if within is not None and member.node.size is not None:
            leaves += [(size + offset, leaf) for offset, leaf in within]
            size += member.node.size
            continue
        if size:
            yield RunPlan(size, tuple(leaves))
        size, leaves = 0, []
        yield member.node if plan is None else plan
    if size:
        yield RunPlan(size, tuple(leaves))


def _leaves(plan: ColumnPlan | None) -> Sequence[tuple[int, LeafPlan]] | None:
    """Return the leaves of a field of one size, with where each begins in it; None if it holds more than leaves."""
    if plan is None:
        return ()
    if isinstance(plan, LeafPlan):
        return ((0, plan),)
    if isinstance(plan, FieldsPlan) and len(plan.parts) == 1 and isinstance(run := plan.parts[0], RunPlan):
        return run.leaves
    return None
