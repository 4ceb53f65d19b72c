"""Makes chunks of the records that a poll returned: the hot path of the consumer's loop, below 0.1 µs per record.

Owns nothing; runs on the consumer's loop; knows nothing of aiokafka.
"""

from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter

import numpy as np

from millrace.consumers.fingerprints import Fingerprint
from millrace.consumers.kafka.fetched_columns import FetchedRecord, columns_of
from millrace.consumers.records import Chunk, Headers, Partition

_RECORD_BYTES = 128
"""The size of a record besides its key, value and headers: two bytes objects, list slots, offset, timestamp."""
_CHUNK_BYTES = 512
"""The size of a chunk without records, so that the number of empty chunks is bounded as well."""

_NO_NUMBERS = np.empty(0, np.int64)
_NO_NUMBERS.setflags(write=False)


def records_between(records: Sequence[FetchedRecord], start: int, until: int | None) -> Sequence[FetchedRecord]:
    """Return the records of [start, until); `until` None is no limit."""
    # The common case, that all records lie inside, must cost two comparisons and no copy.
    offset = attrgetter("offset")
    if records and records[0].offset < start:
        records = records[bisect_left(records, start, key=offset) :]
    if until is not None and records and records[-1].offset >= until:
        records = records[: bisect_left(records, until, key=offset)]
    return records


def chunk_of(
    records: Sequence[FetchedRecord], partition: Partition, incarnation: int, *, start: int, end: int, fetched_at: float
) -> Chunk:
    """Return the records as one chunk of columns. There must be at least one record."""
    columns = columns_of(records)
    return Chunk(
        partition=partition,
        incarnation=incarnation,
        start=start,
        end=end,
        offsets=columns.offsets,
        timestamps=columns.timestamps,
        keys=columns.keys,
        values=columns.values,
        headers=columns.headers,
        nbytes=bytes_of(columns.keys, columns.values, columns.headers),
        fetched_at=fetched_at,
        fingerprint=fingerprint_of(records[-1]),
    )


def bytes_of(keys: Sequence[bytes | None], values: Sequence[bytes | None], headers: Sequence[Headers]) -> int:
    """Return the approximate size of a chunk of these columns in memory."""
    nbytes = _CHUNK_BYTES + _RECORD_BYTES * len(values)
    nbytes += sum(map(len, filter(None, values)))
    if any(keys):
        nbytes += sum(map(len, filter(None, keys)))
    # The sum is a loop in Python, which records without headers need not pay for.
    if any(headers):
        nbytes += sum(
            len(name) + len(value or b"") + _RECORD_BYTES
            for record_headers in headers
            for name, value in record_headers
        )
    return nbytes


def fingerprint_of(record: FetchedRecord) -> Fingerprint:
    """Return the fingerprint of a record."""
    return Fingerprint.of(record.offset, record.timestamp, record.key, record.value)


def empty_chunk(
    partition: Partition, incarnation: int, *, start: int, end: int, fetched_at: float, lost: int = 0
) -> Chunk:
    """Return a chunk without records. It moves the position past control records or past what retention removed."""
    return Chunk(
        partition=partition,
        incarnation=incarnation,
        start=start,
        end=end,
        offsets=_NO_NUMBERS,
        timestamps=_NO_NUMBERS,
        keys=(),
        values=(),
        headers=(),
        nbytes=_CHUNK_BYTES,
        fetched_at=fetched_at,
        lost=lost,
    )
