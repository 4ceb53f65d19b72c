"""How many batches a call should have, so that it does not take too long: nothing is saved or obeyed within one.

A model of a second a step would take 16 of them a call, and a stop or a save would wait for all. So calls get shorter
as steps get longer. Not by more than it takes: each call costs some milliseconds between itself and the next, 2 % of a
model of 10 ms a step where calls were cut to 100 ms.

Owns what calls took lately; the trainer's thread.
"""

import statistics
from collections import deque

AIM_S = 0.25
_CALLS = 5
"""Calls to judge by: their median, as a first call is traced and any may be held up."""
_SLACK = 1.25
"""How much another size must differ, so that it does not change to and fro."""


class CallSize:
    """The size of the calls to come."""

    def __init__(self, most: int, aim_s: float = AIM_S) -> None:
        self._most, self._aim_s = most, aim_s
        self._batch_s: deque[float] = deque(maxlen=_CALLS)
        self.batches = most
        """At most so many batches."""

    def called(self, batches: int, seconds: float) -> bool:
        """Take note of a call. Whether the calls to come should have another size."""
        self._batch_s.append(seconds / batches)
        if len(self._batch_s) < _CALLS:
            return False
        fitting = min(self._most, max(1, round(self._aim_s / max(1e-9, statistics.median(self._batch_s)))))
        if self.batches / _SLACK < fitting < self.batches * _SLACK:
            return False
        self.batches = fitting
        return True
