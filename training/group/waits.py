"""What a member waits for between its calls: the other members, or records of its own.

The words of the members carry how long each has waited for the others, so all know who is the slow one.
"""

import time
from collections.abc import Callable

from millrace.training.group.own_stream import OwnStream
from millrace.training.recovery.step_errors import Standing
from millrace.training.telemetry.meter import Meter

_WAIT_S = 0.05
"""The longest wait of a member that expects no block: so long another with a block may wait for it."""
_EXPECTING_S = 0.25
"""The longest wait of one that expects a block, within the group's patience, in which the others wait for it anyway."""
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

    def pause(self, own: OwnStream, standing: Standing, patience_s: float) -> None:
        """Wait a moment for a block of this member's own; with one ready, the next exchange waits for the others.

        `patience_s` is how much longer the others wait for a block that is expected. An exchange takes about 1 ms of
        CPU, so none is made before it can change anything.
        """
        began = self._clock()
        own.wait(max(_WAIT_S, min(_EXPECTING_S, patience_s)) if own.expects else _WAIT_S, standing)
        self._meter.waited(self._clock() - began)

    def rest(self) -> None:
        """Sleep a moment that counts for nothing, as the group is paused or held."""
        time.sleep(_REST_S)
