"""The lock of an archive in an object store, which has none: one process writes into it at a time.

    <archive.path>/.lock-0000000007         who writes, and since when; put again every 10 s while its writer lives

The greatest number holds. It is created where none is, so that of two who want it only one gets it, and numbers only
grow: who has stood still and wakes finds a greater one, and puts nothing more. A writer that ends says so. One that was
killed does not: the next one watches its object, and takes over when it has not changed for a minute, by its own clock,
so that no two clocks are compared.

Owns the thread `archive-lock`, which renews the object while the lock is held. `require` is for the writer's thread,
before each put. Between that look and the end of the put a process may be stopped for more than a minute: then two
shards may have the same offsets, which a listing reports.
"""

import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Protocol, Self

from millrace.consumers.archive.archive_store import Wait
from millrace.consumers.errors import ArchiveAwayError, ArchiveBusyError, MillraceError

log = logging.getLogger(__name__)

RENEW_S = 10.0
STALE_S = 60.0
_LOOK_S = 1.0
_NAME = ".lock-"
_LAST_LOOK_S = 5.0


class Objects(Protocol):
    """What the lock needs of a store."""

    def path(self, key: str) -> str:
        """Return the URL of an object."""

    def files(self, key: str) -> Sequence[str]:
        """Return the names of the objects in a folder."""

    def read(self, keys: Sequence[str]) -> Sequence[bytes | OSError]:
        """Return the contents of small objects."""

    def put(self, key: str, raw: bytes) -> None:
        """Put a small object in place of what is there."""

    def create(self, key: str, raw: bytes) -> None:
        """Put a small object where none is."""

    def remove(self, keys: Sequence[str]) -> None:
        """Remove objects."""


class ObjectLock:
    """The right to write into an archive, while it is entered."""

    def __init__(self, store: Objects, wait: Wait) -> None:
        self._store, self._wait = store, wait
        self._id = uuid.uuid4().hex
        self._number = 0
        self._released = threading.Event()
        self._renewal = threading.Thread(target=self._renew, name="archive-lock", daemon=True)

    def __enter__(self) -> Self:
        """Take the archive; where a writer was killed, after the time in which one that lives is seen to live."""
        newest = self._newest()
        if newest:
            self._outwait(newest)
        self._number = newest + 1
        try:
            self._store.create(_key(self._number), self._document())
        except (FileExistsError, ArchiveAwayError):
            # Whose it is, the object itself says: an answer may be lost, and a store may refuse in its own words.
            if not self._read(self._number):
                raise
        self.require()
        self._store.remove([_key(number) for number in self._numbers() if number < self._number])
        self._renewal.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the archive back."""
        self._released.set()
        self._renewal.join(_LAST_LOOK_S)
        try:
            self.require()
            self._store.put(_key(self._number), self._document())
        except MillraceError as failed:
            log.debug("the lock is not given back: %s", failed)

    def require(self) -> None:
        """Raise ArchiveBusyError where another process has taken over."""
        newest = self._newest()
        if newest != self._number or self._read(newest).get("id") != self._id:
            raise self._busy(newest)

    def _renew(self) -> None:
        while not self._released.wait(RENEW_S):
            try:
                self._store.put(_key(self._number), self._document())
            except MillraceError as error:
                # Not to be repeated here: the writer finds out before its next put whether it still has the lock.
                log.debug("the lock is not renewed: %s", error)

    def _outwait(self, number: int) -> None:
        """Return when nobody holds this number. Raises ArchiveBusyError where somebody does."""
        seen = self._read(number)
        if not seen or seen.get("released"):
            return
        log.info(
            "%s has not given back %s: waiting up to %.0f s to see whether it still writes",
            seen.get("holder"),
            self._store.path(""),
            STALE_S,
        )
        until = time.monotonic() + STALE_S
        while time.monotonic() < until:
            if self._wait(_LOOK_S):
                raise ArchiveBusyError(f"{self._store.path('')} may be written by {seen.get('holder')}: not begun")
            if self._newest() != number or self._read(number) != seen:
                raise self._busy(self._newest())

    def _busy(self, number: int) -> ArchiveBusyError:
        holder = self._read(number).get("holder", "another process") if number else "another process"
        return ArchiveBusyError(
            f"{self._store.path('')} is written by {holder}: stop that archiver first, or give this one another "
            "archive.path"
        )

    def _newest(self) -> int:
        return max(self._numbers(), default=0)

    def _numbers(self) -> list[int]:
        found = [name.removeprefix(_NAME) for name in self._store.files("") if name.startswith(_NAME)]
        return [int(number) for number in found if number.isdecimal()]

    def _read(self, number: int) -> dict[str, Any]:
        (raw,) = self._store.read([_key(number)])
        if isinstance(raw, OSError):
            return {}
        try:
            found = json.loads(raw)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _document(self) -> bytes:
        document = {
            "id": self._id,
            "holder": f"process {os.getpid()} on {socket.gethostname()}",
            "renewed": datetime.now(UTC).isoformat(),
            "released": self._released.is_set(),
        }
        return (json.dumps(document, indent=2) + "\n").encode()


def _key(number: int) -> str:
    return f"{_NAME}{number:010}"
