"""The open block: the arrays of one call, filled slice by slice, and closed into shapes that never change.

Owns the block's arrays and the counts of its spans. The arrays are allocated once and handed over when the block
closes. The assembler calls it on the feed's thread.
"""

import math
import time
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Self

import numpy as np
import numpy.typing as npt

from millrace.consumers.fingerprints import Fingerprint
from millrace.consumers.records import Partition
from millrace.pipelines.schema import Schema
from millrace.pipelines.stream.blocks import Block, BlockFacts, Rows, Span, Turn
from millrace.pipelines.stream.offset_counts import OffsetCounts
from millrace.pipelines.stream.slices import Slice


@dataclass(slots=True)
class _OpenSpan:
    """The span of one partition while its block is open."""

    index: int
    start: int
    end: int
    first_row: int | None = None
    counts: OffsetCounts = field(default_factory=OffsetCounts)
    fingerprint: Fingerprint | None = None

    def add(self, piece: Slice) -> None:
        """Count a slice. Raise ValueError unless it continues the span: a gap here would lose records."""
        if piece.start != self.end:
            raise ValueError(f"offsets {self.end} to {piece.start} are missing before a slice of a block")
        if piece.rows and self.first_row is None:
            self.first_row = int(piece.decoded.offsets[piece.first])
        self.end = piece.end
        self.counts += piece
        self.fingerprint = piece.fingerprint or self.fingerprint

    def append(self, other: Self) -> None:
        """Add a span that continues this one. Raise ValueError unless it does."""
        if other.start != self.end:
            raise ValueError(
                f"offsets {self.end} to {other.start} are missing between a block and a batch that joins it"
            )
        self.first_row = other.first_row if self.first_row is None else self.first_row
        self.end = other.end
        self.counts += other.counts
        self.fingerprint = other.fingerprint or self.fingerprint

    def close(self, partition: Partition) -> Span:
        """Return the span, frozen."""
        return Span(
            partition=partition,
            index=self.index,
            start=self.start,
            end=self.end,
            fingerprint=self.fingerprint,
            **self.counts.fields(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """What the assembler adds to the facts of a block when it closes."""

    number: int
    incarnation: int
    seed: int
    shuffle: bool
    turn: Turn | None


class OpenBlock:
    """A block that still takes rows."""

    def __init__(self, schema: Schema, batch_size: int, capacity: int) -> None:
        self.capacity = capacity
        self.rows = 0
        self.nbytes = 0
        """Its portion of the memory of the chunks that filled it."""
        self.fetched_at, self._decoding = math.inf, (0.0, 0.0)
        self._batch_size = batch_size
        size = -(-capacity // batch_size) * batch_size
        self._features = {spec.name: np.empty((size, *spec.shape), spec.numpy_dtype) for spec in schema.inputs}
        self._labels = {spec.name: np.empty((size, *spec.shape), spec.numpy_dtype) for spec in schema.targets}
        self._weights = np.empty(size, np.float32)
        self._offsets = np.empty(size, np.int64)
        self._partitions = np.empty(size, np.int32)
        self._oldest_ms = self._newest_ms = 0
        self._spans: dict[Partition, _OpenSpan] = {}

    @property
    def room(self) -> int:
        """The number of rows that the block can still take."""
        return self.capacity - self.rows

    @property
    def covers(self) -> bool:
        """Whether it covers any offset yet."""
        return bool(self._spans)

    def add(self, index: int, piece: Slice) -> None:
        """Copy a slice into the block, and count its offsets. `index` is the partition's place in the table."""
        decoded = piece.decoded
        if decoded.partition not in self._spans:
            self._spans[decoded.partition] = _OpenSpan(index=index, start=piece.start, end=piece.start)
        self._spans[decoded.partition].add(piece)
        if decoded.fetched_at < self.fetched_at:
            self.fetched_at, self._decoding = decoded.fetched_at, decoded.decoding
        if not piece.rows:
            return
        here, taken = slice(self.rows, self.rows + piece.rows), slice(piece.first, piece.last)
        for name, array in self._features.items():
            array[here] = decoded.features[name][taken]
        for name, array in self._labels.items():
            array[here] = decoded.labels[name][taken]
        self._weights[here] = 1.0 if decoded.weights is None else decoded.weights[taken]
        self._offsets[here] = decoded.offsets[taken]
        self._partitions[here] = index
        times = decoded.event_times[taken]
        oldest, newest = int(times.min()), int(times.max())
        self._oldest_ms = min(self._oldest_ms, oldest) if self.rows else oldest
        self._newest_ms = max(self._newest_ms, newest) if self.rows else newest
        self.rows += piece.rows
        self.nbytes += decoded.nbytes * piece.rows // len(decoded.offsets)

    def append(self, other: Self) -> None:
        """Add all rows and offsets of another block, which continues this one and is not used afterwards."""
        for partition, span in other._spans.items():
            if partition in self._spans:
                self._spans[partition].append(span)
            else:
                self._spans[partition] = span
        if other.fetched_at < self.fetched_at:
            self.fetched_at, self._decoding = other.fetched_at, other._decoding
        self.nbytes += other.nbytes
        if not other.rows:
            return
        here, taken = slice(self.rows, self.rows + other.rows), slice(other.rows)
        for name, array in self._features.items():
            array[here] = other._features[name][taken]
        for name, array in self._labels.items():
            array[here] = other._labels[name][taken]
        self._weights[here] = other._weights[taken]
        self._offsets[here] = other._offsets[taken]
        self._partitions[here] = other._partitions[taken]
        self._oldest_ms = min(self._oldest_ms, other._oldest_ms) if self.rows else other._oldest_ms
        self._newest_ms = max(self._newest_ms, other._newest_ms) if self.rows else other._newest_ms
        self.rows += other.rows

    def close(self, closing: Closing) -> Block:
        """Return the block: rows permuted, the last batch filled up with absent rows, columns shaped to [k, B, ...].

        The arrays go to the block, so no rows can be added afterwards.
        """
        batches = -(-self.rows // self._batch_size)
        # By each partition's first row, so that it does not depend on where chunks are cut.
        firsts = [
            f"{partition} {span.first_row}" for partition, span in self._spans.items() if span.first_row is not None
        ]
        text = "\n".join([str(closing.seed), *sorted(firsts)])
        # Not `hash`, which differs from process to process. The shift leaves 63 bits, which fit an int64.
        seed = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
        # PCG64 by name: the default generator may change with a new numpy, and a replay must shuffle alike.
        order = np.random.Generator(np.random.PCG64(seed)).permutation(self.rows) if closing.shuffle else None
        facts = BlockFacts(
            number=closing.number,
            incarnation=closing.incarnation,
            spans=tuple(
                span.close(partition)
                for partition, span in sorted(self._spans.items(), key=lambda entry: entry[1].index)
            ),
            batches=batches,
            rows=self.rows,
            seed=seed,
            fetched_at=self.fetched_at,
            oldest_ms=self._oldest_ms,
            newest_ms=self._newest_ms,
            turn=closing.turn,
            decoding=self._decoding,
            assembled_at=time.monotonic(),
        )
        return Block(facts, self._shaped(batches, order), self.nbytes)

    def _shaped(self, batches: int, order: npt.NDArray[np.int64] | None) -> Rows:
        size, shape = batches * self._batch_size, (batches, self._batch_size)
        places = np.arange(self.rows, size)
        kept = [*self._features.values(), *self._labels.values()]
        for array in (*kept, self._weights, self._offsets, self._partitions):
            # Permute the present rows in place, and fill the absent rows with copies of them.
            if order is not None:
                array[: self.rows] = array[: self.rows].take(order, axis=0)
            # Not zeros: a BatchNormalization, which `training.proof: warn` admits, ignores weights. With 16 rows of
            # mean 5 in a batch of 256 its moving mean is 0.3 beside zeros, and 4.5 to 5 beside copies.
            if places.size:
                array[self.rows : size] = array[places % self.rows]
        absent = slice(self.rows, size)
        self._weights[absent], self._offsets[absent], self._partitions[absent] = 0.0, -1, -1
        return Rows(
            features={name: array[:size].reshape(*shape, *array.shape[1:]) for name, array in self._features.items()},
            labels={name: array[:size].reshape(*shape, *array.shape[1:]) for name, array in self._labels.items()},
            weights=self._weights[:size].reshape(shape),
            offsets=self._offsets[:size].reshape(shape),
            partitions=self._partitions[:size].reshape(shape),
        )
