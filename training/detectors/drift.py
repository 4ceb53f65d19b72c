"""The detector `drift`: a cumulative sum of how far the loss of each block lies above the usual one.

A block is what the calls have scored since the last one, 32 records or more. Its mean loss differs from the usual one
by so many standard errors of 32 records; what exceeds three quarters of one is summed up, for each 32 records of it,
and a sum of eleven is a change. Mean and spread are those of about the last 128 blocks, so that what changes slowly, as
from day to night, is none. After a mark all of it begins anew. What a single block adds is bounded: a few absurd
records are no change.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from millrace.training.detectors.detector import CallEnd, CallSums, Detector, Mark

_BLOCK = 32
_FIRST = 30
"""So many blocks are passed over, as the loss falls at first; of as many again mean and spread are learnt."""
_MEMORY = 128
_TOLERATED, _FURTHEST, _CHANGE = 0.75, 3.5, 11.0
"""In standard errors: what is no rise yet, how far above counts at most, and the sum that is a change."""
_WIDEST = 16.0
"""The square of what a block adds to the spread at most, in standard errors."""
_MOST = 6.0
"""What a large block adds at most: less than a change."""
_LEAST = 1e-6
"""The least spread of a record's loss, of the mean: where all losses are the same, rounding is no change."""


@dataclass(slots=True)
class _Seen:
    """All that later marks depend on."""

    records: int = 0
    """Of the block that is not whole yet."""
    loss: float = 0.0
    blocks: int = -_FIRST
    """Those of which mean and spread are made; below 0, how many are still to be passed over."""
    mean: float = 0.0
    variance: float = 0.0
    """Of a record's loss."""
    risen: float = 0.0
    """The sum, 0 where the loss is as usual."""
    since_records: int = 0
    """Records that were learnt when it was 0 last."""
    since_ms: int = 0
    """The event time of the newest record then."""
    rise_records: int = 0
    rise_loss: float = 0.0
    """The records since then, and their losses."""


class LossRise(Detector):
    """Marks where the mean loss has risen by more than chance."""

    def __init__(self) -> None:
        self._seen = _Seen()

    def update(self, sums: CallSums, at: CallEnd) -> Sequence[Mark]:
        """Take in a call."""
        seen = self._seen
        if not sums.scored or not math.isfinite(sums.loss):
            return []
        seen.records += sums.scored
        seen.loss += sums.loss
        if seen.records < _BLOCK:
            return []
        records, loss = seen.records, seen.loss
        seen.records, seen.loss = 0, 0.0
        if seen.blocks >= _FIRST and self._rises(records, loss):
            mark = self._mark(at)
            self._seen = _Seen(since_records=at.records, since_ms=at.newest_ms)
            return [mark]
        self._learn(records, loss / records)
        if not seen.risen:
            seen.since_records, seen.since_ms = at.records, at.newest_ms
            seen.rise_records, seen.rise_loss = 0, 0.0
        return []

    def saved(self) -> Mapping[str, Any]:
        """Return all of it."""
        return asdict(self._seen)

    def load(self, state: Mapping[str, Any]) -> None:
        """Take it back."""
        self._seen = _Seen(**state)

    def _rises(self, records: int, loss: float) -> bool:
        """Sum up by how much a block lies above the usual; return whether that is a change."""
        seen, mean = self._seen, loss / records
        error = max(math.sqrt(seen.variance), _LEAST * abs(seen.mean)) / math.sqrt(_BLOCK)
        apart = mean - seen.mean
        above = apart / error if error else math.copysign(_FURTHEST, apart) * (apart != 0)
        added = (min(above, _FURTHEST) - _TOLERATED) * records / _BLOCK
        seen.risen = max(0.0, seen.risen + min(added, _MOST))
        seen.rise_records += records
        seen.rise_loss += loss
        return seen.risen > _CHANGE

    def _learn(self, records: int, mean: float) -> None:
        seen = self._seen
        seen.blocks = min(seen.blocks + 1, _MEMORY)
        if seen.blocks <= 0:
            return
        share, apart = 1 / seen.blocks, mean - seen.mean
        # Bounded, so that a block that is far above blinds nobody to the next. A fall is taken in as it is.
        most = math.inf if seen.blocks < _FIRST else _WIDEST * seen.variance
        seen.mean += share * min(apart, math.sqrt(most / records))
        seen.variance = (1 - share) * (seen.variance + share * min(records * apart * apart, most))

    def _mark(self, at: CallEnd) -> Mark:
        seen = self._seen
        now, count = seen.rise_loss / seen.rise_records, at.records - seen.since_records
        text = f"the mean loss rose from {seen.mean:.3g} to {now:.3g} in the last {count:,} records"
        facts = {
            "before": seen.mean,
            "now": now,
            "since_records": seen.since_records,
            "since_ms": seen.since_ms,
            "ends": {str(span.partition): span.end for span in at.spans},
        }
        return Mark(text, facts)
