"""The verdict: the state of the training in one or two sentences, made from numbers. Pure; runs anywhere."""

from datetime import datetime
from typing import Literal

from millrace.app.monitoring.models import ThroughputView
from millrace.app.monitoring.observer import Observation
from millrace.app.monitoring.snapshot import AT_WORK, Snapshot
from millrace.app.monitoring.throughput import at_the_first, kafka_is_away, unread_because, waited_for
from millrace.consumers.errors import first_clause
from millrace.consumers.rounded import rounded_value
from millrace.training.telemetry.live_metrics import LOSS, LiveSnapshot
from millrace.training.telemetry.no_change import NO_CHANGE
from millrace.training.telemetry.phases import Phase
from millrace.training.trainer.arrivals.figures import ArrivalFigures
from millrace.training.trainer.board import Posting

_UNDER_WAY = {
    Phase.STARTING: "Starting: taking the folder, connecting to Kafka.",
    Phase.RESTORING: "Restoring a checkpoint.",
    Phase.WAITING: "Waiting for the other workers of the group.",
    Phase.TRACING: "Building and proving the model.",
    Phase.STOPPING: "Stopping: finishing the call, then the last checkpoint.",
    Phase.ENDED: "Ended: all is learnt that was to be, and saved.",
}

Mood = Literal["well", "warn", "bad", "rest", "busy"]
_GRAVE = frozenset({"failed", "trainer_dead", "hung", "unbalanced", "nothing_learnt"})
"""With these problems nothing is learnt, or something wrong."""
_ALWAYS_FIRST = frozenset({"trainer_dead", "unbalanced"})
"""With these problems no phase says how it stands."""
_RESTING = frozenset({Phase.PAUSED, Phase.STOPPING, Phase.ENDED})

_ABBREVIATIONS = frozenset({"auc", "iou", "mae", "mape", "mse", "msle", "pr", "prc", "rmse", "roc"})
_LATELY_S = 60.0
_OVER = {1.0: "second", 60.0: "minute", 3600.0: "hour", 86400.0: "day"}


def verdict_of(observation: Observation, throughput: ThroughputView) -> str:
    """Return the verdict."""
    count = len(observation.problems)
    problems = [f"{count} problem{'s' if count > 1 else ''} to look at."] if count else []
    return " ".join([*_state(observation, throughput), *problems])


def mood_of(observation: Observation) -> Mood:
    """Return the verdict in a word."""
    phase, problems = observation.snapshot.phase.phase, {trouble.problem for trouble in observation.problems}
    if problems:
        return "bad" if problems & _GRAVE else "warn"
    if phase in _RESTING:
        return "rest"
    return "well" if phase in AT_WORK else "busy"


def _state(observation: Observation, throughput: ThroughputView) -> list[str]:
    phase = observation.snapshot.phase
    if (over := _not_at_work(observation)) is not None:
        return [over]
    if _stands_still(observation, throughput) and (why := unread_because(observation)) is not None:
        if not kafka_is_away(observation):
            return [why.what, *_live(observation)]
        for_s = max(0.0, observation.snapshot.at - datetime.fromisoformat(why.since).timestamp())
        away = f"Kafka has been away for {_span(for_s)}; the learning goes on by itself when it answers."
        return [away, *_live(observation)]
    if phase.phase is Phase.PAUSED:
        return [f"Paused: {_sentence(phase.reason or 'asked to')}", *_behind_sentence(observation), *_live(observation)]
    return [_at_work(observation, throughput), *_live(observation)]


def _not_at_work(observation: Observation) -> str | None:
    """Return why it is not at work; None if it is, or is paused."""
    phase = observation.snapshot.phase
    if phase.phase is Phase.FAILED:
        return f"Failed: {_sentence(first_clause(phase.reason or 'the log says why'))}"
    if phase.hung:
        return f"Hung: {phase.phase} for {_span(phase.for_s)} without progress."
    if awaited := waited_for(observation):
        return f"Waiting for {', '.join(awaited)} of the group."
    if phase.phase in _UNDER_WAY:
        return _UNDER_WAY[phase.phase]
    return next((one.what for one in observation.problems if one.problem in _ALWAYS_FIRST), None)


def _stands_still(observation: Observation, throughput: ThroughputView) -> bool:
    """Return whether nothing is learnt, and no person has paused it."""
    if observation.snapshot.phase.phase is Phase.PAUSED:
        return observation.snapshot.waits_for_letters
    return not throughput.records_per_s["10s"]


def _at_work(observation: Observation, throughput: ThroughputView) -> str:
    resting = observation.snapshot.phase.phase is Phase.IDLE or observation.lag.records == 0
    # A steady stream is caught up between any two calls: only one that has stood still for a while is waited for.
    if resting and observation.keeps_up and _stands_still(observation, throughput):
        labels = observation.snapshot.settings.labels
        if labels.used:
            return f"Caught up: records wait for their labels for {_span(labels.due_after)}, as configured."
        return "Caught up, waiting for records."
    if observation.snapshot.follows is not None and not observation.snapshot.ledger.partitions:
        return "At work without a partition: there are more workers than partitions."
    if at_the_first(observation):
        return " ".join(["At work on the first records.", *_behind_sentence(observation)])
    rate = throughput.records_per_s["10s"]
    if not rate and observation.snapshot.ledger.tally.filtered:
        return " ".join(["At work: no record came lately that matches records.where.", *_behind_sentence(observation)])
    facts = [f"{rate:,.0f} records/s" if rate >= 10 else f"{rate:.1f} records/s"]
    group = observation.snapshot.group
    if group is not None and observation.paces:
        facts[0] += f" of the group's {sum(pace.records_per_s for pace in observation.paces):,.0f}"
    facts += [] if (behind := _behind(observation)) is None else [behind]
    facts += [] if throughput.bound_by is None else [f"bound by {throughput.bound_by}"]
    return f"Learning. {', '.join(facts)}."


def _behind_sentence(observation: Observation) -> list[str]:
    behind = _behind(observation)
    return [] if behind is None else [f"{behind[0].upper()}{behind[1:]}."]


def _behind(observation: Observation) -> str | None:
    lag = observation.lag
    if observation.keeps_up:
        return "caught up"
    if lag.seconds is not None:
        return f"{_span(lag.seconds)} behind"
    return None if lag.records is None else f"{lag.records:,} records behind"


def _live(observation: Observation) -> list[str]:
    posting = observation.snapshot.posting
    return [] if posting is None else [*how_well(posting.live), *on_arrival(posting)]


def on_arrival(posting: Posting) -> list[str]:
    """Return sentences on what was predicted when records came: the same metric, and what is expected of the rest."""
    found, name = posting.figures.get(ArrivalFigures.name), headline(posting.live)
    if not isinstance(found, ArrivalFigures):
        return []
    sentences = list[str]()
    if name in found.values:
        records = f"{found.records:,} record{'s' if found.records != 1 else ''}"
        sentences.append(
            f"Predicted on arrival, before their labels: {rounded_value(found.values[name])} of {records}."
        )
    if "accuracy" in found.expected:
        waiting = f"{found.waiting:,} prediction{'s' if found.waiting != 1 else ''}"
        sentences.append(
            f"Expected of {waiting} without labels yet, an estimate: accuracy "
            f"{rounded_value(found.expected['accuracy'])}."
        )
    return sentences


def how_well(live: LiveSnapshot) -> list[str]:
    """Return a sentence on the metric that the model is judged by, beside guessing; none without a value."""
    if not live.values:
        return []
    name = headline(live)
    guess = live.baseline.get(name)
    beside = "" if guess is None else f"{live.guesses.get(name, 'guessing')}: {rounded_value(guess)}"
    if live.no_change_is_better(name):
        beside += f", {NO_CHANGE}: {rounded_value(live.no_change[name])}"
    over = _OVER.get(live.window_s) or _span(live.window_s)
    # The window ends with the last record, so that the value stands still while none comes.
    since = f"over the last {over}"
    if live.age_s is not None and live.age_s > _LATELY_S:
        since = f"over the {over} before the last record, {_span(live.age_s)} ago"
    return [f"{in_words(name)} {rounded_value(live.values[name])} {since}{f' ({beside})' if beside else ''}."]


def in_words(name: str) -> str:
    """Return a metric's name as a sentence begins with it: `AUC`, `Log loss`."""
    words = " ".join(word.upper() if word in _ABBREVIATIONS else word for word in name.split("_") if word)
    return words[:1].upper() + words[1:] or name


def headline(live: LiveSnapshot) -> str:
    """Return the metric to show first: the watched one, or the loss where a window has no value of it."""
    return live.watch.name if live.watch.name in live.values else next(iter(live.values), LOSS)


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _span(seconds: float) -> str:
    """Format a duration for people."""
    if seconds < 1:
        return "under 1 s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"


def ending_of(snapshot: Snapshot) -> str | None:
    """Return what this process learnt, how well, and where it is saved; None if it ended before it learnt."""
    posting = snapshot.posting
    if posting is None:
        return None
    counts = snapshot.ledger.tally
    parts = [f"learnt {counts.learnt:,} records" if counts.learnt else "there was nothing to learn"]
    if counts.set_aside:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in counts.set_aside.items())
        parts.append(f"set aside {reasons}")
    if skipped := sum(counts.skipped.values()):
        parts.append(f"skipped {skipped:,} offsets")
    if counts.filtered:
        parts.append(f"filtered {counts.filtered:,} records by records.where")
    sentences = [f"{', '.join(parts)}.", *how_well(posting.live), *on_arrival(posting)]
    if posting.last_save is not None:
        sentences.append(f"Checkpoint {posting.last_save.manifest.number} holds all of it.")
    return " ".join(sentences)
