"""What a member waits for between its calls: the other members, or records of its own.

The words of the members carry how long each has waited for the others, so all know who is the slow one.
"""

import time
from collections.abc import Callable

from training.group.own_stream import OwnStream
from training.telemetry.meter import Meter

_WAIT_S = 0.05
"""The longest wait for a block between two exchanges: so long a member with a block may wait for one without."""
_REST_S = 0.02
"""Between two exchanges while the group is paused or held."""


class Waits:
    """The waits of one member, on the trainer's thread."""

    def __init__(self, meter: Meter, clock: Callable[[], float]) -> None:
        self._meter, self._clock = meter, clock
        self.for_others_s = 0.0
        """Seconds of this process."""

    def exchanged(self, seconds: float) -> None:
        """Count the duration of an exchange, which ends when the last member has come to it."""
        self.for_others_s += seconds
        self._meter.waited_for_workers(seconds)

    def pause(self, own: OwnStream) -> None:
        """Wait a moment for a block of this member's own; with one ready, the next exchange waits for the others."""
        began = self._clock()
        own.wait(_WAIT_S)
        self._meter.waited(self._clock() - began)

    def rest(self) -> None:
        """Sleep a moment that counts for nothing, as the group is paused or held."""
        time.sleep(_REST_S)
