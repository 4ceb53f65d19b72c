"""Events that follow from two observations: problems that begin and end, and records that were set aside.

Owns what was seen at the look before. It lives on the HTTP side's loop, looks when the observer does, waits for nothing
and ends with it. What recurs is reported less often each time, down to once an hour, with the number in between.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass

from millrace.app.monitoring.observer import Observation
from millrace.app.monitoring.snapshot import Snapshot
from millrace.consumers.reasons import Reason
from millrace.training.telemetry.events import EventKind, ReportEvent, Severity

_REPORTED_ELSEWHERE = frozenset({"failed", "crash_loop", "save_failing"})
"""The beginnings of these are events of the trainer's or the service's own."""
OVER_TEXTS: Mapping[str, str] = {
    "kafka_away": "Kafka answers again.",
    "partitions_missing": "All partitions are there again.",
    "partitions_waiting": "No new partition waits any more.",
    "open_transaction": "No transaction stays open any more.",
    "registry_away": "The schema registry gives schemas again.",
    "save_failing": "Saving works again.",
    "schema_incompatible": "Records of the new schema are not held back any more.",
    "bad_records": "The bad records are not held back any more.",
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

    def look(self, observation: Observation) -> None:
        """Tell which problems have begun and ended, and what was set aside."""
        self._look_at_problems(observation)
        self._look_at_set_aside(observation.snapshot)

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
                self._tell_set_aside(reason, snapshot.letters.in_words(reason), count - flow.reported)
                recurs = snapshot.clock < flow.quiet_until + flow.pause_s
                flow.pause_s = min(2 * flow.pause_s, _LONGEST_PAUSE_S) if recurs else _FIRST_PAUSE_S
                flow.reported, flow.quiet_until = count, snapshot.clock + flow.pause_s

    def _tell_set_aside(self, reason: Reason, words: str, count: int) -> None:
        records = "1 record was" if count == 1 else f"{count:,} records were"
        sentence = _SENTENCES.get(reason, f"{{}} set aside as {words}.").format(records)
        if reason is Reason.UPDATE_NOT_FINITE:
            self._tell(EventKind.NOT_FINITE, sentence, Severity.WARNING, records=count)
        else:
            self._tell(EventKind.SET_ASIDE, sentence, reason=reason.value, records=count)
