"""Chunks, which travel from Kafka to the decoders: the records of one partition from one poll, as columns.

Owns the types that all of `consumers` shares; runs anywhere; imports neither aiokafka nor TensorFlow.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.consumers.fingerprints import Fingerprint
from millrace.consumers.units import whole_number

Int64s = npt.NDArray[np.int64]
Headers = Sequence[tuple[str, bytes]]


class Partition(NamedTuple):
    """A partition of a topic. Sorts by topic, then number."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.number}"

    @classmethod
    def parse(cls, text: str) -> "Partition":
        """Parse `topic:number`, the form that `str` writes. Raises ValueError."""
        topic, _, digits = text.rpartition(":")
        if not topic or (number := whole_number(digits)) is None:
            raise ValueError(f"{text!r} is not a partition; write topic:number, as in clicks:0")
        return cls(topic, number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """The records of one partition from one poll. It covers every offset of [start, end), present or not."""

    partition: Partition
    incarnation: int
    start: int
    """The first offset that it covers, which is the `end` of the partition's previous chunk."""
    end: int
    """One past the last offset that it covers, gaps at the end (control records) included."""
    offsets: Int64s
    timestamps: Int64s
    """Kafka's timestamps, in milliseconds since 1970."""
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Headers]
    nbytes: int
    """Its approximate size in memory: keys, values, headers and a constant per record."""
    fetched_at: float
    """When the poll returned, on the monotonic clock."""
    lost: int = 0
    """Offsets inside [start, end) that Kafka's retention removed before they were read."""
    fingerprint: Fingerprint | None = None
    """The fingerprint of its last record; None where it has no record."""

    def __len__(self) -> int:
        return len(self.values)

    def split(self, at: int) -> "tuple[Chunk, Chunk]":
        """Return the part before an offset that it covers, and the part from there on."""
        row = int(self.offsets.searchsorted(at))
        last = self.fingerprint if row == len(self) else None
        return (
            replace(self._rows(slice(row)), end=at, fingerprint=last),
            replace(self._rows(slice(row, None)), start=at, lost=0, fingerprint=None if last else self.fingerprint),
        )

    def at(self, rows: Int64s) -> "Chunk":
        """Return the records at these places, which ascend; it covers the same offsets."""
        places = rows.tolist()
        return replace(
            self,
            offsets=self.offsets[rows],
            timestamps=self.timestamps[rows],
            # Records of files have values alone.
            keys=self.keys and [self.keys[row] for row in places],
            values=[self.values[row] for row in places],
            headers=self.headers and [self.headers[row] for row in places],
            nbytes=self.nbytes * len(places) // max(1, len(self)),
        )

    def _rows(self, rows: slice) -> "Chunk":
        count = len(range(*rows.indices(len(self))))
        return replace(
            self,
            offsets=self.offsets[rows],
            timestamps=self.timestamps[rows],
            keys=self.keys[rows],
            values=self.values[rows],
            headers=self.headers[rows],
            nbytes=self.nbytes * count // max(1, len(self)),
        )
