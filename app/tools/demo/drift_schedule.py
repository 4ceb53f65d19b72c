"""When the stream's rule changes, by the stream's own clock, which counts records: a restart continues in it.

Two abrupt drifts and a gradual one in the first five minutes, and the same again in each five that follow. Pure.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

CYCLE_S = 300.0
Kind = Literal["abrupt", "gradual"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A change of the rule."""

    number: int
    """The first is 1; before it holds rule 0, after it the rule of its number."""
    kind: Kind
    begins_s: float
    takes_s: float = 0.0
    """Until the new rule holds alone."""

    @property
    def ends_s(self) -> float:
        """The second at which the new rule holds alone."""
        return self.begins_s + self.takes_s


_IN_A_CYCLE: tuple[tuple[Kind, float, float], ...] = (("abrupt", 40, 0), ("gradual", 120, 60), ("abrupt", 240, 0))


def drift(number: int) -> Drift:
    """Return the drift with this number, counted from 1."""
    cycle, place = divmod(number - 1, len(_IN_A_CYCLE))
    kind, begins_s, takes_s = _IN_A_CYCLE[place]
    return Drift(number=number, kind=kind, begins_s=cycle * CYCLE_S + begins_s, takes_s=takes_s)


def last_drift(at_s: float) -> Drift | None:
    """Return the drift that began last; None before the first."""
    number = int(at_s // CYCLE_S) * len(_IN_A_CYCLE)
    while drift(number + 1).begins_s <= at_s:
        number += 1
    return drift(number) if number else None


def next_drift(at_s: float) -> Drift:
    """Return the drift that begins next."""
    last = last_drift(at_s)
    return drift(1 if last is None else last.number + 1)


def drifts_between(after_s: float, until_s: float) -> Iterator[Drift]:
    """Give the drifts that begin in this time."""
    coming = next_drift(after_s)
    while coming.begins_s <= until_s:
        yield coming
        coming = drift(coming.number + 1)
