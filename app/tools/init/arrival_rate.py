"""How fast records come to a topic, by the offsets that Kafka finds for points in time.

Pure but for the look-ups that it is given.
"""

import time
from collections.abc import Callable, Mapping

from consumers.kafka.positions import Ago, Latest, Start
from consumers.records import Partition

_SPANS_S = (3_600.0, 86_400.0)
"""The last hour and the last day: the faster of both counts, as a model must keep up with a busy hour too."""
_LEAST_AGE_S = 120.0
"""A younger topic was filled for a trial, at a rate that says nothing."""


def records_per_s(offsets_at: Callable[[Start], Mapping[Partition, int]], oldest_ms: int) -> float | None:
    """Return how many records came a second of late; None if there were none in a day, or the topic is too young.

    `oldest_ms` is the time of the oldest record, milliseconds since 1970.
    """
    age_s = time.time() - oldest_ms / 1000
    if age_s < _LEAST_AGE_S:
        return None
    ends = offsets_at(Latest())
    rates = []
    for seconds in _SPANS_S:
        since = offsets_at(Ago(seconds))
        rates.append(sum(ends[partition] - since[partition] for partition in ends) / min(seconds, age_s))
    return max(rates) or None
