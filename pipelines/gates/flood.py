"""Flood gate: it holds decoded chunks back while too many of their records are bad, before any of these is set aside.

Owns what was counted, and whether it holds.

A chunk is held if more than `share` of its own records are bad, and, with it, one of these is true:

- of the records decoded over the last `over`, more than `share` were bad, and it has counted for that long;
- of those of the last 4 s, more than half were bad, or more than `share` if that is larger.

In either case there must be 50 bad ones or more, so that a handful after a quiet time holds nothing. What was let pass
is not counted, and the count begins again behind it.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from millrace.consumers.records import Partition
from millrace.consumers.section import Section
from millrace.consumers.units import Duration, Share
from millrace.pipelines.gates.gate import HeldBy, LearningHold
from millrace.pipelines.stream.decode import Decoded
from millrace.pipelines.stream.slices import SkipRange, within

FEWEST_BAD = 50
"""Fewer bad records than this are no flood."""
SHORT_S = 4.0
"""The short window, in which a flood shows that nobody should wait for."""
_MOSTLY = 0.5
_BUCKETS = 60


class PauseAboveSettings(Section):
    """How many records that do not decode are a flood."""

    share: Share = Field(
        0.05, gt=0, lt=1, description="The share of bad records above which the learning pauses, as 0.05 or 5 %."
    )
    over: Duration = Field(
        60.0,
        ge=5,
        description="The time over which bad records are counted. If most records are bad, the learning pauses within "
        "seconds.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What the gate has to know of a decoded chunk."""

    partition: Partition
    start: int
    end: int
    records: int
    bad: int
    """How many of them do not decode."""
    most: str = ""
    """The most frequent reason, in words."""


def judged(decoded: Decoded, skips: Sequence[SkipRange] = ()) -> Judged:
    """Return the figures of a chunk, without the records that are skipped by a command."""
    kept = [
        refused
        for refused, skip in zip(
            decoded.refused,
            within(skips, decoded.partition, np.array([r.offset for r in decoded.refused], dtype=np.int64)),
            strict=True,
        )
        if skip < 0
    ]
    # A record that is filtered could be read, as far as it was asked.
    good = sum(
        int((within(skips, decoded.partition, offsets) < 0).sum()) for offsets in (decoded.offsets, decoded.filtered)
    )
    reasons = Counter((refused.reason, refused.field) for refused in kept)
    most = ""
    if reasons:
        (reason, field), _ = reasons.most_common(1)[0]
        most = reason.value.replace("_", " ") + ("" if field is None else f" (field {field!r})")
    return Judged(
        partition=decoded.partition,
        start=decoded.start,
        end=decoded.end,
        records=good + len(kept),
        bad=len(kept),
        most=most,
    )


class _RecentCounts:
    """The sums of the last seconds, in buckets, so that it stays small whatever comes."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._buckets: deque[tuple[float, int, int]] = deque()

    def with_chunk(self, chunk: Judged, now: float) -> tuple[int, int]:
        """Return the records of the window and the bad ones among them, as they were with this chunk."""
        while self._buckets and self._buckets[0][0] <= now - self._span_s:
            self._buckets.popleft()
        records = sum(count for _, count, _ in self._buckets)
        bad = sum(count for _, _, count in self._buckets)
        return records + chunk.records, bad + chunk.bad

    def add(self, chunk: Judged, now: float) -> None:
        """Count a chunk."""
        records, bad, at = chunk.records, chunk.bad, now
        if self._buckets and now - self._buckets[-1][0] < self._span_s / _BUCKETS:
            at, before, bad_before = self._buckets.pop()
            records, bad = records + before, bad + bad_before
        self._buckets.append((at, records, bad))


class FloodGate:
    """Holds while too many records are bad."""

    def __init__(self, options: PauseAboveSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.options = options
        self._clock = clock
        self._lock = threading.Lock()
        self._positions: dict[Partition, int] = {}
        self._skips: Sequence[SkipRange] = ()
        self._passing: dict[Partition, int] = {}
        """Up to where the records of each partition were let pass, and are not counted."""
        self._since: float | None = None
        """When the counting began."""
        self._held: Judged | None = None
        self._why: str | None = None
        self._forget()

    def begin(self, positions: Mapping[Partition, int], skips: Sequence[SkipRange] = ()) -> None:
        """Begin a stream at these positions; what was held before is held no longer."""
        with self._lock:
            self._positions, self._skips = dict(positions), skips
            if self._held is not None:
                self._release()

    def admits(self, decoded: Decoded) -> bool:
        """Return whether a chunk may go on, and count it if it may."""
        # While it holds, nothing is counted for the answer.
        return self._why is None and self.passes(judged(decoded, self._skips))

    def passes(self, chunk: Judged) -> bool:
        """Return whether a chunk with these figures may go on, and count it if it may."""
        with self._lock:
            if self._held is not None:
                return False
            if chunk.start >= self._passing.get(chunk.partition, 0):
                now = self._clock()
                if (why := self._flood(chunk, now)) is not None:
                    self._held, self._why = chunk, why
                    return False
                self._since = now if self._since is None else self._since
                self._long.add(chunk, now)
                self._short.add(chunk, now)
            self._positions[chunk.partition] = chunk.end
            return True

    @property
    def why(self) -> str | None:
        """Why it holds, as a sentence without its end; None while it does not."""
        return self._why

    def held(self) -> LearningHold | None:
        """Return why it holds; None while it does not."""
        return None if (why := self._why) is None else LearningHold(by=HeldBy.FLOOD, why=why)

    def positions(self) -> dict[Partition, int]:
        """Return, for each partition, the offset from which on nothing has gone on."""
        with self._lock:
            return dict(self._positions)

    def let_pass(self, ends: Mapping[Partition, int]) -> bool:
        """Release what is held, and let everything before these ends pass uncounted. Return whether it did hold."""
        with self._lock:
            if self._held is None:
                return False
            upto = {**ends, self._held.partition: max(self._held.end, ends.get(self._held.partition, 0))}
            for partition, end in upto.items():
                self._passing[partition] = max(end, self._passing.get(partition, 0))
            self._release()
            return True

    def _release(self) -> None:
        self._held = self._why = None
        self._forget()

    def _forget(self) -> None:
        self._long, self._short = _RecentCounts(self.options.over), _RecentCounts(min(SHORT_S, self.options.over))
        self._since = None

    def _flood(self, chunk: Judged, now: float) -> str | None:
        """Return why a chunk is held, by the rule above; None where it is not."""
        share, over_s = self.options.share, self.options.over
        if chunk.bad <= share * chunk.records:
            return None
        counted_for = 0.0 if self._since is None else now - self._since
        for window, bound, span_s, applies in (
            (self._short, max(share, _MOSTLY), min(SHORT_S, over_s), True),
            (self._long, share, over_s, counted_for >= over_s),
        ):
            records, bad = window.with_chunk(chunk, now)
            if applies and bad >= FEWEST_BAD and bad > bound * records:
                most = f", most as {chunk.most}" if chunk.most else ""
                return f"{bad:,} of the {records:,} records decoded within {span_s:g} s cannot be learnt{most}"
        return None
