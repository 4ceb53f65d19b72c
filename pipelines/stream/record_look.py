"""Looks at whole records, one of many: which fields they hold that nobody reads, and of which types. Never at values.

A record is looked at by a hash of its partition and offset, so these are the same in whatever chunks they come. Runs on
the decode pool's threads; keeps nothing but the number of each partition.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from millrace.consumers.records import Chunk
from millrace.pipelines.stream.decode import Decoded
from millrace.pipelines.stream.offset_mix import mix, salt_of

_MOST_FIELDS = 256
"""Of one record."""
Types = Callable[[bytes], Mapping[str, str] | None]
"""Return the types of a record's fields by source; None for what is no record."""


class TopicLook(NamedTuple):
    """How the records of a topic are looked at."""

    types: Types
    read: frozenset[str]
    """The sources that are read."""
    share: int
    """One of so many records is looked at."""


class RecordLook:
    """Looks at records."""

    def __init__(self, of: Callable[[str], TopicLook | None]) -> None:
        """Look by what `of` returns for a topic; None means that its format names no fields."""
        self._of = of

    def __call__(self, chunk: Chunk, decoded: Decoded) -> tuple[tuple[int, Mapping[str, str]], ...]:
        """Return of some rows the types of the fields that nobody reads, by their places among the rows."""
        look = self._of(chunk.partition.topic)
        if look is None:
            return ()
        hashes = mix(decoded.offsets + np.int64(salt_of(str(chunk.partition)))).view(np.uint64)
        found = list[tuple[int, Mapping[str, str]]]()
        for row in np.flatnonzero(hashes < np.uint64(2**64 // look.share)).tolist():
            value = chunk.values[int(chunk.offsets.searchsorted(decoded.offsets[row]))]
            types = None if value is None else look.types(value)
            if types is not None:
                unread = [(name, one) for name, one in types.items() if name not in look.read]
                found.append((row, dict(unread[:_MOST_FIELDS])))
        return tuple(found)
