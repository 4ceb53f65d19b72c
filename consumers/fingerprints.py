"""Fingerprints: how a partition is recognised, because a topic that was created again has the same name.

Owns the facts of one record: its offset, its time, and a checksum of its key and value, never the value itself. Pure;
runs anywhere. One fingerprint is taken per chunk, of its last record, so it costs nothing per record.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple
from zlib import crc32


class Sameness(StrEnum):
    """Whether a partition is the one whose records were settled."""

    SAME = "same"
    """The record that was settled is still there."""
    DIFFERENT = "different"
    """Another record is at its offset, or the partition ends before the position: the topic was created again."""
    UNKNOWN = "unknown"
    """No fingerprint was recorded, or retention or compaction has removed the record."""
    TRUNCATED = "truncated"
    """The record is there, but the partition ends before the position: Kafka has lost its end."""


class Fingerprint(NamedTuple):
    """The facts of one settled record."""

    offset: int
    timestamp_ms: int
    crc: int
    """CRC-32 of the key followed by the value."""

    @classmethod
    def of(cls, offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None) -> "Fingerprint":
        """Return the fingerprint of a record."""
        return cls(offset, timestamp_ms, crc32(value or b"", crc32(key or b"")))

    @classmethod
    def of_facts(cls, facts: Sequence[int] | None) -> "Fingerprint | None":
        """Return a fingerprint that was stored as JSON, or None where none was recorded."""
        if facts is None:
            return None
        offset, timestamp_ms, crc = facts
        return cls(int(offset), int(timestamp_ms), int(crc))
