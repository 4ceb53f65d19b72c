"""Events: what has happened, in words, for people who were not there.

Owns a ring of the newest events, bounded for each severity, so that a flood of small ones pushes no grave one out.
Any thread tells and any thread reads, under one lock that is held for a moment; it ends with the process. An event's id
is greater than that of each before it, also over a restart: the first of a process is the time in milliseconds.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol


class Severity(StrEnum):
    """Who should care."""

    INFO = "info"
    """Nobody has to."""
    WARNING = "warning"
    """Somebody should look when there is time."""
    ERROR = "error"
    """Somebody should look now."""


_KEPT: Mapping[Severity, int] = {Severity.INFO: 300, Severity.WARNING: 150, Severity.ERROR: 50}
MOST_KEPT = sum(_KEPT.values())


class EventKind(StrEnum):
    """What has happened: a word for programs."""

    STARTED = "started"
    NEW_CODE = "new_code"
    """Config, model.py or millrace itself differ from those that wrote the checkpoint."""
    HYPERPARAMETERS = "hyperparameters"
    CHECKPOINT = "checkpoint"
    SAVE_FAILED = "save_failed"
    REWOUND = "rewound"
    FELL_BACK = "fell_back"
    """Something raised; it went back to a checkpoint to find the records at fault."""
    SET_ASIDE = "set_aside"
    NOT_FINITE = "not_finite"
    PAUSED = "paused"
    RESUMED = "resumed"
    BRAKE = "brake"
    TOPIC_RECREATED = "topic_recreated"
    PARTITION_ADDED = "partition_added"
    PROBLEM = "problem"
    PROBLEM_OVER = "problem_over"
    STOPPING = "stopping"
    ENDED = "ended"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that has happened."""

    id: int
    at: float
    """Seconds since 1970."""
    kind: EventKind
    severity: Severity
    text: str
    """What happened, as a sentence."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The same for programs: JSON values."""


class Tell(Protocol):
    """Whom to tell what has happened."""

    def __call__(self, kind: EventKind, text: str, severity: Severity = Severity.INFO, **facts: Any) -> None:
        """Take note; never waits."""


def ignore_event(kind: EventKind, text: str, severity: Severity = Severity.INFO, **facts: Any) -> None:
    """Nobody listens."""


class Events:
    """The ring."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._lock = threading.Lock()
        self._kept = {severity: deque[Event](maxlen=most) for severity, most in _KEPT.items()}
        self._next = int(wall() * 1000)

    def tell(self, kind: EventKind, text: str, severity: Severity = Severity.INFO, **facts: Any) -> None:
        """Take note of what has happened. Facts that are None are left out."""
        known = {name: fact for name, fact in facts.items() if fact is not None}
        with self._lock:
            event = Event(id=self._next, at=self._wall(), kind=kind, severity=severity, text=text, facts=known)
            self._next += 1
            self._kept[severity].append(event)

    @property
    def newest(self) -> int:
        """The id of the newest event; before any, one that is smaller than all to come."""
        with self._lock:
            return self._next - 1

    def since(self, event_id: int = 0) -> list[Event]:
        """All that are kept and came after the event of this id, the oldest first.

        An id that is still to come is of a process before whose clock was ahead: whoever has it, has none of these.
        """
        with self._lock:
            after = event_id if event_id < self._next else 0
            later = [event for kept in self._kept.values() for event in kept if event.id > after]
        return sorted(later, key=lambda event: event.id)
