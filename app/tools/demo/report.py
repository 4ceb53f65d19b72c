"""The report: what a run of the demo has shown, in figures, and which of them break the demo's claims. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from millrace.app.tools.demo.accuracy_history import GOOD, AccuracyHistory, Aftermath
from millrace.app.tools.demo.drift_schedule import drifts_between
from millrace.app.tools.demo.witness_check import WitnessResult

GOOD_WITHIN_S, RECOVERED_WITHIN_S = 60, 30
MAJORITY_BELOW, FROZEN_BELOW = 0.6, 0.65


def report_of(history: AccuracyHistory, resumed: WitnessResult | None, last: WitnessResult | None) -> dict[str, Any]:
    """Return all the figures."""
    first, now = history.began_s or 0.0, history.samples[-1] if history.samples else None
    figures = {
        "stream_s": {"from": round(first, 1), "to": round(now.at_s, 1) if now else first},
        "live_accuracy": _rounded(now.live if now else None),
        "live_good_after_s": history.good_after_s,
        "majority_highest": _rounded(history.majority_highest),
        "drifts": [_drift(past) for past in history.aftermaths.values()],
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
    yield from _unobserved(report)
    for drift in report["drifts"]:
        yield from _not_survived(drift)


def unlearnt(report: Mapping[str, Any]) -> Iterator[str]:
    """Give what the witness says against the run: offsets lost, or learnt twice."""
    for name in ("resumed_from", "witness"):
        result = report[name]
        if result is not None and (result["lost"] or result["learnt_twice"]):
            yield f"checkpoint {result['checkpoint']}: lost {result['lost']}, learnt twice {result['learnt_twice']}"


def _unobserved(report: Mapping[str, Any]) -> Iterator[str]:
    """Give the drifts that came while the demo ran and that were not observed from their beginning."""
    whole = {drift["number"] for drift in report["drifts"] if drift["seen_whole"]}
    for drift in drifts_between(report["stream_s"]["from"], report["stream_s"]["to"]):
        if drift.number not in whole:
            yield f"{_name(asdict(drift))}: nothing was heard of the trainer when it came, so nothing is known"


def _name(drift: Mapping[str, Any]) -> str:
    return f"drift {drift['number']} ({drift['kind']}, at {drift['begins_s']:g} s)"


def _not_survived(drift: Mapping[str, Any]) -> Iterator[str]:
    name, after = _name(drift), drift["recovered_after_s"]
    if drift["seen_s"] < RECOVERED_WITHIN_S or not drift["seen_whole"]:
        return
    if drift["kind"] == "abrupt" and (after is None or after > RECOVERED_WITHIN_S):
        yield f"{name}: live accuracy was not above {GOOD} again within {RECOVERED_WITHIN_S} s"
    if drift["frozen"] is None:
        yield f"{name}: no frozen copy was scored, so there is nothing to compare with"
    elif drift["frozen"] >= FROZEN_BELOW:
        yield f"{name}: the frozen copy scored {drift['frozen']} after it, as if nothing had changed"


def _drift(past: Aftermath) -> dict[str, Any]:
    drift = past.drift
    return {
        "number": drift.number,
        "kind": drift.kind,
        "begins_s": drift.begins_s,
        "takes_s": drift.takes_s,
        "seen_s": round(max(0.0, past.seen_until_s - drift.ends_s), 1),
        "seen_whole": past.seen_whole,
        "live_before": _rounded(past.live_before),
        "live_lowest": _rounded(past.live_lowest),
        "recovered_after_s": past.recovered_after_s,
        "live_at_last": _rounded(past.live_now),
        "frozen": _rounded(past.frozen(drift.ends_s, past.seen_until_s)),
        "frozen_from_checkpoint": past.checkpoint,
        "frozen_records": sum(records for records, _ in past.seconds.values()),
    }


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
        yield from _in_words(drift)
    if resumed is not None:
        yield f"It resumed from checkpoint {resumed['checkpoint']}: {_evidence(resumed)}."
    if last is not None:
        yield f"It ended with checkpoint {last['checkpoint']}: {_evidence(last)}."
    yield from (f"NOT AS CLAIMED: {line}." for line in report["broken"])


def _in_words(drift: Mapping[str, Any]) -> Iterator[str]:
    after, lowest = drift["recovered_after_s"], drift["live_lowest"]
    fell = lowest is not None and lowest <= GOOD
    live = f"live accuracy {_figure(drift['live_before'])}, at its lowest {_figure(lowest)}"
    back = f", above {GOOD} again after {after:g} s" if fell and after is not None else ""
    frozen = "" if drift["frozen"] is None else f"; a copy frozen at the drift scored {drift['frozen']:.3f} after it"
    yield f"Drift {drift['number']}, {drift['kind']}, at {drift['begins_s']:g} s: {live}{back}{frozen}."


def _figure(value: float | None) -> str:
    return "not seen" if value is None else f"{value:.3f}"


def _evidence(result: Mapping[str, Any]) -> str:
    return (
        f"{result['learnt']:,} offsets learnt, {result['set_aside']:,} set aside, lost {result['lost']:,}, "
        f"learnt twice {result['learnt_twice']:,}"
    )
