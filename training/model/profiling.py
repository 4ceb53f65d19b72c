"""A profile: what TensorFlow does during some calls, as a trace that TensorBoard shows.

Owns TensorFlow's one profiler while a trace is taken, on the trainer's thread. It begins and ends between two calls: it
ends after so many of them, or after a while where the topic is idle, or with the training. One is taken at a time, and
another one is refused. Writing it holds the learning up, by a second or some; a profile that fails disturbs nothing.
"""

import contextlib
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import tensorflow as tf

from training.commands import Profile, Profiled
from training.errors import ProfileBusyError, ProfileError

log = logging.getLogger(__name__)
LONGEST_S = 60.0
"""However few calls there were: what is traced is kept in memory until it ends."""


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
        """Around each call, so that the trace shows it as a step."""
        if self._taking is None:
            return contextlib.nullcontext()
        self._taking.calls += 1
        trace: AbstractContextManager[object] = tf.profiler.experimental.Trace(
            "call", step_num=self._taking.calls, _r=1
        )
        return trace

    def look(self) -> None:
        """Between two calls: end the trace that is complete, or has taken too long."""
        taking = self._taking
        if taking is not None and (taking.calls >= taking.command.calls or self._clock() >= taking.until):
            self.end()

    def end(self) -> None:
        """End the trace under way, if there is one, and answer."""
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
