"""What a member waits for between its calls: the other members, or records of its own.

The words of the members carry how long each has waited for the others, so all know who is the slow one.
"""

import time
from collections.abc import Callable

from training.telemetry.meter import Meter

_SHORTEST_S, _LONGEST_S = 0.001, 0.02
"""Between two exchanges while nothing is ready: the first pause, which doubles up to the second."""
_DOUBLINGS = 10


class Waits:
    """The waits of one member, on the trainer's thread."""

    def __init__(self, meter: Meter, clock: Callable[[], float]) -> None:
        self._meter, self._clock = meter, clock
        self._quiet = 0
        self.for_others_s = 0.0
        """Seconds of this process."""

    def exchanged(self, seconds: float) -> None:
        """Count the duration of an exchange, which ends when the last member has come to it."""
        self.for_others_s += seconds
        self._meter.waited_for_workers(seconds)

    def worked(self) -> None:
        """Note a call: the next pause is a short one."""
        self._quiet = 0

    def pause(self, *, ready: bool) -> None:
        """Sleep a moment: with a block `ready` for the blocks of the others, else for one of this member's own."""
        began = self._clock()
        self.rest()
        seconds = self._clock() - began
        if ready:
            self.exchanged(seconds)
        else:
            self._meter.waited(seconds)

    def rest(self) -> None:
        """Sleep a moment that counts for nothing, as the group is paused or held."""
        time.sleep(min(_SHORTEST_S * 2**self._quiet, _LONGEST_S))
        self._quiet = min(self._quiet + 1, _DOUBLINGS)
