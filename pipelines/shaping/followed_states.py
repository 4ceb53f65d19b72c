"""Followed states: what shaping remembers of each partition, where rows are shaped and, behind it, at what is settled.

Rows are shaped some blocks ahead of those that are learnt, and a checkpoint holds what is learnt and no more. So the
leading state of a partition moves with its rows as they are shaped; what it takes in waits in a log; and the trailing
state takes the same in as far as blocks are settled. Both are a function of the partition's records alone, however
these are cut, so the trailing state at a position is the leading one as it was there.

Owns both, and the log between them. Rows are shaped on the generator's thread, blocks settled and checkpoints made on
the trainer's. The log holds the columns of records that are decoded and not settled, which the bounds of the feed
limit, and of some thousand records that are settled. A block of a closed incarnation moves nothing.

Where records are settled as they are shaped, as in a pretraining, one state of each partition is both, and nothing is
logged. Then partitions may be shaped on several threads beside each other, and the states read when none runs.
"""

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np

from millrace.consumers.errors import DataLossError
from millrace.consumers.records import Int64s, Partition
from millrace.pipelines.schema import Column
from millrace.pipelines.stream.assemble import Shape
from millrace.pipelines.stream.blocks import Block, BlockFacts
from millrace.pipelines.stream.decode import Decoded
from millrace.pipelines.stream.slices import Skipped

log = logging.getLogger(__name__)

_BYTES, _LENGTHS = ".bytes", ".lengths"
_AT_ONCE = 8192
"""So many settled records are taken in together: in fewer steps than blocks would take."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Records of one partition as a state takes them in."""

    end: int
    """One past the last offset that they cover."""
    offsets: Int64s
    columns: Mapping[str, Column]
    """What the state needs of them, by name."""

    def __len__(self) -> int:
        return len(self.offsets)

    def rows(self, first: int, last: int) -> "Taken":
        """Return some of the records."""
        columns = {name: column[first:last] for name, column in self.columns.items()}
        return replace(self, offsets=self.offsets[first:last], columns=columns)

    def split(self, at: int) -> "tuple[Taken, Taken]":
        """Return the records before an offset that they cover, and those from there on."""
        row = int(self.offsets.searchsorted(at))
        return replace(self.rows(0, row), end=at), self.rows(row, len(self))


class PartitionState(Protocol):
    """What is remembered of one partition: a function of its records, however they are cut."""

    def take(self, taken: Taken) -> None:
        """Take records in, which follow those before."""
        ...

    def copy(self) -> Self:
        """Return a copy that shares nothing that changes."""
        ...


class NothingRemembered:
    """The state of a partition of which nothing has to be remembered but its position."""

    def take(self, taken: Taken) -> None:
        """Forget the records."""

    def copy(self) -> "NothingRemembered":
        """Return another one."""
        return NothingRemembered()


S = TypeVar("S", bound=PartitionState)
T = TypeVar("T")


@dataclass(slots=True)
class Trailing(Generic[S]):
    """The state of a partition at what is settled, or a little before."""

    state: S
    position: int
    """The state has taken in everything before this offset."""
    settled: int
    """Everything before this offset is settled."""
    log: deque[Taken] = field(default_factory=deque)
    """What follows `position`, settled or not."""


class Leading(Generic[S]):
    """The states ahead of what is settled, of one incarnation. For the generator's thread."""

    def __init__(self, states: dict[Partition, S], followed: "FollowedStates[S]", incarnation: int) -> None:
        self._states, self._followed, self._incarnation = states, followed, incarnation

    def state(self, partition: Partition, start: int) -> S:
        """Return the state of a partition, which begins at this offset if it is new."""
        if partition not in self._states:
            self._states[partition] = self._followed.begin(self._incarnation, partition, start)
        return self._states[partition]

    def took(self, partition: Partition, taken: Taken) -> None:
        """Log what the state of a partition has taken in, and let the trailing states follow what is settled."""
        self._followed.log(self._incarnation, partition, taken)


class FollowedStates(Generic[S]):
    """The states of all partitions."""

    def __init__(self, new: Callable[[], S]) -> None:
        """Make states by `new`, which returns one that has taken nothing in."""
        self._new = new
        self._lock = threading.Lock()
        self._trailing: dict[Partition, Trailing[S]] = {}
        self._incarnation = -1
        self._at_once = False
        """Whether the leading states are the trailing ones."""
        self._behind = 0
        """Records that are settled and not taken in, about."""

    # The trainer's thread.

    def replace(self, states: Mapping[Partition, tuple[int, S]]) -> None:
        """Take over the states of a checkpoint, each with its position."""
        with self._lock:
            self._trailing = {
                partition: Trailing(state, position, position) for partition, (position, state) in states.items()
            }
            self._incarnation, self._at_once, self._behind = -1, False, 0

    def forget(self, partition: Partition) -> None:
        """Forget a partition: its topic was created again, so other records follow."""
        with self._lock:
            self._trailing.pop(partition, None)

    def open(self, incarnation: int, positions: Mapping[Partition, int], *, at_once: bool = False) -> Leading[S]:
        """Begin an incarnation at what is settled; a partition of which nothing is known begins empty.

        `at_once` settles records as they are shaped. Raise DataLossError where what is known ends elsewhere.
        """
        with self._lock:
            self._follow()
            kept = dict[Partition, Trailing[S]]()
            for partition, position in positions.items():
                before = self._trailing.get(partition)
                if before is not None and before.position != position:
                    raise DataLossError(_elsewhere(partition, position, before.position))
                kept[partition] = Trailing(self._new() if before is None else before.state, position, position)
            self._trailing, self._incarnation, self._at_once = kept, incarnation, at_once
            states = {partition: one.state if at_once else one.state.copy() for partition, one in kept.items()}
            return Leading(states, self, incarnation)

    def settle(self, facts: BlockFacts) -> None:
        """Follow a block whose records are settled. Raise DataLossError where it does not continue what is known."""
        with self._lock:
            if facts.incarnation != self._incarnation:
                return
            for span in facts.spans:
                one = self._trailing[span.partition]
                if span.start != one.settled:
                    raise DataLossError(_elsewhere(span.partition, span.start, one.settled))
                one.settled = span.end
                self._behind += span.end - span.start

    @contextmanager
    def at_settled(self) -> Iterator[Mapping[Partition, Trailing[S]]]:
        """Give the states exactly at what is settled; nothing moves meanwhile."""
        with self._lock:
            self._follow()
            yield self._trailing

    def states(self) -> list[S]:
        """Return the trailing states as they are just now, at or a little before what is settled; only to be read."""
        with self._lock:
            return [one.state for one in self._trailing.values()]

    def each(self, read: Callable[[S, int], T]) -> dict[Partition, T]:
        """Return what is read of the state of each partition at what is settled, and of its position there."""
        with self._lock:
            self._follow()
            return {partition: read(one.state, one.position) for partition, one in self._trailing.items()}

    # The generator's thread.

    def begin(self, incarnation: int, partition: Partition, start: int) -> S:
        """Begin a partition that is new in an incarnation, and return its leading state."""
        state = self._new()
        with self._lock:
            if incarnation == self._incarnation:
                self._trailing[partition] = Trailing(state if self._at_once else self._new(), start, start)
        return state

    def log(self, incarnation: int, partition: Partition, taken: Taken) -> None:
        """Keep what a leading state has taken in until it is settled."""
        with self._lock:
            if incarnation != self._incarnation:
                return
            one = self._trailing[partition]
            if self._at_once:
                one.position = one.settled = taken.end
                return
            one.log.append(taken)
            if self._behind >= _AT_ONCE:
                self._follow()

    def _follow(self) -> None:
        for one in self._trailing.values():
            settled = list[Taken]()
            while one.log and one.log[0].end <= one.settled:
                settled.append(one.log.popleft())
            if one.log and one.position < one.settled:
                before, one.log[0] = one.log[0].split(one.settled)
                settled.append(before)
            if settled:
                one.state.take(_joined(settled))
            one.position = one.settled
        self._behind = 0


class FollowedShaper(Generic[S]):
    """A shaper that remembers a state of each partition, which follows what is settled. Derive from it."""

    name: ClassVar[str]
    setting: ClassVar[str]

    def __init__(self, new: Callable[[], S]) -> None:
        """Make states by `new`, which returns one that has taken nothing in."""
        self._new = new
        self._followed = FollowedStates(new)

    def made(self, decoded: Decoded, state: S) -> tuple[Decoded, Sequence[Skipped], Taken]:
        """Return the rows of a chunk, the records that give none, and what the state has taken in meanwhile."""
        raise NotImplementedError

    def depends_on(self) -> dict[str, Any]:
        """Return what the states depend on, as facts: a state of other facts is of something else."""
        return {}

    def written(self, state: S) -> tuple[Mapping[str, Column], dict[str, Any]]:  # noqa: ARG002 - for those that remember something
        """Return a state as columns and facts."""
        return {}, {}

    def read(self, state: S, facts: Mapping[str, Any], column: Callable[[str, Sequence[int]], Column]) -> None:
        """Have a new state take over what `written` has returned; `column` gives one whose entries have a shape."""

    def begins_anew(self, *, others: bool) -> str | None:  # noqa: ARG002 - for those that remember something
        """Return a warning that the checkpoint remembers nothing of this, or other things; None if neither matters."""
        return None

    def open(self, incarnation: int, positions: Mapping[Partition, int], *, at_once: bool = False) -> Shape:
        """Begin an incarnation at what is settled; `at_once` settles records as they are shaped."""
        leading = self._followed.open(incarnation, positions, at_once=at_once)

        def shape(decoded: Decoded) -> tuple[Decoded, Sequence[Skipped]]:
            rows, left_out, taken = self.made(decoded, leading.state(decoded.partition, decoded.start))
            leading.took(decoded.partition, taken)
            return rows, left_out

        return shape

    def closed(self, block: Block) -> Block:
        """Return a block as it is."""
        return block

    def settle(self, facts: BlockFacts) -> None:
        """Follow a block whose records are settled."""
        self._followed.settle(facts)

    def forget(self, partition: Partition) -> None:
        """Forget a partition: its topic was created again."""
        self._followed.forget(partition)

    def saved(self) -> tuple[dict[str, Column], dict[str, Any]]:
        """Return the states at what is settled: arrays and facts, the same ones for the same records."""
        with self._followed.at_settled() as states:
            return self.saved_of({partition: (one.position, one.state) for partition, one in states.items()})

    def saved_of(self, states: Mapping[Partition, tuple[int, S]]) -> tuple[dict[str, Column], dict[str, Any]]:
        """Return these states, each with its position, as `saved` does."""
        arrays, partitions = dict[str, Column](), dict[str, Any]()
        for partition, (position, state) in sorted(states.items()):
            columns, facts = self.written(state)
            partitions[str(partition)] = {"position": position, **facts}
            for name, column in columns.items():
                arrays |= packed(f"{partition}/{name}", column)
        return arrays, {**self.depends_on(), "partitions": partitions}

    def load(self, arrays: Mapping[str, Column], facts: Mapping[str, Any]) -> None:
        """Take over what `saved` has returned; of something else, or of nothing, begin anew."""
        states = self.states_of(arrays, facts)
        if states is None and (warning := self.begins_anew(others=bool(facts))) is not None:
            log.warning("%s", warning)
        self._followed.replace(states or {})

    def states_of(
        self, arrays: Mapping[str, Column], facts: Mapping[str, Any]
    ) -> dict[Partition, tuple[int, S]] | None:
        """Return the states in what `saved` has returned, each with its position; None of other facts, or of none."""
        known = self.depends_on()
        if not facts or {name: facts[name] for name in known} != known:
            return None
        states = dict[Partition, tuple[int, S]]()
        for text, about in facts["partitions"].items():
            state, prefix = self._new(), f"{text}/"
            own = {name.removeprefix(prefix): one for name, one in arrays.items() if name.startswith(prefix)}
            self.read(state, about, partial(unpacked, own))
            states[Partition.parse(text)] = (int(about["position"]), state)
        return states


def packed(name: str, column: Column) -> dict[str, Column]:
    """Return a column as arrays, by name."""
    if column.dtype != object:
        return {name: column}
    texts: list[bytes] = column.ravel().tolist()
    lengths = np.fromiter(map(len, texts), np.int32, len(texts))
    return {f"{name}{_BYTES}": np.frombuffer(b"".join(texts), np.uint8), f"{name}{_LENGTHS}": lengths}


def unpacked(arrays: Mapping[str, Any], name: str, shape: Sequence[int]) -> Column:
    """Return a column whose entries have this shape."""
    if name in arrays:
        column: Column = arrays[name]
        return column
    lengths = arrays[f"{name}{_LENGTHS}"].astype(np.int64)
    whole, ends = arrays[f"{name}{_BYTES}"].tobytes(), np.cumsum(lengths).tolist()
    texts = np.empty(len(lengths), object)
    texts[:] = [whole[end - size : end] for end, size in zip(ends, lengths.tolist(), strict=True)]
    return texts.reshape(len(lengths) // math.prod(shape), *shape)


def _elsewhere(partition: Partition, position: int, known: int) -> str:
    return (
        f"{partition} goes on at {position}, and what shaping remembers of it ends at {known}; restart, which resumes "
        "from the newest checkpoint"
    )


def _joined(taken: list[Taken]) -> Taken:
    some = [one for one in taken if len(one)]
    if len(some) < 2:
        return some[0] if some else taken[-1]
    return Taken(
        taken[-1].end,
        np.concatenate([one.offsets for one in some]),
        {name: np.concatenate([one.columns[name] for one in some]) for name in some[0].columns},
    )
