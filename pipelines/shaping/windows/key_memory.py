"""Key memory: what is remembered of the keys of all partitions outside of training, and the rows that records make.

Owns a state of each partition, `KeyWindows` as the trainer has it, and the offset up to which it has taken the topic
in. One thread takes records in; any thread asks for rows. Both hold one lock: a taker for some hundred records at a
time, and not again while somebody asks, so that nobody waits for long. A record for which a row is asked is not
remembered: the topic brings it. Bounded by windows.max_bytes for each partition.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from millrace.consumers.records import Int64s, Partition
from millrace.pipelines.schema import Column, Schema
from millrace.pipelines.shaping.windows.key_windows import Key, KeyWindows, as_held
from millrace.pipelines.shaping.windows.window_layout import TIMES, WindowLayout, of_feature
from millrace.pipelines.shaping.windows.windows import gaps_of, taken_of, texts_cut
from millrace.pipelines.stream.decode import Decoded

_AT_ONCE = 512
"""The most records that are taken in while a row has to wait."""
_NO_BOUND = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMemoryFigures:
    """What a memory holds."""

    keys: int
    bytes: int
    """The most memory that they take."""
    evicted: int
    """How often a key has made room for another, in this history."""


class KeyMemory:
    """The last records of each key, by partition."""

    def __init__(self, layout: WindowLayout) -> None:
        self.layout = layout
        schema = replace(layout.schema, labels=(), weight=None, event_time=None, key=None)
        # Whatever is asked gets a row, and the rows of a request make no room for each other.
        every = {"every": 1, "min_length": 1, "max_bytes": _NO_BOUND}
        self._asked = WindowLayout(schema, layout.options.model_copy(update=every))
        self._steps = layout.options.dilation * np.arange(layout.length - 1, 0, -1)
        """How far before the newest record of a sequence the others are, the oldest first."""
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        """Held by who asks and waits: a lock that is given back may be taken again at once by who gave it."""
        self._states: dict[Partition, KeyWindows] = {}
        self._positions: dict[Partition, int] = {}
        self._clock = 0
        """Counts records over all partitions, so that it is known which of two saw a key last."""

    @property
    def row_schema(self) -> Schema:
        """The schema of the rows: what the model is given, without labels."""
        return self._asked.shaped

    def positions(self) -> dict[Partition, int]:
        """Return the next offset of each partition."""
        with self._lock:
            return dict(self._positions)

    def figures(self) -> KeyMemoryFigures:
        """Return what is held."""
        with self._lock:
            states = [*self._states.values()]
            return KeyMemoryFigures(
                keys=sum(len(one.slots) for one in states),
                bytes=sum(one.nbytes for one in states),
                evicted=sum(one.evicted for one in states),
            )

    def replace(self, partition: Partition, position: int, state: KeyWindows | None) -> None:
        """Go on with another state of a partition, which holds at this offset; None begins empty."""
        with self._lock:
            self._states[partition] = KeyWindows(self.layout) if state is None else state
            self._positions[partition] = position
            self._clock = max(self._clock, self._states[partition].slots.records)

    def take(self, decoded: Decoded) -> None:
        """Take in the rows of a chunk from where its partition's state ends; what comes before is not read twice."""
        partition = decoded.partition
        taken = taken_of(texts_cut(decoded, self.layout), self.layout)
        with self._lock:
            position = self._positions.setdefault(partition, decoded.start)
            state = self._states.setdefault(partition, KeyWindows(self.layout))
        if position > decoded.start:
            taken = taken.split(position)[1]
        for first in range(0, max(1, len(taken)), _AT_ONCE):
            part = taken.rows(first, first + _AT_ONCE)
            ends = first + _AT_ONCE >= len(taken)
            with self._turn:
                pass
            with self._lock:
                state.slots.advance(self._clock)
                if len(part):
                    state.take(part)
                self._clock = state.slots.records
                end = decoded.end if ends else int(part.offsets[-1]) + 1
                self._positions[partition] = max(position, end)

    def rows(self, decoded: Decoded) -> Mapping[str, Column]:
        """Return the inputs of the model for these records, each as the newest of its key.

        A key that several partitions hold is that of the partition which saw it last. Rows are made here of what is
        held, without what training does for many records of a key at once: of one row that would take most of the time.
        """
        layout, count, steps = self._asked, len(decoded), self._steps
        decoded = texts_cut(decoded, layout)
        columns, seen = taken_of(decoded, layout).columns, np.zeros(count, np.int64)
        sequences = dict[str, Column]()
        for name in layout.in_sequences:
            newest = columns[name]
            shape = (count, layout.length, *newest.shape[1:])
            sequences[name] = np.full(shape, b"" if newest.dtype == object else 0, newest.dtype)
            sequences[name][:, -1] = newest
        held = as_held(decoded.features[self.layout.options.by or ""])
        with self._turn, self._lock:
            for rows, state, slots in self._found(held):
                seen[rows], before = state.before(slots, steps)
                for name, sequence in sequences.items():
                    sequence[rows, :-1] = before[name]
        lengths = np.minimum(seen // layout.options.dilation + 1, layout.length)
        inputs = {
            name: sequences.get(of_feature(name), np.asarray(column)) for name, column in decoded.features.items()
        }
        if layout.options.lengths is not None:
            inputs[layout.options.lengths] = lengths.astype(np.int32)
        if layout.options.gaps is not None:
            inputs[layout.options.gaps] = gaps_of(sequences[TIMES], lengths)
        return inputs

    def _found(self, held: list[Key]) -> list[tuple[Int64s, KeyWindows, Int64s]]:
        """Return by state which of some keys are its own, and their places."""
        found: dict[int, tuple[KeyWindows, int]] = {}
        for state in self._states.values():
            for index, slot in enumerate(state.slots.slots_of(held)):
                if slot < 0:
                    continue
                other = found.get(index)
                if other is None or state.slots.seen_at(slot) > other[0].slots.seen_at(other[1]):
                    found[index] = state, slot
        parts: dict[int, tuple[KeyWindows, list[int], list[int]]] = {}
        for index, (state, slot) in found.items():
            _, rows, slots = parts.setdefault(id(state), (state, [], []))
            rows.append(index)
            slots.append(slot)
        return [(np.array(rows), state, np.array(slots)) for state, rows, slots in parts.values()]
