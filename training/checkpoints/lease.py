"""The one writer of a folder: a lock that dies with its process, a lease that shows life, a term that only grows.

Owns `lock.<term>`: held by flock, and touched every 2 s by the daemon thread "lease" (touching needs no space, so a
full disk costs no process the folder). Its contents say who holds it, where the disk has room for them. On a full disk
the record of the term needs room, which the caller makes. The thread ends with `release`, or when it finds
that a greater term was claimed: then it calls `on_passed` once, at the latest one renewal after the process runs again.

How a folder is taken:
1. The newest lock is free: its writer is dead. Take over at once.
2. It is held, and is touched while we watch: refuse, naming the holder.
3. It is held, and was not touched for 10 s by this process's own clock: its holder is stopped. Take over; no clocks of
   different machines are compared.
Taking over means creating the next lock file, which only one process can do, locking it, and looking again whether it
is the newest. Lock files of smaller terms may be removed, the newest never is.
"""

import fcntl
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from millrace.consumers.durable_files import is_full
from millrace.consumers.errors import ConfigError, MillraceError
from millrace.training.checkpoints.fencing import NOTHING, begin
from millrace.training.checkpoints.files import unwritable
from millrace.training.checkpoints.folder import Folder
from millrace.training.errors import FolderBusyError, PassedError

log = logging.getLogger(__name__)


def holder_of(folder: Folder) -> str | None:
    """Describe the process that holds the folder; None while none does. Takes and writes nothing, on any thread.

    A lock that can be shared has no holder. It is released at once, and a writer that arrives in that very instant just
    tries again.
    """
    newest = folder.highest_term()
    try:
        handle = os.open(folder.lock(newest), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return describe_holder(folder, newest)
    else:
        return None
    finally:
        os.close(handle)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseOptions:
    """How a writer shows that it lives, and when others count it as stopped."""

    renew_every: float = 2.0
    """Seconds between touches."""
    stale_after: float = 10.0
    """A held lock that was not touched for this many seconds belongs to a stopped process."""
    poll_every: float = 0.1
    """Seconds between looks while watching the lock of another process."""
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep


class FolderLease:
    """The right to write into a folder, until it is released or passed."""

    def __init__(self, folder: Folder, term: int, lock: int) -> None:
        self.folder = folder
        self.term = term
        self._lock = lock
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def acquire(
        cls,
        folder: Folder,
        holder: str,
        *,
        options: LeaseOptions | None = None,
        on_passed: Callable[[PassedError], None] = lambda _error: None,
        make_room: "Callable[[FolderLease], bool]" = lambda _writer: False,
        before_term: "Callable[[FolderLease], int]" = lambda _writer: NOTHING,
    ) -> "FolderLease":
        """Take the folder, or raise FolderBusyError naming who has it, or ConfigError where it cannot be written.

        `holder` describes this process to others that find the folder busy. `on_passed` is called on the lease's
        thread. `make_room` is called where the disk is full, until it returns False: it removes what may go, and
        returns whether it removed anything. `before_term` is called while the folder is held and the term has not
        begun: what it brings into the folder is older than the term, and no number up to the one that it returns is
        given again.
        """
        options = options or LeaseOptions()
        folder.create()
        since = datetime.now(UTC).isoformat(timespec="seconds")
        facts = {"holder": holder, "pid": os.getpid(), "host": socket.gethostname(), "since": since}
        try:
            writer = cls(folder, *_Contest(folder, facts, options).win())
            # Renewed before the record of the term is written: on a slow disk that may take longer than others wait.
            writer._live(options, on_passed)
            try:
                floor = before_term(writer)
            except BaseException:
                writer.release()
                raise
            writer._begin(facts, make_room, floor)
        except MillraceError:
            raise
        except OSError as error:
            raise ConfigError(unwritable(folder.root, error)) from error
        log.info("writing to %s with term %d", folder.root, writer.term)
        return writer

    def check(self) -> None:
        """Raise PassedError when another process has begun a greater term."""
        newest = self.folder.highest_term()
        if newest > self.term:
            raise PassedError(
                f"{describe_holder(self.folder, newest)} took over {self.folder.root} with term {newest} while this "
                f"process (term {self.term}) showed no life: this one ends, and publishes nothing"
            )

    def touch(self) -> None:
        """Touch the lock file, so that others see that this process lives."""
        os.utime(self.folder.lock(self.term))

    def release(self) -> None:
        """Give the folder back: the next writer takes over at once."""
        self._stop.set()
        # `on_passed` may release on the lease's own thread, and a thread cannot join itself.
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _live(self, options: LeaseOptions, on_passed: Callable[[PassedError], None]) -> None:
        args = (self, options, self._stop, on_passed)
        self._thread = threading.Thread(target=_keep_alive, args=args, name="lease", daemon=True)
        self._thread.start()

    def _begin(self, facts: dict[str, Any], make_room: "Callable[[FolderLease], bool]", floor: int) -> None:
        try:
            self._record(facts, make_room, floor)
            for older in self.folder.locks():
                if older < self.term:
                    self.folder.lock(older).unlink(missing_ok=True)
        except BaseException:
            self.release()
            raise

    def _record(self, facts: dict[str, Any], make_room: "Callable[[FolderLease], bool]", floor: int) -> None:
        """Record that the term has begun. On a full disk, make room and try again."""
        while True:
            try:
                begin(self.folder, self.term, facts, floor)
            except OSError as error:
                if not is_full(error) or not make_room(self):
                    raise
            else:
                return


@dataclass(slots=True)
class _Contest:
    """One attempt to become the writer."""

    folder: Folder
    facts: dict[str, Any]
    options: LeaseOptions
    watched: tuple[int, int] | None = None
    since: float = field(default=0.0)

    def win(self) -> tuple[int, int]:
        """Wait until the folder is free or proves to be held. Returns the new term and the handle of its lock."""
        while True:
            newest = self.folder.highest_term()
            predecessor = _lock_file(self.folder, newest)
            try:
                if predecessor is not None or not self.folder.lock(newest).exists() or self._is_stale(newest):
                    lock = _claim(self.folder, newest + 1, self.facts)
                    if lock is not None:
                        return newest + 1, lock
                else:
                    self.options.pause(self.options.poll_every)
            finally:
                if predecessor is not None:
                    os.close(predecessor)

    def _is_stale(self, term: int) -> bool:
        """Watch a lock that is held; FolderBusyError as soon as it is touched."""
        now, seen = self.options.clock(), (term, _touched_at(self.folder, term))
        if self.watched is not None and self.watched[0] == term and self.watched != seen:
            raise FolderBusyError(
                f"{self.folder.root} is held by {describe_holder(self.folder, term)}, term {term}: "
                "stop that trainer first, or give this one another name or checkpoints.path"
            )
        if self.watched != seen:
            self.watched, self.since = seen, now
        return now - self.since > self.options.stale_after


def describe_holder(folder: Folder, term: int) -> str:
    """Describe the process that holds a term."""
    try:
        facts = json.loads(folder.lock(term).read_bytes())
        return f"{facts['holder']} (process {facts['pid']} on {facts['host']}, since {facts['since']})"
    # A lock file is empty for a moment after its creation.
    except (OSError, ValueError, KeyError, TypeError):
        return "an unknown process"


def _claim(folder: Folder, term: int, facts: dict[str, Any]) -> int | None:
    """Create and lock the lock file of the next term; None when another process was first."""
    try:
        # Closed in child processes: flock belongs to the open file, so a child would hold the folder after our death.
        handle = os.open(folder.lock(term), os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return None
    # Between creating and locking, another process may find the lock free, count its writer as dead, and take the next
    # term.
    if not _locked(handle) or folder.highest_term() != term:
        os.close(handle)
        return None
    try:
        os.write(handle, json.dumps({**facts, "term": term}).encode())
    except OSError as error:
        # The lock holds without its contents, which only describe the holder.
        if not is_full(error):
            raise
    return handle


def _lock_file(folder: Folder, term: int) -> int | None:
    """Lock an existing lock file whose writer is dead; None when it is held, or gone."""
    try:
        handle = os.open(folder.lock(term), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    if _locked(handle):
        return handle
    os.close(handle)
    return None


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _touched_at(folder: Folder, term: int) -> int:
    """Return when a lock was touched. The file is opened first, so that a network file system asks its server."""
    try:
        with folder.lock(term).open("rb") as file:
            return os.fstat(file.fileno()).st_mtime_ns
    except FileNotFoundError:
        return 0


def _keep_alive(
    writer: FolderLease, options: LeaseOptions, stop: threading.Event, on_passed: Callable[[PassedError], None]
) -> None:
    """Touch the lock until the lease is released or passed. While the disk fails, try again."""
    while not stop.wait(options.renew_every):
        try:
            writer.check()
            writer.touch()
        except PassedError as error:
            log.error("%s", error)  # noqa: TRY400 - one line, as for every error that names its way out
            on_passed(error)
            return
        except (OSError, ConfigError) as error:
            log.warning("the lease on %s was not renewed: %s", writer.folder.root, error)
