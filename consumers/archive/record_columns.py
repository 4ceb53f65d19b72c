"""The columns of archived records, between arrow's tables and the shape of a chunk. Pure; runs anywhere."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.consumers.records import Chunk, Headers, Int64s

SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field(
            "headers",
            pa.list_(
                pa.field(
                    "element",
                    pa.struct([pa.field("name", pa.string(), nullable=False), pa.field("value", pa.binary())]),
                    nullable=False,
                )
            ),
            nullable=False,
        ),
    ]
)
"""What a shard holds of each record: everything that Kafka has of it."""
EMPTY = SCHEMA.empty_table()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """Records of one partition in order of offsets, in the shape of a `Chunk`."""

    offsets: Int64s
    timestamps: Int64s
    """Kafka's timestamps, in milliseconds since 1970."""
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Headers]

    def __len__(self) -> int:
        return len(self.values)

    def behind(self, offset: int) -> "RecordColumns":
        """Return the records at this offset and behind it."""
        at = int(self.offsets.searchsorted(offset))
        return self if at == 0 else self._slice(at, len(self))

    def before(self, offset: int) -> "RecordColumns":
        """Return the records before this offset."""
        at = int(self.offsets.searchsorted(offset))
        return self if at == len(self) else self._slice(0, at)

    def split(self, most: int) -> Iterator["RecordColumns"]:
        """Yield the records, at most `most` at a time."""
        for start in range(0, len(self), most):
            yield self._slice(start, start + most)

    def _slice(self, start: int, end: int) -> "RecordColumns":
        return RecordColumns(
            offsets=self.offsets[start:end],
            timestamps=self.timestamps[start:end],
            keys=self.keys[start:end],
            values=self.values[start:end],
            headers=self.headers[start:end],
        )


def to_table(chunks: Sequence[Chunk]) -> pa.Table:
    """Return the records of some chunks as one table."""
    return pa.Table.from_batches([_batch(chunk) for chunk in chunks], SCHEMA).combine_chunks()


def to_arrow(columns: RecordColumns) -> pa.Table:
    return pa.Table.from_batches([_batch(columns)], SCHEMA)


def from_table(table: pa.Table) -> RecordColumns:
    (batch,) = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], SCHEMA)]
    return from_batch(batch)


def from_batch(batch: pa.RecordBatch) -> RecordColumns:
    """Return a batch's records as columns; where it was read without keys or headers they count as absent."""
    names = batch.schema.names
    return RecordColumns(
        offsets=_int64s(batch.column("offset")),
        timestamps=_int64s(batch.column("timestamp")),
        keys=_bytes(batch.column("key")) if "key" in names else [None] * len(batch),
        values=_bytes(batch.column("value")),
        headers=_headers(batch.column("headers")) if "headers" in names else [()] * len(batch),
    )


def _batch(chunk: Chunk | RecordColumns) -> pa.RecordBatch:
    timestamps = pa.array(chunk.timestamps, pa.int64()).cast(SCHEMA.field("timestamp").type)
    some_keys = any(chunk.keys) or b"" in chunk.keys
    keys = pa.array(chunk.keys, pa.binary()) if some_keys else pa.nulls(len(chunk.keys), pa.binary())
    return pa.RecordBatch.from_arrays(
        [
            pa.array(chunk.offsets, pa.int64()),
            timestamps,
            keys,
            pa.array(chunk.values, pa.binary()),
            _headers_array(chunk.headers),
        ],
        schema=SCHEMA,
    )


def _headers_array(headers: Sequence[Headers]) -> pa.Array:
    kind = SCHEMA.field("headers").type
    # Most topics have no headers at all, and a loop over the records would cost as much as the values.
    if not any(headers):
        return pa.ListArray.from_arrays(np.zeros(len(headers) + 1, np.int32), _pairs([]), type=kind)
    ends = np.zeros(len(headers) + 1, np.int32)
    np.cumsum([len(record_headers) for record_headers in headers], out=ends[1:])
    return pa.ListArray.from_arrays(ends, _pairs([pair for each in headers for pair in each]), type=kind)


def _pairs(pairs: Sequence[tuple[str, bytes]]) -> pa.StructArray:
    kind = SCHEMA.field("headers").type.value_type
    names = pa.array([name for name, _ in pairs], pa.string())
    values = pa.array([value for _, value in pairs], pa.binary())
    return pa.StructArray.from_arrays([names, values], fields=list(kind))


def _int64s(column: pa.Array) -> Int64s:
    numbers: Int64s = column.cast(pa.int64()).to_numpy()
    return numbers


def _bytes(column: pa.Array) -> list[bytes | None]:
    if column.null_count == len(column):
        return [None] * len(column)
    # Through numpy: to_pylist makes a scalar of each element first, and takes five times as long.
    values: list[bytes | None] = column.to_numpy(zero_copy_only=False).tolist()
    return values


def _headers(column: pa.ListArray) -> list[Headers]:
    pairs = column.flatten()
    if not len(pairs):
        return [()] * len(column)
    names = pairs.field(0).to_numpy(zero_copy_only=False).tolist()
    values = _bytes(pairs.field(1))
    every: list[Any] = list(zip(names, values, strict=True))
    # The offsets of a slice do not begin at 0, but its flattened elements do.
    ends = (column.offsets.to_numpy() - column.offsets[0].as_py()).tolist()
    return [tuple(every[start:end]) for start, end in pairwise(ends)]
