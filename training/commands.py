"""What others may ask of the trainer: it obeys between calls, in order, and answers through a future.

Commands are made on any thread; only the trainer's thread looks at them.
"""

import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from training.checkpoints.manifest import Manifest
from training.ledger.ledger import Skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """Make a checkpoint now; answered when it is durable."""

    by: str | None = None
    note: str | None = None
    answer: "Future[Manifest]" = field(default_factory=Future)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewind:
    """Go back to a checkpoint and on from there, passing over what is to be skipped; answered when it is durable."""

    to: int
    skips: Sequence[Skip] = ()
    unskip: Sequence[str] = ()
    """Orders to skip that hold no more, by name."""
    by: str | None = None
    note: str | None = None
    answer: "Future[Manifest]" = field(default_factory=Future)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Learn nothing until told to go on."""

    reason: str = "asked to"
    answer: "Future[None]" = field(default_factory=Future)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Go on."""

    reason: str | None = None
    """As in "asked to by 127.0.0.1 over HTTP"."""
    answer: "Future[None]" = field(default_factory=Future)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """A profile that was written."""

    folder: Path
    calls: int
    """That it shows: fewer than asked for where they were slow to come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Trace the next calls; answered when the trace is written."""

    calls: int
    folder: Path
    """Where to; of its own."""
    answer: "Future[Profiled]" = field(default_factory=Future)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Finish the call, save, end."""

    answer: "Future[None]" = field(default_factory=Future)


Command = Save | Rewind | Pause | Resume | Profile | Stop


class Commands:
    """The queue between whoever asks and the trainer."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._refusal: Exception | None = None

    def send(self, command: Command) -> "Future[Any]":
        """Ask; never waits."""
        with self._lock:
            if self._refusal is None:
                self._queue.put(command)
            else:
                command.answer.set_exception(self._refusal)
        return command.answer

    def next(self, timeout: float = 0.0) -> Command | None:
        """The next command, if one comes in time."""
        try:
            return self._queue.get(timeout=timeout) if timeout else self._queue.get_nowait()
        except queue.Empty:
            return None

    def refuse_all(self, error: Exception) -> None:
        """Nobody will obey any more: what waits is answered with this error, and so is what comes."""
        with self._lock:
            self._refusal = error
        while (command := self.next()) is not None:
            if not command.answer.done():
                command.answer.set_exception(error)
