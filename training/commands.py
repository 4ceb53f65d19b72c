"""Commands to the trainer: it obeys them between calls, in the order sent, and answers each through a future.

Any thread sends commands; only the trainer's thread takes them from the queue.
"""

import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millrace.training.checkpoints.manifest import Manifest
from millrace.training.ledger.ledger import Skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """Write a checkpoint now; answered when it is durable."""

    by: str | None = None
    note: str | None = None
    answer: "Future[Manifest]" = field(default_factory=Future)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewind:
    """Resume from an older checkpoint, without the ranges to skip; answered when the rewind is durable and loaded."""

    to: int
    skips: Sequence[Skip] = ()
    unskip: Sequence[str] = ()
    """The names of earlier skips that no longer apply."""
    by: str | None = None
    note: str | None = None
    answer: "Future[Manifest]" = field(default_factory=Future)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Learn nothing until a `Resume`."""

    reason: str = "asked to"
    answer: "Future[None]" = field(default_factory=Future)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Learn again after a `Pause`."""

    reason: str | None = None
    """Why, for example "asked to by 127.0.0.1 over HTTP"."""
    assume_absent: bool = False
    """Whether labels that do not come are taken for none."""
    answer: "Future[None]" = field(default_factory=Future)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """A profile that was written."""

    folder: Path
    calls: int
    """The calls that it shows; fewer than asked for if there were not enough of them in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Trace the next calls; answered when the trace is written."""

    calls: int
    folder: Path
    """The folder to write; it holds nothing else."""
    answer: "Future[Profiled]" = field(default_factory=Future)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End in order: finish the call, write the last checkpoint; answered when that is durable."""

    answer: "Future[None]" = field(default_factory=Future)


Command = Save | Rewind | Pause | Resume | Profile | Stop


class Commands:
    """The queue of commands; it has no bound, and its senders wait for the answers."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._refusal: Exception | None = None

    def send(self, command: Command) -> "Future[Any]":
        """Queue a command and return its answer's future; never waits."""
        with self._lock:
            # `refuse_all` sets the refusal under this lock and then drains the queue, so no command is left unanswered.
            if self._refusal is None:
                self._queue.put(command)
            else:
                command.answer.set_exception(self._refusal)
        return command.answer

    def next(self, timeout: float = 0.0) -> Command | None:
        """Return the next command, or None if none arrives within `timeout` seconds."""
        try:
            return self._queue.get(timeout=timeout) if timeout else self._queue.get_nowait()
        except queue.Empty:
            return None

    def refuse_all(self, error: Exception) -> None:
        """Answer every command that waits, and every later one, with this error: the trainer has ended."""
        with self._lock:
            self._refusal = error
        while (command := self.next()) is not None:
            if not command.answer.done():
                command.answer.set_exception(error)
