"""How fast records come to a topic, by the offsets that Kafka finds for points in time.

Pure but for the look-ups that it is given.
"""

import time
from collections.abc import Callable, Mapping
from itertools import pairwise

from millrace.consumers.kafka.positions import Ago, Latest, Start
from millrace.consumers.records import Partition

_SPANS_S = (3_600.0, 86_400.0)
"""The last hour and the last day: the faster of both counts, as a model must keep up with a busy hour too."""
_LEAST_AGE_S = 120.0
"""A younger topic was filled for a trial, at a rate that says nothing."""
_PARTS = 12
"""Into this many equal parts a span is divided, to tell a stream from a bulk load."""
_BUSY_PARTS = 3
"""In a stream records come in so many parts at least; a bulk load is over within one or two."""
_RECENT_PARTS = 3
"""In so many of the newest parts of a topic's whole life none has come: it was filled, and is no stream now."""


def records_per_s(offsets_at: Callable[[Start], Mapping[Partition, int]], oldest_ms: int) -> float | None:
    """Return how many records came a second of late; None if that is not known.

    It is not if none came in a day, if the topic is too young, or if its records came in one go, as a bulk load does.
    `oldest_ms` is the time of the oldest record, milliseconds since 1970.
    """
    age_s = time.time() - oldest_ms / 1000
    if age_s < _LEAST_AGE_S:
        return None
    end = sum(offsets_at(Latest()).values())
    rates = []
    for span_s in _SPANS_S:
        seconds = min(span_s, age_s)
        since = [sum(offsets_at(Ago(seconds * part / _PARTS)).values()) for part in range(_PARTS, 0, -1)]
        if _is_stream([*since, end], is_whole_life=age_s < span_s):
            rates.append((end - since[0]) / seconds)
    return max(rates, default=None)


def _is_stream(counts: list[int], *, is_whole_life: bool) -> bool:
    """Return whether records come again and again, by how many there were at the ends of the parts."""
    came = [later > earlier for earlier, later in pairwise(counts)]
    ended = is_whole_life and not any(came[-_RECENT_PARTS:])
    return sum(came) >= _BUSY_PARTS and not ended
