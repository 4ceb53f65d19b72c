"""Kafka, as the lives know it: a log with a word at each offset, the records that are made of it, and the retention."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from millrace.consumers.kafka.chunking import chunk_of, empty_chunk
from millrace.consumers.records import Chunk, Headers, Partition
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.schema import Field, Schema

GOOD, GAP, LOST = "good", "gap", "lost"
NAN, RAISES = "bad update_not_finite", "bad step_raised"
UNDECODED: Mapping[str, str | None] = {
    "bad malformed": "{",
    "bad empty": None,
    "bad missing": '{"pair": [1, 2]}',
    "bad wrong_type": '{"id": "7", "pair": [1, 2]}',
    "bad wrong_shape": '{"id": 7, "pair": [1]}',
    "bad out_of_range": '{"id": 9223372036854775808, "pair": [1, 2]}',
    "bad not_finite": '{"id": 7, "pair": [1, NaN]}',
}
BAD = [*UNDECODED, NAN, RAISES]
SCHEMA = Schema(
    features=(
        Field(name="id", source="id", dtype="int64"),
        Field(name="pair", source="pair", dtype="float32", shape=(2,)),
    ),
    labels=(Field(name="y", source="y", dtype="float32", missing=0.0),),
)
DECODER = make_decoder("json", SCHEMA)


class Record(NamedTuple):
    """As the client library would hand it out."""

    offset: int
    value: bytes | None
    timestamp: int = 0
    key: bytes | None = None
    headers: Headers = ()


@dataclass
class Log:
    """Kafka: what stands at each offset, and where the retention has come to."""

    kinds: dict[Partition, list[str]] = field(default_factory=dict)
    firsts: dict[Partition, int] = field(default_factory=dict)

    def add(self, partition: Partition) -> None:
        self.kinds[partition], self.firsts[partition] = [], 0

    def chunk(self, partition: Partition, start: int, count: int, place: tuple[int, float]) -> Chunk | None:
        """Return the next offsets from there on, as the source would send them; None if there are none."""
        incarnation, fetched_at = place
        first, kinds = self.firsts[partition], self.kinds[partition]
        if start < first:
            lost = {"start": start, "end": first, "lost": first - start}
            return empty_chunk(partition, incarnation, fetched_at=fetched_at, **lost)
        end = min(start + count, len(kinds))
        records = [self.record(partition, at) for at in range(start, end) if kinds[at] != GAP]
        if records:
            return chunk_of(records, partition, incarnation, start=start, end=end, fetched_at=fetched_at)
        return empty_chunk(partition, incarnation, start=start, end=end, fetched_at=fetched_at) if end > start else None

    def record(self, partition: Partition, offset: int) -> Record:
        kind = self.kinds[partition][offset]
        if kind not in UNDECODED:
            return Record(offset, json.dumps({"id": identity(partition, offset), "pair": [1, 2]}).encode())
        text = UNDECODED[kind]
        return Record(offset, None if text is None else text.encode())

    def kind_of(self, number: int) -> str:
        """Return the kind of the record that holds this number."""
        partition, offset = divmod(number, 1_000_000)
        return next(kinds[offset] for p, kinds in self.kinds.items() if p.number == partition)


def identity(partition: Partition, offset: int) -> int:
    """Return the number that a record holds: its own place."""
    return partition.number * 1_000_000 + offset
