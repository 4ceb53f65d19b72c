"""Events: what has happened, each as a sentence for people and as facts for programs.

Owns the newest events, bounded for each severity, so that many unimportant ones never push an important one out. Any
thread reports and any thread reads, under one lock that is held for a moment. The events end with the process. An
event's id is greater than all before it, also across a restart: the first id of a process is the time in milliseconds.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol


class Severity(StrEnum):
    """How urgent an event is."""

    INFO = "info"
    """Nothing has to be done."""
    WARNING = "warning"
    """Someone should look at it when there is time."""
    ERROR = "error"
    """Someone should look at it now."""


_KEPT: Mapping[Severity, int] = {Severity.INFO: 300, Severity.WARNING: 150, Severity.ERROR: 50}
MOST_KEPT = sum(_KEPT.values())


class EventKind(StrEnum):
    """The kind of an event, for programs."""

    STARTED = "started"
    NEW_CODE = "new_code"
    """The configuration, model.py or millrace itself differs from what wrote the checkpoint."""
    HYPERPARAMETERS = "hyperparameters"
    CHECKPOINT = "checkpoint"
    SAVE_FAILED = "save_failed"
    REWOUND = "rewound"
    FELL_BACK = "fell_back"
    """A step raised; the trainer went back to a checkpoint to find the culprits."""
    SET_ASIDE = "set_aside"
    NOT_FINITE = "not_finite"
    PAUSED = "paused"
    RESUMED = "resumed"
    BRAKE = "brake"
    TOPIC_RECREATED = "topic_recreated"
    PARTITION_ADDED = "partition_added"
    MARK = "mark"
    """A detector of `training.detectors` has found a change."""
    INPUT_CHANGED = "input_changed"
    UNREAD_FIELDS = "unread_fields"
    """A field of the records is other than before."""
    DETECTOR_FAILED = "detector_failed"
    """One has raised, and is left out until the next start."""
    MEMBER_RESTARTED = "member_restarted"
    """With `training.members`, the one that learns since a drift has begun anew."""
    NEW_SCHEMA = "new_schema"
    """Records of a schema have come that this model has not read before."""
    EXPORTED = "exported"
    EXPORT_REFUSED = "export_refused"
    """A checkpoint was to be exported, and nothing is published."""
    EXPORT_HELD_BACK = "export_held_back"
    """`export.only_if` does not hold."""
    PROBLEM = "problem"
    PROBLEM_OVER = "problem_over"
    STOPPING = "stopping"
    ENDED = "ended"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened."""

    id: int
    at: float
    """Seconds since 1970."""
    kind: EventKind
    severity: Severity
    text: str
    """What happened, as a sentence."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The same for programs, as JSON values."""


class ReportEvent(Protocol):
    """A function that takes events."""

    def __call__(self, kind: EventKind, text: str, severity: Severity = Severity.INFO, **facts: Any) -> None:
        """Take an event; never waits."""


def ignore_event(kind: EventKind, text: str, severity: Severity = Severity.INFO, **facts: Any) -> None:
    """Take an event and drop it."""


class Events:
    """The newest events of this process."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._lock = threading.Lock()
        self._kept = {severity: deque[Event](maxlen=most) for severity, most in _KEPT.items()}
        self._next = int(wall() * 1000)

    def report(self, kind: EventKind, text: str, severity: Severity = Severity.INFO, **facts: Any) -> None:
        """Add an event; facts that are None are left out."""
        known = {name: fact for name, fact in facts.items() if fact is not None}
        with self._lock:
            event = Event(id=self._next, at=self._wall(), kind=kind, severity=severity, text=text, facts=known)
            self._next += 1
            self._kept[severity].append(event)

    def restore(self, events: Iterable[Event]) -> None:
        """Add the events of an earlier process before those of this one, but for those of a clock that was ahead."""
        with self._lock:
            first = min([self._next, *(kept[0].id for kept in self._kept.values() if kept)])
            earlier = [event for event in events if event.id < first]
            for severity, kept in self._kept.items():
                of_it = [event for event in earlier if event.severity is severity]
                self._kept[severity] = deque([*of_it, *kept], maxlen=_KEPT[severity])

    @property
    def newest(self) -> int:
        """The id of the newest event; before the first one, a smaller id than all to come."""
        with self._lock:
            return self._next - 1

    def since(self, event_id: int = 0) -> list[Event]:
        """Return the events after the one with this id that are still kept, the oldest first.

        An id greater than all here comes from an earlier process whose clock was ahead: its reader gets all events.
        """
        with self._lock:
            after = event_id if event_id < self._next else 0
            later = [event for kept in self._kept.values() for event in kept if event.id > after]
        return sorted(later, key=lambda event: event.id)
