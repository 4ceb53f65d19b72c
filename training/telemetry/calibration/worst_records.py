"""The records of the window whose answers were furthest from their labels, as offsets. Used on the trainer's thread.

A record is compared by one number of its answer before any logarithm is taken, as this is done for each record.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from millrace.consumers.records import Partition
from millrace.training.telemetry.calibration.figures import WorstRecord
from millrace.training.telemetry.label_sums import Labels
from millrace.training.telemetry.tallies import SURE, WINDOW_PARTS, Answered, Values

MOST_RECORDS = 10
Missed = tuple[float, str, int]
"""How far an answer was off, and of which record."""


class WorstRecords:
    """The worst records of a window."""

    def __init__(self, kind: Labels, window_s: float, clock: Callable[[], float]) -> None:
        self._kind, self._part_s, self._window_s, self._clock = kind, window_s / WINDOW_PARTS, window_s, clock
        self._parts: deque[tuple[float, list[Missed]]] = deque()
        """The worst of each part of the window, as heaps."""

    def add(self, rows: Answered, partitions: Mapping[int, Partition]) -> None:
        """Take in the answers of a call, whose partitions have these places."""
        worst = self._newest()
        missed = _missed(rows, self._kind)
        least = worst[0][0] if len(worst) == MOST_RECORDS else -math.inf
        # Almost always none of them is among the worst.
        if missed.max() <= least:
            return
        some = np.flatnonzero(missed > least)
        if len(some) > MOST_RECORDS:
            some = some[np.argpartition(missed[some], -MOST_RECORDS)[-MOST_RECORDS:]]
        of_rows, offsets = rows.places()
        for row in some.tolist():
            if (partition := partitions.get(int(of_rows[row]))) is not None:
                _push(worst, (float(missed[row]), str(partition), int(offsets[row])))

    def missed(self) -> list[Missed]:
        """Return the worst of each part of the window."""
        return [one for _, part in self._parts for one in part]

    def add_missed(self, found: Iterable[Missed]) -> None:
        """Add the worst records of another worker's calls."""
        worst = self._newest()
        for one in found:
            _push(worst, one)

    def _newest(self) -> list[Missed]:
        """Return the worst of the part of the window that is now, and forget the parts that are too old."""
        began = self._clock() // self._part_s * self._part_s
        if not self._parts or self._parts[-1][0] != began:
            self._parts.append((began, []))
        while self._parts[0][0] < began - self._window_s:
            self._parts.popleft()
        return self._parts[-1][1]

    def found(self) -> tuple[WorstRecord, ...]:
        """Return the worst of the window, the worst first; a record that was learnt twice stands there once."""
        every = sorted({*self.missed()}, key=lambda one: (-one[0], *one[1:]))
        unlike = {(partition, offset): missed for missed, partition, offset in reversed(every)}
        first = sorted(unlike.items(), key=lambda one: (-one[1], one[0]))[:MOST_RECORDS]
        return tuple(WorstRecord(partition, offset, self._loss(missed)) for (partition, offset), missed in first)

    def clear(self) -> None:
        """Forget all: the window must not mix two histories."""
        self._parts.clear()

    def _loss(self, missed: float) -> float:
        return missed if self._kind is Labels.NUMBERS else -math.log(max(SURE, 1 - missed))


def _push(worst: list[Missed], one: Missed) -> None:
    heapq.heappush(worst, one)
    if len(worst) > MOST_RECORDS:
        heapq.heappop(worst)


def _missed(rows: Answered, kind: Labels) -> Values:
    """Return how far each answer is from its label: a number's distance, or the probability of what did not come."""
    if kind in {Labels.CLASSES, Labels.ONE_HOT}:
        return np.asarray(1 - rows.answers[np.arange(len(rows.labels)), rows.labels], np.float32)
    apart = np.subtract(rows.answers, rows.labels.reshape(rows.answers.shape), dtype=np.float32)
    np.abs(apart, out=apart)
    return np.asarray(apart[:, 0] if apart.shape[1] == 1 else apart.max(axis=1))
