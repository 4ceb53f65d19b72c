"""The number of batches of a call, chosen so that a call stays short: nothing is saved or obeyed within one.

With a model that takes a second a step, a call of 16 batches would make a stop or a save wait for 16 seconds. So calls
get fewer batches as steps get longer, but no fewer than needed: each call costs some milliseconds between itself and
the next, which is 2 % for a model of 10 ms a step if calls are cut to 100 ms.

Nothing is known of a model before its first call, and the first blocks are made before that call has returned. So they
have one batch each: a stop during the first seconds waits for a step, not for sixteen. Every call from the first on is
measured, so a fast model has calls of full size after a few of one batch.

Owns the durations of the latest calls; runs on the trainer's thread.
"""

import statistics
from collections import deque

from millrace.pipelines.stream.blocks import CallTarget

AIM_S = 0.25
_CALLS = 5
"""The most calls whose median counts: any call may be delayed, and the first one more than others."""
_SLACK = 1.25
"""The factor by which a new size must differ, so that the size does not change back and forth."""


class CallSize:
    """The size of the next calls."""

    def __init__(self, most: int, aim_s: float = AIM_S) -> None:
        self._most, self._aim_s = most, aim_s
        self._batch_s: deque[float] = deque(maxlen=_CALLS)
        self.target = CallTarget(1)
        """Shared with the stream: the next block that it begins has at most this many batches."""

    def called(self, batches: int, seconds: float) -> None:
        """Record the duration of a call, and change the target if the next calls should have another size."""
        # By batch, so that calls of the size before a change still count.
        self._batch_s.append(seconds / batches)
        # Of two calls the faster one counts: the first one may have warmed something up.
        batch_s = max(1e-9, statistics.median_low(self._batch_s))
        fitting = min(self._most, max(1, round(self._aim_s / batch_s)))
        if not self.target.batches / _SLACK < fitting < self.target.batches * _SLACK:
            self.target.batches = fitting
