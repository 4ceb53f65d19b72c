"""How many rows a step takes and how often each batch is learnt, by how fast records come.

The number of updates a record decides how soon a small model learns a change. So there are as many as a core has the
time for: for a slow topic small batches, each learnt several times, for a fast one large batches. `init` drafts by it,
`validate` compares with it, and a start settles by it what the config leaves to `auto`.

Pure, except that `records_per_s` asks Kafka through what it is given. Imports no TensorFlow.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

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


_SMALL, _SMALL_BELOW = (8, 4), 100.0
"""The batch size and passes below so many records a second, with a memory. Without it, four passes over the same 8 rows
were 5 points worse on random trees than two."""
_MEMORY = 300
"""The rows of which later passes draw (docs/model.md). Images and sequences were not measured with it."""
_SINCE_DRIFT = 10_000
"""The most records of which the second member draws: since the stream has changed."""
_LADDER = ((32, 8), (32, 4), (32, 2), (32, 1), (64, 1), (128, 1), (256, 1), (512, 1), (1024, 1))
"""Batch sizes and passes of faster streams, those with the most updates a record first."""
_UPDATES_PER_S, _SLOW_UPDATES_PER_S = 1000, 100
"""What a busy core made of a small model's updates in `make bench-streams`, all that belongs to a batch included; and
of small convolutions over 32 images of 32×32 pixels, or a recurrent layer over 32 sequences of 20."""
_HEADROOM = 10
"""How many times as fast as records come they should be learnt, so that what has piled up is soon caught up with."""
_CATCH_UP_S = 600.0
"""Within this time what the topic holds at the first start should be learnt."""
_RATE, _LOW_RATE = 0.003, 0.001
"""Adam's. 0.003 was better than Keras' 0.001, with one pass and with four; but not with images, nor where a class is
rare: of a class of which one in 600 comes, AUC was 0.79 with 0.001 and one pass, 0.76 with 0.003, 0.72 with four."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What a draft proposes, and why."""

    batch_size: int
    passes: int
    memory: int | None
    members: bool
    """Whether members, one of which has such a memory, learn in place of one model."""
    learning_rate: float
    why: str
    """A sentence or two for the drafted file."""

    @property
    def training(self) -> dict[str, Any]:
        """What it is in the settings' section `training`."""
        remembered: dict[str, Any] = {"memory": self.memory} if self.memory else {}
        if self.memory and self.members:
            remembered = {"members": {"recent": self.memory, "since_drift": _SINCE_DRIFT, "once": True}}
        return {"batch_size": self.batch_size, "passes": self.passes, **remembered}


def pace_for(
    held: int,
    records_per_s: float | None,
    *,
    slow: bool = False,
    images: bool = False,
    rare: bool = False,
    passes: int | None = None,
) -> Pace:
    """Return the pace for a topic that holds so many records and gets so many a second; None where that is unknown.

    `slow` says that the model has layers that compute much, `images` that it learns them, and `rare` that of one class
    very few records come. With `passes` that many are made, of the same batch, and only its size is chosen.
    """
    updates_per_s = _SLOW_UPDATES_PER_S if slow else _UPDATES_PER_S
    needed = max(_HEADROOM * (records_per_s or 0.0), held / _CATCH_UP_S)
    ladder: Sequence[tuple[int, int]] = _LADDER[1:] if slow else _LADDER
    is_given = passes is not None
    if passes is not None:
        ladder = [(size, passes) for size, times in _LADDER if times == 1]
    batch_size, passes = next(
        ((size, times) for size, times in ladder if size * updates_per_s / times >= needed), ladder[-1]
    )
    if max(records_per_s or 0.0, held / _CATCH_UP_S) < _SMALL_BELOW and not (slow or rare or is_given):
        batch_size, passes = _SMALL
    if records_per_s is None:
        come = "it is not known how fast more come"
    elif records_per_s >= 1:
        come = f"about {float(f'{records_per_s:.2g}'):,.0f} a second more come"
    else:
        come = f"about {float(f'{records_per_s * 3600:.2g}'):,.0f} an hour more come"
    if rare:
        passes = 1
        so = "each batch is learnt once, at a low rate, as one class is rare: its few records would be learnt by heart"
    elif passes > 1:
        so = f"slow enough for small batches and {passes} passes: the more updates, the sooner a change is learnt"
    elif batch_size == ladder[0][0]:
        so = "slow enough for small batches: the more updates, the sooner a change is learnt"
    else:
        so = "too fast for smaller batches, with which a change would be learnt sooner"
    return Pace(
        batch_size=batch_size,
        passes=passes,
        memory=None if slow or is_given or passes == 1 else _MEMORY,
        # They take twice the updates.
        members=batch_size * updates_per_s / passes >= 2 * needed,
        learning_rate=_LOW_RATE if images or rare else _RATE,
        why=f"The topic holds {held:,} records, and {come}: {so}.",
    )
