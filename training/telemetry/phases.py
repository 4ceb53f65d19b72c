"""The trainer's phases: one state machine that probes, page, limits and logs share.

`Phases` is written by the trainer's thread and read by any. Hung means: in a phase past its limit.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """What the trainer is doing."""

    STARTING = "starting"
    RESTORING = "restoring"
    TRACING = "tracing"
    TRAINING = "training"
    IDLE = "idle"
    """Waiting for records; nothing is wrong."""
    SAVING = "saving"
    """Copying its state between calls; the writing happens beside the training."""
    PAUSED = "paused"
    STOPPING = "stopping"
    ENDED = "ended"
    """It learnt what it was told to (`--until`, `--max-records`) or was stopped, and saved."""
    FAILED = "failed"


_AT_WORK = {Phase.TRAINING, Phase.IDLE, Phase.SAVING, Phase.PAUSED, Phase.RESTORING}
_MAY_FOLLOW: Mapping[Phase, frozenset[Phase]] = {
    Phase.STARTING: frozenset({Phase.TRACING, Phase.RESTORING, Phase.STOPPING}),
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
    """Seconds that a phase may take before it counts as hung; a phase that is not named may take for ever."""

    limits: Mapping[Phase, float]

    @classmethod
    def usual(cls) -> "PhaseLimits":
        """Generous: a big model may trace for minutes, a call may not."""
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
    """The phase at an instant."""

    phase: Phase
    """What the trainer is doing."""
    reason: str | None
    """Why, where it is paused or failed."""
    for_s: float
    """Since it entered the phase or last showed progress in it."""
    limit_s: float | None
    """How long it may be in the phase without progress; None for ever."""

    @property
    def hung(self) -> bool:
        """Whether it is in the phase past its limit."""
        return self.limit_s is not None and self.for_s > self.limit_s


class Phases:
    """The state machine itself."""

    def __init__(self, limits: PhaseLimits | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits or PhaseLimits.usual()
        self._clock = clock
        self._lock = threading.Lock()
        self._phase, self._reason, self._since = Phase.STARTING, None, clock()

    _reason: str | None

    @property
    def phase(self) -> Phase:
        """The phase now."""
        return self._phase

    def enter(self, phase: Phase, reason: str | None = None) -> None:
        """Go to a phase; entering the one it is in shows progress."""
        with self._lock:
            if phase not in (self._phase, Phase.FAILED) and phase not in _MAY_FOLLOW[self._phase]:
                raise AssertionError(f"the trainer cannot go from {self._phase} to {phase}")
            self._phase, self._reason, self._since = phase, reason, self._clock()

    def snapshot(self) -> PhaseSnapshot:
        """The phase, for how long, and whether that is too long."""
        with self._lock:
            age = self._clock() - self._since
            limit = self._limits.limits.get(self._phase)
            return PhaseSnapshot(phase=self._phase, reason=self._reason, for_s=age, limit_s=limit)
