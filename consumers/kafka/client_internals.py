"""What the Kafka client holds of records that were fetched and not yet taken; no public call of it tells.

Owns nothing. Reads the client's own books, one look at a time, from any thread: a copy of the results is taken at once,
so it matters to nobody that the loop goes on meanwhile.
"""

from typing import Any


def buffered_bytes(consumer: Any) -> int:
    """Bytes as they came over the wire. A result is held whole until the last of its records is taken."""
    results = tuple(consumer._fetcher._records.values())  # noqa: SLF001 - nothing public tells
    return sum(map(_bytes_of, results))


def _bytes_of(result: Any) -> int:
    """An error that waits to be raised holds nothing; neither does a result that was just used up."""
    records = getattr(getattr(result, "_partition_records", None), "_records", None)
    return 0 if records is None else int(records.size_in_bytes())
