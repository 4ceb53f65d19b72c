"""Plans of Avro records: which fields of a writer's schema are read, and what stands for those that it lacks.

A plan moves lanes over a value and returns one Arrow array for each source, one row for each lane. Immutable; used on
any thread. A field is looked for by its name, by the aliases of the reader's schema, and by those of the writer's.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from millrace.consumers.records import Int64s
from millrace.pipelines.formats.avro.lanes import Lanes
from millrace.pipelines.formats.avro.leaves import Read, reader_of
from millrace.pipelines.formats.avro.nodes import (
    AvroArray,
    AvroBackReference,
    AvroField,
    AvroMap,
    AvroNode,
    AvroRecord,
    AvroScalar,
    AvroUnion,
    places_of,
)
from millrace.pipelines.formats.shared.arrow_columns import Show
from millrace.pipelines.formats.shared.paths import PathStep
from millrace.pipelines.formats.shared.protocol import FieldFit

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
        of, places = places_of(lanes, self.node.items)
        items = Lanes(lanes.buffer, places, lanes.end[of], lanes.record[of])
        counts = np.bincount(of, minlength=len(lanes))
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
            candidates = np.flatnonzero(lengths == len(key))
            letters = lanes.buffer.data[begins[candidates, None] + np.arange(len(key))]
            matching: Int64s = candidates[(letters == np.frombuffer(key, np.uint8)).all(axis=1)]
            rows = np.full(len(lanes), -1, np.int64)
            rows[of[matching]] = np.arange(len(matching))
            for source, array in plan.read(entries.at(matching)).items():
                arrays[source] = array.take(pa.array(rows, mask=rows < 0))
        lanes.bury()
        return {source: arrays[source] for source in self.types}


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


_Absent = tuple[str, pa.DataType, Any]
"""A source that a value does not have: its type, and the value in its place, None for null."""


@dataclass(frozen=True, slots=True)
class Want:
    """A field that is asked for, as far as it is not found yet."""

    source: str
    type: pa.DataType
    steps: tuple[PathStep, ...]
    """The names that are still to be found."""
    lists: int = 0
    """How many lists the source says are here, before the next name."""
    unit: str | None = None
    """Of the event time, the unit in which it is wanted; None for any other field."""
    trail: tuple[str, ...] = ()
    """The names that were found, as they are asked for."""
    place: tuple[str, ...] = ()
    """The same names as the writer has them."""


@dataclass(frozen=True, slots=True)
class Known:
    """What the reader's schema says of a field."""

    aliases: tuple[str, ...] = ()
    default: Any = None
    """As JSON has it, but for bytes, which JSON has as a text of their codes."""


@dataclass(slots=True)
class Planner:
    """Makes the plan of one writer's schema."""

    known: Mapping[tuple[str, ...], Known]
    """What the reader's schema says, by the names from the outermost on, without the keys of maps."""
    absent: set[str] = field(default_factory=set)
    """The sources that are null in a branch of unions, or in all records."""
    unlike: dict[str, str] = field(default_factory=dict)
    """Of the others, what stands in their place, in words."""
    places: dict[str, str] = field(default_factory=dict)
    """The writer's names of the sources that its schema has, as a type that they are read as, in a branch at least."""
    kinds: dict[str, dict[str, None]] = field(default_factory=dict)
    """The types that they are read from."""
    defaults: set[str] = field(default_factory=set)
    """The sources for which the reader's schema has a default that is used."""

    def plan(self, node: AvroNode, wants: Sequence[Want]) -> ColumnPlan:
        """Return what reads the wants in a value."""
        return self._plan(node, wants) or LackingPlan(None, node)

    def fit(self, source: str, missing: Any) -> FieldFit:
        """Return how a source is read by the plan that was made. `missing`: the value that the settings give it."""
        place, kinds = self.places.get(source), " or ".join(self.kinds.get(source, ()))
        if place is not None:
            return FieldFit(place=place, kind=kinds)
        if source in self.defaults:
            return FieldFit(place=None, stand_in="the default of the reader's schema")
        if missing is not None and source in self.absent:
            return FieldFit(place=None, stand_in="its `missing` value")
        return FieldFit(place=None, unfit=f"the schema has {self.unlike.get(source, 'nothing but null there')}")

    def _plan(self, node: AvroNode, wants: Sequence[Want]) -> ColumnPlan | None:
        if not wants:
            return None
        if isinstance(node, AvroBackReference):
            node = node.node
        if isinstance(node, AvroUnion):
            plans = tuple(self._plan(branch, wants) for branch in node.branches)
            return BranchesPlan(node, plans, {want.source: want.type for want in wants})
        fit, lacking = list[Want](), list[tuple[str, pa.DataType, Show]]()
        for want in wants:
            show = _misfit(node, want)
            if show is None:
                fit.append(want)
            elif not (isinstance(node, AvroScalar) and node.kind == "null"):
                lacking.append((want.source, want.type, show))
                self.unlike.setdefault(want.source, _described(node))
        inner, absent = self._inner(node, fit)
        null = isinstance(node, AvroScalar) and node.kind == "null"
        if null:
            absent = [(want.source, want.type, None) for want in wants]
            self.absent.update(want.source for want in wants)
        if inner is not None and not absent and not lacking:
            return inner
        return LackingPlan(inner, node, tuple(absent), tuple(lacking))

    def _inner(self, node: AvroNode, wants: Sequence[Want]) -> tuple[ColumnPlan | None, list[_Absent]]:
        if not wants:
            return None, []
        if isinstance(node, AvroScalar):
            for want in wants:
                self.places.setdefault(want.source, ".".join(want.place))
                self.kinds.setdefault(want.source, {})[node.logical or node.kind] = None
            reads = [(want.source, reader_of(node, want.type, want.source, want.unit)) for want in wants]
            return LeafPlan(node, tuple((source, read) for source, read in reads if read is not None)), []
        if isinstance(node, AvroArray):
            elements = [replace(one, type=one.type.value_type, lists=max(0, one.lists - 1)) for one in wants]
            inner = self._plan(node.items, elements)
            return (None if inner is None else ItemsPlan(node, inner)), []
        if isinstance(node, AvroMap):
            return self._keys(node, wants), []
        return self._fields(node, wants)

    def _keys(self, node: AvroMap, wants: Sequence[Want]) -> ColumnPlan:
        plans = []
        for name in dict.fromkeys(want.steps[0].name for want in wants):
            # The reader's schema says the same of all values of a map, so a key is no part of the trail.
            below = [replace(_below(want, name), trail=want.trail) for want in wants if want.steps[0].name == name]
            plan = self._plan(node.values, below)
            if plan is not None:
                plans.append((name.encode(), plan))
        return KeysPlan(node, tuple(plans), {want.source: want.type for want in wants})

    def _fields(self, node: Any, wants: Sequence[Want]) -> tuple[ColumnPlan, list[_Absent]]:
        by_field: dict[str, list[Want]] = {}
        absent = []
        for want in wants:
            name = self._name_in(node, want)
            if name is None:
                self.absent.add(want.source)
                default = self._default(want)
                absent.append((want.source, want.type, default))
                if default is not None:
                    self.defaults.add(want.source)
                names = ", ".join(member.name for member in node.fields[:8])
                self.unlike.setdefault(want.source, f"no field {want.steps[0].name!r}; it has {names}")
            else:
                by_field.setdefault(name, []).append(_below(want, name))
        members = [(member, self._plan(member.node, by_field.get(member.name, ()))) for member in node.fields]
        return FieldsPlan(tuple(in_runs(members))), absent

    def _name_in(self, node: Any, want: Want) -> str | None:
        """Return the field of the writer: of that name, or that once had it, or that the reader says had another."""
        name = want.steps[0].name
        known = self.known.get((*want.trail, name), Known())
        for wanted in (name, *known.aliases):
            for member in node.fields:
                if member.name == wanted:
                    return str(wanted)
        return next((member.name for member in node.fields if name in member.aliases), None)

    def _default(self, want: Want) -> Any:
        """Return the value of the reader's schema for a field that the writer lacks, where it fits."""
        value: Any = self.known.get((*want.trail, want.steps[0].name), Known()).default
        for step in want.steps[1:]:
            value = value.get(step.name) if isinstance(value, Mapping) else None
        if isinstance(value, str):
            value = value.encode()
        try:
            pa.array([value], want.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            return None
        return value


def _misfit(node: AvroNode, want: Want) -> Show | None:
    """Return how a value is not what is asked for; None where it may be."""
    if isinstance(node, AvroArray):
        inside = want.lists > 0 if want.steps else pa.types.is_list(want.type)
        return None if inside and pa.types.is_list(want.type) else Show.WRONG_SHAPE
    if isinstance(node, AvroScalar):
        if want.steps:
            return Show.WRONG_TYPE
        if pa.types.is_list(want.type):
            return Show.WRONG_SHAPE
        return None if reader_of(node, want.type, want.source, want.unit) is not None else Show.WRONG_TYPE
    if want.lists and want.steps:
        return Show.WRONG_SHAPE
    return None if want.steps else Show.WRONG_TYPE


def _below(want: Want, name: str) -> Want:
    """Return what is left to be found in the field that the writer calls by this name."""
    step, *rest = want.steps
    trail, place = (*want.trail, step.name), (*want.place, name)
    return replace(want, steps=tuple(rest), lists=step.lists, trail=trail, place=place)


def _described(node: AvroNode) -> str:
    if isinstance(node, AvroScalar):
        return f"a value of type {node.kind}" + (f" ({node.logical})" if node.logical else "")
    return {AvroRecord: "a record", AvroUnion: "a union", AvroArray: "an array", AvroMap: "a map"}[type(node)]
