"""A stream into which single records of a kind can be put at will."""

from collections import deque
from collections.abc import Callable
from random import Random

from millrace.consumers.reasons import Reason
from tests.faults.harness.records import POISON, ExpectedPosition, Mixture, Verdict

Poison = Callable[[ExpectedPosition, Random], bytes | None]
QUIET = tuple(reason for reason in POISON if reason is not Reason.STEP_RAISED)
"""Every kind but the one that sends the trainer back to its newest checkpoint: that comes when it is wanted."""


class Spiked:
    """A mixture, and what is to come next before it. Any thread may ask for more."""

    def __init__(self, mixture: Mixture) -> None:
        self._mixture = mixture
        self._due: deque[tuple[Reason, Poison]] = deque()

    def spike(self, reason: Reason, poison: Poison | None = None) -> None:
        """Have the next record be of this kind, or this one, which is set aside for that reason."""
        self._due.append((reason, poison or POISON[reason]))

    def draw(self, place: ExpectedPosition, random: Random) -> tuple[bytes | None, Verdict]:
        """Draw one record for this place, and its verdict."""
        if self._due:
            reason, poison = self._due.popleft()
            return poison(place, random), reason
        return self._mixture.draw(place, random)
