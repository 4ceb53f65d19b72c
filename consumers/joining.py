"""Joining consecutive chunks, so that many small ones are decoded as a few larger ones.

At a thousand records a second Kafka answers with one or two records at a time, and decoding a chunk costs half a
millisecond however small it is. In a backlog decoders wait for Python's lock, which they let go many times a chunk
however large it is: with chunks of 16,384 records two of them decode a tenth more than with 4,096. Joining never waits:
it takes only chunks that are queued already, so joined chunks grow with the backlog. Pure; runs on the receiver's
thread.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from millrace.consumers.records import Chunk

JOINED_RECORDS = 16_384
"""Most records of a joined chunk. Of twice as many JSON gains nothing."""
JOINED_BYTES = 4 * 1024 * 1024
"""Most bytes of a joined chunk, and of the rows that it becomes."""
_JOINED_MS = 1000
"""Longest time between the first record and the last, so that a backlog is still taken in order of time."""


def follows(chunk: Chunk, before: Chunk) -> bool:
    """Return whether a chunk starts where the other ends, with nothing lost in either."""
    # A lost range stays a chunk of its own: joined with others, its offsets could not be told from gaps.
    same_source = chunk.partition == before.partition and chunk.incarnation == before.incarnation
    return same_source and chunk.start == before.end and not chunk.lost and not before.lost


def together(first: Chunk, last: Chunk) -> bool:
    """Return whether the records from the first chunk to the last have about the same time."""
    return not len(first) or not len(last) or int(last.timestamps[-1]) - int(first.timestamps[0]) <= _JOINED_MS


def joined(chunks: Sequence[Chunk]) -> Chunk:
    """Return consecutive chunks as one chunk, which is as old as the oldest of them."""
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
