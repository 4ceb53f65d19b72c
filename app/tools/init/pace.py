"""How much to learn from each record: batch size, passes and learning rate, by how fast the records come. Pure.

The number of updates a record decides how soon a small model learns a change. So a draft makes as many
as a core has the time for: for a slow topic small batches, each learnt several times, for a fast one large batches.
"""

from dataclasses import dataclass

_LADDER = ((32, 4), (32, 2), (32, 1), (64, 1), (128, 1), (256, 1), (512, 1), (1024, 1))
"""Batch sizes and passes, those with the most updates a record first."""
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
    learning_rate: float
    why: str
    """A sentence or two for the drafted file."""


def pace_for(
    held: int, records_per_s: float | None, *, slow: bool = False, images: bool = False, rare: bool = False
) -> Pace:
    """Return the pace for a topic that holds so many records and gets so many a second; None where that is unknown.

    `slow` says that the model has layers that compute much, `images` that it learns them, and `rare` that of one class
    very few records come.
    """
    updates_per_s = _SLOW_UPDATES_PER_S if slow else _UPDATES_PER_S
    needed = max(_HEADROOM * (records_per_s or 0.0), held / _CATCH_UP_S)
    batch_size, passes = next(
        ((size, times) for size, times in _LADDER if size * updates_per_s / times >= needed), _LADDER[-1]
    )
    come = (
        "it is not known how fast more come" if records_per_s is None else f"about {_spoken(records_per_s)} more come"
    )
    if rare:
        passes = 1
        so = "each batch is learnt once, at a low rate, as one class is rare: its few records would be learnt by heart"
    elif passes > 1:
        so = f"slow enough to learn small batches, each {passes} times: the more updates, the sooner a change is learnt"
    elif batch_size == _LADDER[0][0]:
        so = "slow enough for small batches: the more updates, the sooner a change is learnt"
    else:
        so = "too fast for smaller batches, with which a change would be learnt sooner"
    return Pace(
        batch_size=batch_size,
        passes=passes,
        learning_rate=_LOW_RATE if images or rare else _RATE,
        why=f"The topic holds {held:,} records, and {come}: {so}.",
    )


def _spoken(records_per_s: float) -> str:
    if records_per_s >= 1:
        return f"{float(f'{records_per_s:.2g}'):,.0f} a second"
    return f"{float(f'{records_per_s * 3600:.2g}'):,.0f} an hour"
