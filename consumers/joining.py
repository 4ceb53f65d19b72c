"""Joining chunks that came one behind the other, so that a trickle of small ones is decoded as few larger ones.

At a thousand records a second Kafka answers with one or two records at a time, and a chunk costs half a millisecond to
decode, however small. Nothing is waited for: only what is queued anyway is joined, so the more there is to catch up
with, the larger the pieces are. Pure; runs on the receiver's thread.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from consumers.records import Chunk

JOINED_RECORDS = 4096
"""Up to so many; what is larger needs no company."""
JOINED_BYTES = 2 * 1024 * 1024
_JOINED_MS = 1000
"""Up to so long a time between the first record and the last, so that a backlog is still taken in order of time."""


def follows(chunk: Chunk, before: Chunk) -> bool:
    """Whether a chunk goes on where the other ends, with nothing lost in between."""
    same = chunk.partition == before.partition and chunk.incarnation == before.incarnation
    return same and chunk.start == before.end and not chunk.lost and not before.lost


def together(first: Chunk, last: Chunk) -> bool:
    """Whether what lies between is of about the same time."""
    return not len(first) or not len(last) or int(last.timestamps[-1]) - int(first.timestamps[0]) <= _JOINED_MS


def joined(chunks: Sequence[Chunk]) -> Chunk:
    """One chunk of several that follow each other; as old as the first."""
    first, last = chunks[0], chunks[-1]
    if len(chunks) == 1:
        return first
    return replace(
        first,
        end=last.end,
        offsets=np.concatenate([chunk.offsets for chunk in chunks]),
        timestamps=np.concatenate([chunk.timestamps for chunk in chunks]),
        keys=[key for chunk in chunks for key in chunk.keys],
        values=[value for chunk in chunks for value in chunk.values],
        headers=[headers for chunk in chunks for headers in chunk.headers],
        nbytes=sum(chunk.nbytes for chunk in chunks),
        fetched_at=min(chunk.fetched_at for chunk in chunks),
        fingerprint=next((chunk.fingerprint for chunk in reversed(chunks) if chunk.fingerprint is not None), None),
    )
