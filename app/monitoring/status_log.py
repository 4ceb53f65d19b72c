"""The changes from one observation to the next, as events and as lines of the log.

`Noticing` makes events of problems that begin and end, and of records that are set aside; what recurs is reported less
often each time, down to once an hour, with the number in between. So is a member that begins anew, at most once a
minute. `StatusLog` logs the problems and the records, and now and then how it goes; each kind of line is limited: a
problem that comes and goes is logged once a minute, with the number in between.

Owns what was seen and logged before. Both live on the HTTP side's loop, look when the observer does, wait for nothing
and end with it.
"""

import logging
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from millrace.app.monitoring.observer import Observation
from millrace.app.monitoring.snapshot import OVER, Snapshot
from millrace.app.monitoring.throughput import throughput_of
from millrace.app.monitoring.verdict import headline, verdict_of
from millrace.consumers.reasons import Reason
from millrace.consumers.suggested_command import suggested_command
from millrace.training.model.setup.figures import MembersFigures
from millrace.training.telemetry.events import EventKind, ReportEvent, Severity

log = logging.getLogger(__name__)
_REPORTED_ELSEWHERE = frozenset({"failed", "crash_loop", "save_failing"})
"""The beginnings of these are events of the trainer's or the service's own."""
OVER_TEXTS: Mapping[str, str] = {
    "kafka_away": "Kafka answers again.",
    "partitions_missing": "All partitions are there again.",
    "partitions_waiting": "No new partition waits any more.",
    "open_transaction": "No transaction stays open any more.",
    "registry_away": "The schema registry gives schemas again.",
    "save_failing": "Saving works again.",
    "mirror_failing": "Checkpoints are mirrored again.",
    "schema_incompatible": "Records of the new schema are not held back any more.",
    "bad_records": "The bad records are not held back any more.",
    "labels_silent": "Labels come again.",
    "dead_letters_waiting": "The dead letters have reached their topic.",
    "nothing_learnt": "Records are learnt again.",
    "commits_refused": "Kafka has refused no commit for ten minutes.",
    "hung": "It makes progress again.",
}
_CAUSES: Mapping[str, frozenset[str]] = {
    "dead_letters_waiting": frozenset({"kafka_away"}),
    "save_failing": frozenset({"kafka_away", "dead_letters_waiting"}),
}
"""Problems that are shown as part of their cause, and so are not over while that is there."""
GRAVE = frozenset({"trainer_dead", "hung", "unbalanced", "lost"})
_FIRST_PAUSE_S = 60.0
_LONGEST_PAUSE_S = 3600.0
_SENTENCES: Mapping[Reason, str] = {
    Reason.UPDATE_NOT_FINITE: "{} set aside: the loss or a gradient was not finite with them. No such update was made.",
    Reason.CLASS_LIMIT: "{} set aside: the label is a text more than records.label.classes allows, or a long one. "
    "Raise records.label.classes, and the outputs of the model with it.",
}
_REPORTED_ONE_BY_ONE = frozenset({Reason.STEP_RAISED})


def is_over(kind: str, present: Container[str]) -> bool:
    """Return whether a problem that was there is over, with these problems present."""
    return kind not in present and not any(cause in present for cause in _CAUSES.get(kind, ()))


@dataclass(slots=True)
class _SetAsideSurge:
    """Records that are set aside for one reason."""

    reported: int = 0
    """How many there were at the last report."""
    quiet_until: float = float("-inf")
    pause_s: float = _FIRST_PAUSE_S


class Noticing:
    """Looks at what the observer has seen, and tells what is new."""

    def __init__(self, tell: ReportEvent) -> None:
        self._tell = tell
        self._problems: dict[str, float] = {}
        self._flows: dict[Reason, _SetAsideSurge] = {}
        self._restarts: int | None = None
        self._members_quiet_until = float("-inf")

    def look(self, observation: Observation) -> None:
        """Tell which problems have begun and ended, what was set aside, and whether a member has begun anew."""
        self._look_at_problems(observation)
        self._look_at_set_aside(observation.snapshot)
        self._look_at_members(observation.snapshot)

    def _look_at_problems(self, observation: Observation) -> None:
        now = {trouble.problem: trouble for trouble in observation.problems}
        clock = observation.snapshot.clock
        for kind, trouble in now.items():
            if kind not in self._problems and kind not in _REPORTED_ELSEWHERE:
                severity = Severity.ERROR if kind in GRAVE else Severity.WARNING
                self._tell(EventKind.PROBLEM, trouble.what, severity, problem=kind)
        for kind, began in self._problems.items():
            if is_over(kind, now) and kind in OVER_TEXTS:
                self._tell(EventKind.PROBLEM_OVER, OVER_TEXTS[kind], problem=kind, lasted_s=round(clock - began, 1))
        lasting = {kind: began for kind, began in self._problems.items() if not is_over(kind, now)}
        self._problems = dict.fromkeys(now, clock) | lasting

    def _look_at_set_aside(self, snapshot: Snapshot) -> None:
        for reason, count in snapshot.letters.by_reason.items():
            flow = self._flows.setdefault(reason, _SetAsideSurge())
            if count > flow.reported and snapshot.clock >= flow.quiet_until and reason not in _REPORTED_ONE_BY_ONE:
                new, words = count - flow.reported, snapshot.letters.in_words(reason)
                records = "1 record was" if new == 1 else f"{new:,} records were"
                sentence = _SENTENCES.get(reason, f"{{}} set aside as {words}.").format(records)
                if reason is Reason.UPDATE_NOT_FINITE:
                    self._tell(EventKind.NOT_FINITE, sentence, Severity.WARNING, records=new)
                else:
                    self._tell(EventKind.SET_ASIDE, sentence, reason=reason.value, records=new)
                recurs = snapshot.clock < flow.quiet_until + flow.pause_s
                flow.pause_s = min(2 * flow.pause_s, _LONGEST_PAUSE_S) if recurs else _FIRST_PAUSE_S
                flow.reported, flow.quiet_until = count, snapshot.clock + flow.pause_s

    def _look_at_members(self, snapshot: Snapshot) -> None:
        members = snapshot.figures.get(MembersFigures.name)
        if isinstance(members, MembersFigures):
            # What they were at a start is no news, and after a rewind they are fewer.
            if self._restarts is not None and members.restarts > self._restarts:
                if snapshot.clock < self._members_quiet_until:
                    return
                sentence = "The member since_drift has begun anew: its loss has risen by more than chance."
                self._tell(EventKind.MEMBER_RESTARTED, sentence, restarts=members.restarts)
                self._members_quiet_until = snapshot.clock + _FIRST_PAUSE_S
            self._restarts = members.restarts


_PAUSE_S = 60.0
_LOGGED_ELSEWHERE = frozenset({"failed"})
"""The trainer's thread logs these itself, with a traceback where there is one."""
_ERRORS = GRAVE | {"crash_loop", "save_failing"}


@dataclass(slots=True)
class _LoggedProblem:
    """What was logged of one kind of problem."""

    began: float | None = None
    """When the problem that stands now began, if its beginning was logged; None while there is none."""
    quiet_until: float = float("-inf")
    unlogged: int = 0
    """How often it has come since without a line."""
    present: bool = False


class StatusLog:
    """Logs what changes from one observation to the next."""

    def __init__(self, progress_every_s: float) -> None:
        self._every_s = progress_every_s
        self._progress_due: float | None = None
        self._problems: dict[str, _LoggedProblem] = {}
        self._set_aside = Counter[Reason]()
        self._set_aside_due = float("-inf")

    def look(self, observation: Observation) -> None:
        """Log what is new, and how it goes where that is due."""
        self._look_at_problems(observation)
        self._look_at_set_aside(observation.snapshot)
        # How it goes, where that is due.
        snapshot = observation.snapshot
        if not self._every_s or snapshot.phase.phase in OVER:
            return
        if self._progress_due is None:
            self._progress_due = snapshot.clock + self._every_s
        if snapshot.clock >= self._progress_due:
            self._progress_due = snapshot.clock + self._every_s
            throughput = throughput_of(observation)
            log.info(verdict_of(observation, throughput), extra=_facts(observation, throughput.bound_by))

    def _look_at_problems(self, observation: Observation) -> None:
        clock = observation.snapshot.clock
        now = {trouble.problem: trouble for trouble in observation.problems if trouble.problem not in _LOGGED_ELSEWHERE}
        for kind, trouble in now.items():
            logged = self._problems.setdefault(kind, _LoggedProblem())
            if not logged.present and clock < logged.quiet_until:
                logged.unlogged += 1
            logged.present = True
            if logged.began is None and clock >= logged.quiet_until:
                level = logging.ERROR if kind in _ERRORS else logging.WARNING
                often = f" It came {logged.unlogged} more times since it was logged last." if logged.unlogged else ""
                log.log(level, "%s%s %s", trouble.what, often, trouble.fix, extra={"problem": kind, "over": False})
                logged.began, logged.quiet_until, logged.unlogged = clock, clock + _PAUSE_S, 0
        for kind, logged in self._problems.items():
            if not is_over(kind, now):
                continue
            logged.present = False
            if logged.began is not None:
                text = OVER_TEXTS.get(kind, f"The problem {kind} is over.")
                log.info(text, extra={"problem": kind, "over": True, "lasted_s": round(clock - logged.began, 1)})
                logged.began = None

    def _look_at_set_aside(self, snapshot: Snapshot) -> None:
        """Log the records that were set aside: the first of each reason at once, the others once a minute."""
        counts = Counter(dict(snapshot.letters.by_reason))
        new = counts - self._set_aside
        if not new or (snapshot.clock < self._set_aside_due and new.keys() <= self._set_aside.keys()):
            return
        records = "1 record was" if new.total() == 1 else f"{new.total():,} records were"
        reasons = ", ".join(f"{count:,} {snapshot.letters.in_words(reason)}" for reason, count in new.most_common())
        topic = snapshot.settings.records.dead_letters.topic
        listed = f"`{suggested_command('dead-letters', 'list')}` shows them; they are in the topic {topic}."
        keep = "Set records.dead_letters.topic to keep such records."
        text = f"{records} set aside: {reasons}. {keep if topic is None else listed}"
        log.warning(
            text, extra={"set_aside": {reason.value: count for reason, count in new.items()}, "total": counts.total()}
        )
        self._set_aside, self._set_aside_due = counts, snapshot.clock + _PAUSE_S


def _facts(observation: Observation, bound_by: str | None) -> dict[str, Any]:
    """Return the numbers behind the sentence; what is not known is left out."""
    snapshot, lag, posting = observation.snapshot, observation.lag, observation.snapshot.posting
    scores: dict[str, Any] = {}
    if posting is not None and posting.live.values:
        live, name = posting.live, headline(posting.live)
        digits = {"value": live.values.get(name), "baseline": live.baseline.get(name), "loss": live.values.get("loss")}
        digits["no_change"] = live.no_change.get(name)
        scores = {"metric": name, **{key: float(f"{one:.5g}") for key, one in digits.items() if one is not None}}
        scores["checkpoint"] = None if posting.last_save is None else posting.last_save.number
    facts = {
        "state": snapshot.phase.phase.value,
        "records_per_s": round(snapshot.meter.records_per_s["1m"], 1),
        "arriving_per_s": None if observation.arriving_per_s is None else round(observation.arriving_per_s, 1),
        "lag_records": lag.records,
        "lag_s": None if lag.seconds is None else round(lag.seconds, 3),
        "bound_by": bound_by,
        "learnt": snapshot.ledger.tally.learnt,
        "set_aside": sum(snapshot.ledger.tally.set_aside.values()),
        **scores,
        "problems": [trouble.problem for trouble in observation.problems] or None,
    }
    return {name: fact for name, fact in facts.items() if fact is not None}
