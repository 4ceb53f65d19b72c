"""The thread that writes, so that the trainer's thread only copies.

Owns the daemon thread "checkpoint-writer", the only one that publishes. It takes one save at a time: a second one is
refused while the first is running, and the caller asks `busy` before it copies anything. `close` ends the thread: it
waits for the running save until its deadline, and says whether it had to leave the save behind.

A save can be cancelled until right before its manifest. From there on it takes as long as a rename, and callers wait
for it.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue

from millrace.training.checkpoints.manifest import Manifest, SaveRequest
from millrace.training.checkpoints.parts import PartState
from millrace.training.checkpoints.store import CheckpointStore
from millrace.training.errors import CheckpointError, PassedError

log = logging.getLogger(__name__)


_RENAME_S = 30.0
"""How long the few steps after the gate may take before the disk counts as hung."""


class _PointOfNoReturn:
    """The point of no return of one save: either it was cancelled before, or it is passed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._passed = False
        self.cancelled = False

    def __call__(self) -> None:
        with self._lock:
            if self.cancelled:
                raise CheckpointError("the save was cancelled by a later command; nothing of it was published")
            self._passed = True

    def cancel(self) -> bool:
        """Cancel the save, unless it is too late."""
        with self._lock:
            self.cancelled = not self._passed
            return self.cancelled


@dataclass(frozen=True, slots=True)
class _RunningSave:
    """A save, as its caller sees it. It holds no snapshot, so that the snapshot's memory is free after the writing."""

    gate: _PointOfNoReturn = field(default_factory=_PointOfNoReturn)
    future: Future[Manifest] = field(default_factory=Future)


_Publish = Callable[..., Manifest]
"""Publishes a checkpoint, given the gate to pass before its manifest."""
_Jobs = SimpleQueue[tuple[_Publish, _RunningSave] | None]


class CheckpointWriter:
    """Publishes snapshots, one at a time, in a thread of its own."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._current: _RunningSave | None = None
        self._closed = False
        self._jobs: _Jobs = SimpleQueue()
        # A daemon, because a disk that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=_write, args=(self._jobs,), name="checkpoint-writer", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a save is running that was not cancelled."""
        save = self._current
        return save is not None and not save.future.done() and not save.gate.cancelled

    def submit(self, request: SaveRequest, parts: Mapping[str, PartState]) -> Future[Manifest]:
        """Hand a snapshot to the writer's thread. CheckpointError while another save is running."""
        with self._lock:
            if self._closed or self.busy:
                state = "closed" if self._closed else "still writing the save before"
                raise CheckpointError(f"the checkpoint writer is {state}: nothing was copied, nothing is saved")
            save = self._current = _RunningSave()
            self._jobs.put((partial(self._store.publish, request, parts), save))
        return save.future

    def cancel_or_settle(self, deadline_s: float) -> Manifest | None:
        """Give the running save this long to become durable, then cancel it.

        Afterwards nothing that was submitted before will be published. Returns the manifest of a save that became
        durable; None where there was none, or it failed, or it was cancelled.
        """
        save = self._current
        if save is None:
            return None
        wait([save.future], timeout=deadline_s)
        # A cancelled save may still be writing files, but it cannot pass its gate, so it publishes nothing.
        if not save.future.done() and save.gate.cancel():
            return None
        wait([save.future], timeout=_RENAME_S)
        if not save.future.done():
            raise CheckpointError(f"the running save hangs in its last step for {_RENAME_S:g} s: look at the disk")
        error = save.future.exception()
        if isinstance(error, PassedError):
            raise error
        return save.future.result() if error is None else None

    def close(self, deadline_s: float) -> bool:
        """End the thread after the running save. False when it was still writing at the deadline, and was left."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._jobs.put(None)
        self._thread.join(deadline_s)
        if self._thread.is_alive():
            log.warning("the running save did not end within %g s and is left behind unfinished", deadline_s)
        return not self._thread.is_alive()


def _write(jobs: _Jobs) -> None:
    """Publish each job until None comes; the body of the thread."""
    while (job := jobs.get()) is not None:
        _run(*job)
        del job  # the snapshot's memory is free while the next one is waited for


def _run(publish: _Publish, save: _RunningSave) -> None:
    try:
        manifest = publish(gate=save.gate)
    except Exception as error:  # noqa: BLE001 - every error belongs to the caller that waits for the save
        save.future.set_exception(error)
    else:
        save.future.set_result(manifest)
