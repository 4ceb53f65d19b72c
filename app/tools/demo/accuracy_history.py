"""The live accuracy over time, beside the score of a copy of the model frozen at each drift, on the same records.

Times are seconds of the stream, which counts records, so that a slow machine is not a slow learner. Pure.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from millrace.app.tools.demo import drifting_stream
from millrace.app.tools.demo.drift_schedule import Drift, drift, last_drift
from millrace.app.tools.demo.workspace import LIVE_WINDOW_S

GOOD = 0.85
"""Live accuracy is to be above this within a minute of training, and again soon after an abrupt drift."""
_KEPT = 1200


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracySample:
    """One reading of the trainer's status."""

    at_s: float
    """Where it stands in the stream."""
    live: float | None
    majority: float | None
    frozen: float | None
    """What the copy of the last drift scores over the same time."""


@dataclass(slots=True)
class Aftermath:
    """The consequences of one drift, as far as they were observed."""

    drift: Drift
    checkpoint: int | None = None
    """Whose weights were frozen."""
    live_before: float | None = None
    live_lowest: float | None = None
    live_now: float | None = None
    seen_from_s: float | None = None
    seen_until_s: float = 0.0
    recovered_after_s: float | None = None
    seconds: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By second of the stream: records that the frozen copy was asked, and how many it got right."""

    def frozen(self, since_s: float, until_s: float) -> float | None:
        """Return the accuracy of the frozen copy in these seconds; None where it has none."""
        found = [score for second, score in self.seconds.items() if since_s <= second < until_s]
        records, hits = (sum(column) for column in zip(*found, strict=True)) if found else (0, 0)
        return hits / records if records else None

    @property
    def seen_whole(self) -> bool:
        """Whether it was observed from its beginning."""
        return self.seen_from_s is not None and self.seen_from_s <= self.drift.begins_s + LIVE_WINDOW_S

    def see(self, sample: AccuracySample) -> None:
        """Take in a sample. For one window's length the metric still counts records from before the drift."""
        since_s = sample.at_s - self.drift.ends_s
        self.seen_from_s = sample.at_s if self.seen_from_s is None else self.seen_from_s
        self.seen_until_s = sample.at_s
        if sample.live is None:
            return
        self.live_now = sample.live
        self.live_lowest = sample.live if self.live_lowest is None else min(self.live_lowest, sample.live)
        if self.recovered_after_s is None and since_s >= LIVE_WINDOW_S and sample.live > GOOD:
            self.recovered_after_s = round(since_s, 1)


class AccuracyHistory:
    """The samples and drifts of one run."""

    def __init__(self) -> None:
        self.samples: deque[AccuracySample] = deque(maxlen=_KEPT)
        self.aftermaths: dict[int, Aftermath] = {}
        self.began_s: float | None = None
        self.good_after_s: float | None = None
        self.majority_highest = 0.0

    def see(self, status: Mapping[str, Any]) -> AccuracySample:
        """Take in the trainer's status; return it as a sample."""
        live = status.get("live") or {}
        at_s = status["records"]["offsets"] / drifting_stream.RECORDS_PER_S
        self.began_s = at_s if self.began_s is None else self.began_s
        past = self.aftermath(at_s)
        sample = AccuracySample(
            at_s=at_s,
            live=live.get("accuracy"),
            majority=live.get("baseline", {}).get("accuracy"),
            frozen=None if past is None else past.frozen(at_s - LIVE_WINDOW_S - 1, at_s),
        )
        self.samples.append(sample)
        self.majority_highest = max(self.majority_highest, sample.majority or 0.0)
        if self.good_after_s is None and sample.live is not None and sample.live > GOOD:
            self.good_after_s = round(at_s - self.began_s, 1)
        if past is not None:
            past.see(sample)
        return sample

    def aftermath(self, at_s: float) -> Aftermath | None:
        """Return the aftermath of the last drift; None before the first."""
        last = last_drift(at_s)
        if last is None:
            return None
        if last.number not in self.aftermaths:
            before = self.samples[-1].live if self.samples else None
            self.aftermaths[last.number] = Aftermath(last, live_before=before)
        return self.aftermaths[last.number]

    def covers(self, stream_s: float) -> bool:
        """Return whether the samples span this many seconds of the stream."""
        return self.began_s is not None and self.samples[-1].at_s - self.began_s >= stream_s

    def judged(self, score: Mapping[str, int]) -> None:
        """Take in the judge's score for one second."""
        past = self.aftermaths.setdefault(score["drift"], Aftermath(drift(score["drift"])))
        past.seconds[score["second"]] = (score["records"], score["hits"])
