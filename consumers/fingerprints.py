"""Fingerprints: by what a partition is known again, since a topic that is created anew bears the same name.

Owns the small fact of one record: its place, its time, and a checksum of what it held, never the value itself. Pure;
runs anywhere. One is taken a chunk, of its last record, so it costs nothing a record.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple
from zlib import crc32


class Sameness(StrEnum):
    """What is known of a partition."""

    SAME = "same"
    """The record is there as it was settled."""
    DIFFERENT = "different"
    """Another record is there, or the partition ends before the position: another topic bears the name."""
    UNKNOWN = "unknown"
    """None was kept, or retention or compaction has removed it."""
    TRUNCATED = "truncated"
    """The record is there, and yet the partition ends before the position: Kafka has lost its end."""


class Fingerprint(NamedTuple):
    """One record that was settled."""

    offset: int
    timestamp_ms: int
    crc: int
    """CRC-32 of key and value, one after the other."""

    @classmethod
    def of(cls, offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None) -> "Fingerprint":
        """Take it of a record as Kafka has it."""
        return cls(offset, timestamp_ms, crc32(value or b"", crc32(key or b"")))

    @classmethod
    def of_facts(cls, facts: Sequence[int] | None) -> "Fingerprint | None":
        """Out of JSON; None where none was kept."""
        if facts is None:
            return None
        offset, timestamp_ms, crc = facts
        return cls(int(offset), int(timestamp_ms), int(crc))
