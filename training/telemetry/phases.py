"""The trainer's phases: one state machine that probes, page, limits and logs share.

Owns the present phase. The trainer's thread writes it and any thread reads it. A trainer that stays in a phase for
longer than its limit without progress counts as hung.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """What the trainer is doing."""

    STARTING = "starting"
    WAITING = "waiting"
    """Waiting for the other processes of its group, however long that takes."""
    RESTORING = "restoring"
    TRACING = "tracing"
    TRAINING = "training"
    IDLE = "idle"
    """Waiting for records; nothing is wrong."""
    SAVING = "saving"
    """Copying its state between calls; another thread writes the files while the training continues."""
    PAUSED = "paused"
    STOPPING = "stopping"
    ENDED = "ended"
    """It reached its limit (`--until`, `--max-records`) or was stopped, and has saved."""
    FAILED = "failed"


_AT_WORK = {Phase.TRAINING, Phase.IDLE, Phase.SAVING, Phase.PAUSED, Phase.RESTORING}
_MAY_FOLLOW: Mapping[Phase, frozenset[Phase]] = {
    Phase.STARTING: frozenset({Phase.WAITING, Phase.TRACING, Phase.RESTORING, Phase.STOPPING}),
    Phase.WAITING: frozenset({Phase.TRACING, Phase.STOPPING}),
    Phase.TRACING: frozenset({Phase.RESTORING, Phase.STOPPING, *_AT_WORK}),
    Phase.RESTORING: frozenset({Phase.TRACING, Phase.STOPPING, *_AT_WORK}),
    Phase.TRAINING: frozenset({*_AT_WORK, Phase.STOPPING}),
    Phase.IDLE: frozenset({*_AT_WORK, Phase.STOPPING}),
    Phase.SAVING: frozenset({*_AT_WORK, Phase.STOPPING}),
    Phase.PAUSED: frozenset({*_AT_WORK, Phase.STOPPING}),
    Phase.STOPPING: frozenset({Phase.ENDED}),
    Phase.ENDED: frozenset(),
    Phase.FAILED: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseLimits:
    """Seconds that a phase may take before it counts as hung; a phase that is not named has no limit."""

    limits: Mapping[Phase, float]

    @classmethod
    def usual(cls) -> "PhaseLimits":
        """Return generous limits: a big model may trace for minutes, a call may not take that long."""
        return cls(
            limits={
                Phase.STARTING: 120.0,
                Phase.RESTORING: 600.0,
                Phase.TRACING: 900.0,
                Phase.TRAINING: 300.0,
                Phase.IDLE: 60.0,
                Phase.SAVING: 300.0,
                Phase.STOPPING: 120.0,
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSnapshot:
    """The phase at one time."""

    phase: Phase
    """What the trainer is doing."""
    reason: str | None
    """Why the trainer is paused or failed; else None."""
    for_s: float
    """Seconds since the trainer entered the phase or last showed progress in it."""
    limit_s: float | None
    """Seconds that the phase may take without progress; None for no limit."""

    @property
    def hung(self) -> bool:
        """Whether the trainer has been in the phase for longer than the limit."""
        return self.limit_s is not None and self.for_s > self.limit_s


class Phases:
    """The state machine."""

    def __init__(self, limits: PhaseLimits | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits or PhaseLimits.usual()
        self._clock = clock
        self._lock = threading.Lock()
        self._phase, self._reason, self._since = Phase.STARTING, None, clock()

    _reason: str | None

    @property
    def phase(self) -> Phase:
        """The present phase."""
        return self._phase

    def enter(self, phase: Phase, reason: str | None = None) -> None:
        """Enter a phase; entering the present one again shows progress."""
        with self._lock:
            if phase not in (self._phase, Phase.FAILED) and phase not in _MAY_FOLLOW[self._phase]:
                raise AssertionError(f"the trainer cannot go from {self._phase} to {phase}")
            self._phase, self._reason, self._since = phase, reason, self._clock()

    def snapshot(self) -> PhaseSnapshot:
        """Return the phase, how long it has lasted, and its limit."""
        with self._lock:
            age = self._clock() - self._since
            limit = self._limits.limits.get(self._phase)
            return PhaseSnapshot(phase=self._phase, reason=self._reason, for_s=age, limit_s=limit)
