"""The watch: gives the other members up where they take too long in an exchange or a call.

TensorFlow has a limit for each collective, and keeps it by a thread for each, which sleeps for the whole limit even if
the collective is done at once. A group makes hundreds of collectives a second: the process would soon have no thread
left. So collectives have no limit of their own here, and this is the one thread that looks after all of them.

Owns the thread `group-watch`, which ends with the process, or once it has given the others up. The thread that trains
says for how long it may take; every collective that waits then raises, and so does each later one.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import tensorflow as tf
from tensorflow.python.eager import context  # what TensorFlow's own check of the members' health calls

_LOOKS_EVERY_S = 0.5


def _abort() -> None:
    context.context().abort_collective_ops(tf.errors.DEADLINE_EXCEEDED, "another member did not answer in time")


class Watch:
    """Gives up what takes longer than it may."""

    def __init__(self, abort: Callable[[], None] = _abort, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._abort, self._clock = abort, clock
        self._ends_at: float | None = None
        self._thread = threading.Thread(target=self._look, name="group-watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Give the others up unless the body ends in time; what is inside of another has a limit of its own."""
        outer, self._ends_at = self._ends_at, self._clock() + seconds
        try:
            yield
        finally:
            self._ends_at = outer

    def _look(self) -> None:
        while (ends_at := self._ends_at) is None or self._clock() < ends_at:
            time.sleep(_LOOKS_EVERY_S)
        self._abort()
