"""A detector: Page and Hinkley's test on the mean loss, which marks where the loss of the stream rises.

    training:
      detectors: [./page_hinkley.py:PageHinkley]

The test sums up by how much the loss exceeds its own mean so far, less a tolerance, and marks where that sum is far
above its least value. Afterwards it begins again. `millrace validate` checks it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from millrace.training.detectors.detector import CallEnd, CallSums, Detector, Mark

TOLERATED, THRESHOLD = 0.02, 5.0
"""In units of the mean loss: a rise that is no change, and the sum of rises that is one."""
FIRST = 30
"""Calls from which the mean is learnt before anything is marked."""


class PageHinkley(Detector):
    """Marks rises of the mean loss."""

    def __init__(self) -> None:
        self.calls, self.mean, self.above, self.least = 0, 0.0, 0.0, 0.0

    def update(self, sums: CallSums, at: CallEnd) -> Sequence[Mark]:
        """Take in the mean loss of a call."""
        loss = sums.mean_loss
        if not math.isfinite(loss):
            return []
        self.calls += 1
        self.mean += (loss - self.mean) / self.calls
        self.above += loss - self.mean * (1 + TOLERATED)
        self.least = min(self.least, self.above)
        if self.calls < FIRST or self.above - self.least <= THRESHOLD * abs(self.mean):
            return []
        before = self.mean
        self.calls, self.mean, self.above, self.least = 0, 0.0, 0.0, 0.0
        return [Mark(f"the mean loss rose from {before:.3g} to {loss:.3g}", {"before": before, "loss": loss})]

    def saved(self) -> Mapping[str, Any]:
        """Return the four numbers."""
        return {"calls": self.calls, "mean": self.mean, "above": self.above, "least": self.least}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take them back."""
        self.calls, self.mean = state["calls"], state["mean"]
        self.above, self.least = state["above"], state["least"]
