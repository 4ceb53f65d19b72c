"""The history of a run of the demo, and the report: its figures, and which of them break the demo's claims. Pure.

The history is the live accuracy over time, beside the score of a copy of the model frozen at each drift, on the same
records. Times are seconds of the stream, which counts records, so that a slow machine is not a slow learner.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from millrace.app.tools.demo import drifting_stream
from millrace.app.tools.demo.drifting_stream import Drift, drifts_between, last_drift
from millrace.app.tools.demo.witness_check import WitnessResult
from millrace.app.tools.demo.workspace import LIVE_WINDOW_S

GOOD = 0.85
"""Live accuracy is to be above this within a minute of training, and again soon after an abrupt drift."""
GOOD_WITHIN_S, RECOVERED_WITHIN_S = 60, 30
MAJORITY_BELOW, FROZEN_BELOW = 0.6, 0.65


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

    def figures(self) -> dict[str, Any]:
        """Return what the report has of it."""
        return {
            **asdict(self.drift),
            "seen_s": round(max(0.0, self.seen_until_s - self.drift.ends_s), 1),
            "seen_whole": self.seen_whole,
            "live_before": _rounded(self.live_before),
            "live_lowest": _rounded(self.live_lowest),
            "recovered_after_s": self.recovered_after_s,
            "live_at_last": _rounded(self.live_now),
            "frozen": _rounded(self.frozen(self.drift.ends_s, self.seen_until_s)),
            "frozen_from_checkpoint": self.checkpoint,
            "frozen_records": sum(records for records, _ in self.seconds.values()),
        }


class AccuracyHistory:
    """The newest sample and the drifts of one run."""

    def __init__(self) -> None:
        self.now: AccuracySample | None = None
        """The newest sample."""
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
        self.now = sample
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
            before = None if self.now is None else self.now.live
            self.aftermaths[last.number] = Aftermath(last, live_before=before)
        return self.aftermaths[last.number]

    def covers(self, stream_s: float) -> bool:
        """Return whether the run spans this many seconds of the stream."""
        return self.began_s is not None and self.now is not None and self.now.at_s - self.began_s >= stream_s

    def judged(self, score: Mapping[str, int]) -> None:
        """Take in the judge's score for one second."""
        past = self.aftermaths.setdefault(score["drift"], Aftermath(drifting_stream.drift(score["drift"])))
        past.seconds[score["second"]] = (score["records"], score["hits"])


def report_of(history: AccuracyHistory, resumed: WitnessResult | None, last: WitnessResult | None) -> dict[str, Any]:
    """Return all the figures."""
    first, now = history.began_s or 0.0, history.now
    figures = {
        "stream_s": {"from": round(first, 1), "to": round(now.at_s, 1) if now else first},
        "live_accuracy": _rounded(now.live if now else None),
        "live_good_after_s": history.good_after_s,
        "majority_highest": _rounded(history.majority_highest),
        "drifts": [past.figures() for past in history.aftermaths.values()],
        "resumed_from": None if resumed is None else asdict(resumed),
        "witness": None if last is None else asdict(last),
    }
    return {**figures, "broken": list(broken(figures))}


def broken(report: Mapping[str, Any]) -> Iterator[str]:
    """Give the claims that do not hold, of those that were observed for long enough."""
    yield from unlearnt(report)
    seen_s = report["stream_s"]["to"] - report["stream_s"]["from"]
    good = report["live_good_after_s"]
    if (good is None and seen_s >= GOOD_WITHIN_S) or (good or 0) > GOOD_WITHIN_S:
        yield f"live accuracy was not above {GOOD} within {GOOD_WITHIN_S} s of training"
    if report["majority_highest"] >= MAJORITY_BELOW:
        yield f"always guessing the majority class scored {report['majority_highest']}: the stream is too easy"
    # Drifts that came while the demo ran, and were not observed from their beginning.
    whole = {drift["number"] for drift in report["drifts"] if drift["seen_whole"]}
    for missed in drifts_between(report["stream_s"]["from"], report["stream_s"]["to"]):
        if missed.number not in whole:
            yield f"{_name(asdict(missed))}: nothing was heard of the trainer when it came, so nothing is known"
    # Drifts that were, and for long enough.
    for drift in report["drifts"]:
        name, after = _name(drift), drift["recovered_after_s"]
        if drift["seen_s"] < RECOVERED_WITHIN_S or not drift["seen_whole"]:
            continue
        if drift["kind"] == "abrupt" and (after is None or after > RECOVERED_WITHIN_S):
            yield f"{name}: live accuracy was not above {GOOD} again within {RECOVERED_WITHIN_S} s"
        if drift["frozen"] is None:
            yield f"{name}: no frozen copy was scored, so there is nothing to compare with"
        elif drift["frozen"] >= FROZEN_BELOW:
            yield f"{name}: the frozen copy scored {drift['frozen']} after it, as if nothing had changed"


def unlearnt(report: Mapping[str, Any]) -> Iterator[str]:
    """Give what the witness says against the run: offsets lost, or learnt twice."""
    for name in ("resumed_from", "witness"):
        result = report[name]
        if result is not None and (result["lost"] or result["learnt_twice"]):
            yield f"checkpoint {result['checkpoint']}: lost {result['lost']}, learnt twice {result['learnt_twice']}"


def _name(drift: Mapping[str, Any]) -> str:
    return f"drift {drift['number']} ({drift['kind']}, at {drift['begins_s']:g} s)"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def summary(report: Mapping[str, Any]) -> Iterator[str]:
    """Give the report line by line, for people."""
    good, resumed, last = report["live_good_after_s"], report["resumed_from"], report["witness"]
    if good is not None:
        yield f"Live accuracy was above {GOOD} after {good:g} s of training, always guessing at most " + (
            f"{report['majority_highest']:.3f}."
        )
    for drift in report["drifts"]:
        after, lowest, frozen = drift["recovered_after_s"], drift["live_lowest"], drift["frozen"]
        live = f"live accuracy {_figure(drift['live_before'])}, at its lowest {_figure(lowest)}"
        fell = lowest is not None and lowest <= GOOD
        back = f", above {GOOD} again after {after:g} s" if fell and after is not None else ""
        beside = "" if frozen is None else f"; a copy frozen at the drift scored {frozen:.3f} after it"
        yield f"Drift {drift['number']}, {drift['kind']}, at {drift['begins_s']:g} s: {live}{back}{beside}."
    if resumed is not None:
        yield f"It resumed from checkpoint {resumed['checkpoint']}: {WitnessResult(**resumed)}."
    if last is not None:
        yield f"It ended with checkpoint {last['checkpoint']}: {WitnessResult(**last)}."
    yield from (f"NOT AS CLAIMED: {line}." for line in report["broken"])


def _figure(value: float | None) -> str:
    return "not seen" if value is None else f"{value:.3f}"
