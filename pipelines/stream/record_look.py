"""Looks at whole records, one of many: which fields they hold that nobody reads, and of which types. Never at values.

Which records are looked at depends on their partition and offset alone, so these are the same in whatever chunks they
come. Runs on the decode pool's threads; keeps nothing.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from millrace.consumers.records import Chunk
from millrace.pipelines.stream.decode import Decoded
from millrace.pipelines.stream.offset_mix import one_of_each, salt_of

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
        rows, _ = one_of_each(decoded.offsets, look.share, np.int64(salt_of(str(chunk.partition))))
        found = list[tuple[int, Mapping[str, str]]]()
        for row in rows.tolist():
            value = chunk.values[int(chunk.offsets.searchsorted(decoded.offsets[row]))]
            types = None if value is None else look.types(value)
            if types is not None:
                unread = [(name, one) for name, one in types.items() if name not in look.read]
                found.append((row, dict(unread[:_MOST_FIELDS])))
        return tuple(found)
