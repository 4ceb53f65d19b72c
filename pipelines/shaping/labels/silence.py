"""Silence: how long the topics of labels may have nothing new before that means that something is broken.

It is judged by the topics' own past: the longest gaps between labels of each hour of the day. One outage is no habit,
so it is the third longest gap of an hour that counts. Owns these gaps; the reader's thread notes, any thread reads.
"""

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from millrace.consumers.records import Int64s
from millrace.pipelines.shaping.labels.clock import NEVER

_HOUR_MS = 3_600_000
_KEPT = 3
_ENOUGH = 100
"""Fewer labels than this say nothing about how often they come."""
_TIMES = 3
"""A silence of so many times the longest gap is no gap any more."""
_BUSY_MS = 2_000
"""Of topics whose gaps are shorter, no silence at all is taken for an absence: the next label comes soon."""
_LEAST_MS = 1_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """How far quiet partitions may be counted as read."""

    until: int
    """Up to this time, milliseconds since 1970."""
    silent_ms: int | None
    """For how long nothing has come, where that is far too long; None where it is not."""


class Silence:
    """What is known of the gaps between labels."""

    def __init__(self, *, within_ms: int) -> None:
        self._within_ms = within_ms
        self._lock = threading.Lock()
        self._gaps = np.zeros((24, _KEPT), np.int64)
        self._labels = 0
        self._newest = NEVER
        self._orders = list[int]()
        """When people have said that there are none."""
        self._judged_from = NEVER
        """When a silence was first judged; before the first label it counts from then."""

    @property
    def any_came(self) -> bool:
        """Whether any label has come."""
        return self._labels > 0 or self._newest > NEVER

    def note(self, times: Int64s, *, known: bool = False) -> None:
        """Take note of labels that were read; those that were `known` before tell nothing about how often they come."""
        if not len(times):
            return
        with self._lock:
            newest, self._newest = self._newest, max(self._newest, int(times.max()))
            if known:
                return
            before = np.maximum.accumulate(np.append(np.array([newest], np.int64), times[:-1]))
            self._labels += len(times)
            gaps = np.where(before > NEVER, times - before, 0)
            for place in np.flatnonzero(gaps > 0) if len(times) <= _KEPT else np.argsort(gaps)[-2 * _KEPT :]:
                gap, hour = int(gaps[place]), int(times[place] // _HOUR_MS % 24)
                if gap > self._gaps[hour, 0]:
                    self._gaps[hour, 0] = gap
                    self._gaps[hour].sort()

    def patience_ms(self, now: int) -> int:
        """Return how long nothing may come at this time of the day."""
        with self._lock:
            if self._labels < _ENOUGH:
                return self._within_ms
            hours = [(now // _HOUR_MS + beside) % 24 for beside in (-1, 0, 1)]
            # The least of those kept; of an hour with fewer gaps, the least there is.
            known = [int(found.min()) for hour in hours if len(found := self._gaps[hour][self._gaps[hour] > 0])]
            return max(_LEAST_MS, _TIMES * max(known, default=self._within_ms))

    def judge(self, now: int) -> Verdict:
        """Return up to when partitions that have no more may be counted as read, at a time.

        While nothing is known of a label, they may not be counted as read, and the silence lasts since the first call.
        """
        patience = self.patience_ms(now)
        with self._lock:
            newest = max([self._newest, *self._orders])
            if newest == NEVER and self._judged_from == NEVER:
                self._judged_from = now
            silent = now - (self._judged_from if newest == NEVER else newest)
        if silent > patience:
            return Verdict(newest, silent)
        return Verdict(newest if newest == NEVER or patience <= _BUSY_MS else max(newest, now), None)

    def assume(self, now: int) -> None:
        """Take the silence up to now for an absence of labels."""
        with self._lock:
            self._orders.append(now)

    def saved(self) -> dict[str, Any]:
        """Return what is known, as facts."""
        with self._lock:
            return {
                "gaps_ms": self._gaps.tolist(),
                "labels": self._labels,
                "assumed_absent_ms": [*self._orders],
                "newest_ms": None if self._newest == NEVER else self._newest,
                "judged_from_ms": None if self._judged_from == NEVER else self._judged_from,
            }

    def load(self, facts: dict[str, Any]) -> None:
        """Take over what `saved` has returned; what people have said since then still holds."""
        with self._lock:
            self._gaps = np.array(facts["gaps_ms"], np.int64)
            self._labels = int(facts["labels"])
            self._orders = sorted({*self._orders, *map(int, facts["assumed_absent_ms"])})
            # Older checkpoints lack both.
            newest, judged_from = facts.get("newest_ms"), facts.get("judged_from_ms")
            self._newest = NEVER if newest is None else int(newest)
            self._judged_from = NEVER if judged_from is None else int(judged_from)
