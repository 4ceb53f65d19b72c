"""A profile: what TensorFlow does during some calls, as a trace that TensorBoard shows.

Owns TensorFlow's only profiler while a trace is taken, on the trainer's thread. A trace begins and ends between two
calls: it ends after the number of calls that was asked for, after `LONGEST_S` where the topic is idle, or with the
training. Only one is taken at a time; a second one is refused. Writing it blocks the learning for a few seconds. A
profile that fails does not disturb the learning.
"""

import contextlib
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import tensorflow as tf

from millrace.training.commands import Profile, Profiled
from millrace.training.errors import ProfileBusyError, ProfileError

log = logging.getLogger(__name__)


LONGEST_S = 60.0
"""A trace ends after this time even with fewer calls, because it is kept in memory until it ends."""


@dataclass(slots=True)
class _Taking:
    """The trace under way."""

    command: Profile
    until: float
    calls: int = 0


class Profiling:
    """The profiles of one trainer."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._taking: _Taking | None = None

    def begin(self, command: Profile) -> None:
        """Begin a trace; it is answered when it is written, or at once where it cannot be taken."""
        if self._taking is not None:
            command.answer.set_exception(
                ProfileBusyError("a profile is being taken already; ask again when it is written")
            )
            return
        try:
            command.folder.mkdir(parents=True, exist_ok=True)
            tf.profiler.experimental.start(str(command.folder))
        except (OSError, tf.errors.OpError) as error:
            command.answer.set_exception(_failed(error))
            return
        log.info("profiling %d calls", command.calls)
        self._taking = _Taking(command, self._clock() + LONGEST_S)

    def call(self) -> AbstractContextManager[object]:
        """Return a context for one call, so that the trace shows the call as a step."""
        if self._taking is None:
            return contextlib.nullcontext()
        self._taking.calls += 1
        # `_r=1` makes the profiler count this trace as a step.
        trace: AbstractContextManager[object] = tf.profiler.experimental.Trace(
            "call", step_num=self._taking.calls, _r=1
        )
        return trace

    def look(self) -> None:
        """End the trace if it is complete or has taken too long; called between two calls."""
        taking = self._taking
        if taking is not None and (taking.calls >= taking.command.calls or self._clock() >= taking.until):
            self.end()

    def end(self) -> None:
        """End the trace under way, if there is one, and answer its command."""
        taking, self._taking = self._taking, None
        if taking is None:
            return
        try:
            tf.profiler.experimental.stop()
        except (OSError, tf.errors.OpError) as error:
            taking.command.answer.set_exception(_failed(error))
            return
        log.info("the profile is in %s", taking.command.folder, extra={"calls": taking.calls})
        taking.command.answer.set_result(Profiled(folder=taking.command.folder, calls=taking.calls))


def _failed(error: Exception) -> ProfileError:
    lines = str(error).strip().splitlines()
    return ProfileError(f"TensorFlow took no profile ({type(error).__name__}: {lines[0] if lines else 'no message'})")
