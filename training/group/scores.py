"""What the members have scored, until it is in the live metrics of all.

Losses and states of metrics are the group's at every member; records and labels each member counts for itself. So that
a mean never mixes the two, all of it waits for the next report of all.
"""

import io
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.training.group.meeting import Group
from millrace.training.telemetry.label_sums import LabelSums
from millrace.training.telemetry.live_metrics import LiveMetrics, Sums

_FACTS = "facts"
_LABELS, _WEIGHTED = "labels", "weighted_labels"


class Scores:
    """The sums of one member since the last report."""

    def __init__(self, group: Group, live: LiveMetrics) -> None:
        self._group, self._live = group, live
        self._pending, self._waiting = Sums(), False

    @property
    def waiting(self) -> bool:
        """Whether there is something that no report has told; the same at all members, as calls are everybody's."""
        return self._waiting

    def add(self, sums: Sums) -> None:
        """Take in what a call of this member has scored."""
        self._pending.add(sums)
        self._waiting = True

    def report(self) -> None:
        """Add what all members have scored since the last report to the live metrics of each; called by all."""
        raw = self._group.exchange.gather(_packed(self._pending))
        others = [each for number, each in enumerate(raw) if number != self._group.membership.index]
        scored = _summed_up(self._pending, others)
        if scored.records or scored.states:
            self._live.add(scored)
        self.forget()

    def forget(self) -> None:
        """Drop what is not reported yet, as the state goes back."""
        self._pending, self._waiting = Sums(), False


def _packed(sums: Sums) -> bytes:
    """Return sums as bytes: of the chief's the losses and states are used, and of all the records and labels."""
    arrays: dict[str, npt.NDArray[Any]] = {**sums.labels.arrays(_LABELS), **sums.weighted_labels.arrays(_WEIGHTED)}
    facts = np.array([sums.records, sums.scored], np.int64)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{**arrays, _FACTS: facts})
    return buffer.getvalue()


def _summed_up(mine: Sums, others: Iterable[bytes]) -> Sums:
    """Return what the group has scored: losses and states are the group's already, records and labels each member's."""
    for raw in others:
        with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:
            records, scored = map(int, arrays[_FACTS])
            labels = {name: arrays[name] for name in arrays.files}
        mine.add(
            Sums(
                records=records,
                scored=scored,
                states=[np.zeros_like(state) for state in mine.states],
                labels=LabelSums.of(labels, _LABELS),
                weighted_labels=LabelSums.of(labels, _WEIGHTED),
            )
        )
    return mine
