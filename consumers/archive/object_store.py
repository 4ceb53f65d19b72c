"""An archive in an object store, by any of fsspec's file systems: s3 (s3fs), gs (gcsfs), abfs (adlfs) and others.

The mirror of the checkpoints reads and puts its objects by the same door.

A shard is written to a local file that has no name, so a kill leaves nothing of it, and is put as a whole at the end. A
put is atomic there, and replaces nothing where the store can refuse that. Before each put the lock is looked at, and
the partition is listed, so that nothing is put beside a shard of the same offsets.

Runs on any thread; fsspec has a thread of its own, on which the library repeats what fails in passing. What still fails
is an ArchiveAwayError. Nothing is cached but the connections.
"""

import hashlib
import io
import json
import logging
import os
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from millrace.consumers.archive.archive_store import Wait
from millrace.consumers.archive.shard_names import facts_name, shard_name
from millrace.consumers.durable_files import FileFacts
from millrace.consumers.errors import ArchiveAwayError, ArchiveBusyError, ConfigError, MillraceError
from millrace.consumers.failpoints import failpoint

log = logging.getLogger(__name__)


RENEW_S = 10.0
STALE_S = 60.0
_LOOK_S = 1.0
_NAME = ".lock-"
_LAST_LOOK_S = 5.0


class ObjectLock:
    """The right to write into an archive, while it is entered.

    An object store has no lock, so an object is one:

        <archive.path>/.lock-0000000007     who writes, and since when; put again every 10 s while its writer lives

    The greatest number holds. It is created where none is, so that of two who want it only one gets it, and numbers
    only grow: who has stood still and wakes finds a greater one, and puts nothing more. A writer that ends says so. One
    that was killed does not: the next one watches its object, and takes over when it has not changed for a minute, by
    its own clock, so that no two clocks are compared.

    Owns the thread `archive-lock`, which renews the object while the lock is held. `require` is for the writer's
    thread, before each put. Between that look and the end of the put a process may be stopped for more than a minute:
    then two shards may have the same offsets, which a listing reports.
    """

    def __init__(self, store: "ObjectStore", wait: Wait) -> None:
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


_T = TypeVar("_T")
_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs"}
_AHEAD_BYTES = 8 * 2**20
"""About a piece of a shard: it takes a request or two, and the next one's beginning comes with it."""
_HASHED_BYTES = 32 * 2**20


class ObjectStore:
    """The objects whose names begin with a URL."""

    def __init__(self, url: str, setting: str = "archive.path") -> None:
        """Errors name `setting`. ConfigError where a package for the URL is missing."""
        self._url, self._setting = url.rstrip("/"), setting
        self._fs, self._root = _file_system(self._url, setting)
        self._lock: ObjectLock | None = None

    def path(self, key: str) -> str:
        return f"{self._url}/{key}"

    def room(self) -> Path:
        """Return the system's folder for temporary files."""
        return Path(tempfile.gettempdir())

    def folders(self, key: str) -> list[str]:
        """Return the names of what has objects below it, in no order."""
        return [_last(entry) for entry in self._entries(key) if entry["type"] == "directory"]

    def files(self, key: str) -> list[str]:
        """Return the names of the objects in a folder, in no order."""
        return [_last(entry) for entry in self._entries(key) if entry["type"] == "file"]

    def read(self, keys: Sequence[str]) -> list[bytes | OSError]:
        """Return the contents of small objects, several of which are read at a time; or why one cannot be read."""
        places = [self._at(key) for key in keys]
        found = self._asked(lambda: self._fs.cat_ranges(places, None, None, on_error="return")) if keys else []
        for one in found:
            if isinstance(one, Exception) and not isinstance(one, FileNotFoundError):
                raise self._away(one) from one
        return list(found)

    def open(self, key: str, size: int) -> io.BufferedReader:
        """Open an object, of which ranges are read as they are needed, and at least 8 MiB at a time."""
        return io.BufferedReader(_ObjectFile(self, key, size), _AHEAD_BYTES)

    def complaint(self, key: str, expected: FileFacts, *, deep: bool) -> str | None:
        """Describe what is wrong with an object; None where nothing is."""
        name = key.rpartition("/")[2]
        try:
            size = self._size(key)
            if size != expected.size:
                return f"{name} holds {size} bytes instead of {expected.size}"
            if deep and self._hash(key, size) != expected.sha256:
                return f"{name} is not what was written: its SHA-256 differs"
        except FileNotFoundError:
            return f"{name} is missing"
        return None

    def draft(self, key: str) -> "ObjectDraft":  # noqa: ARG002 - what is being written has no name
        """Begin a shard in a local file without a name."""
        return ObjectDraft(self)

    def remove(self, keys: Sequence[str]) -> None:
        """Remove objects, in this order."""
        for key in keys:
            place = self._at(key)
            try:
                self._asked(lambda place=place: self._fs.rm_file(place))  # type: ignore[misc]
            except FileNotFoundError:
                continue

    def lock(self, wait: Wait) -> ObjectLock:
        """Return the right to write below this URL, while it is entered."""
        self._lock = ObjectLock(self, wait)
        return self._lock

    def read_range(self, key: str, start: int, end: int) -> bytes:
        """Return the bytes of an object from `start` to before `end`."""
        raw: bytes = self._asked(lambda: self._fs.cat_file(self._at(key), start=start, end=end))
        return raw

    def put(self, key: str, raw: bytes) -> None:
        """Put a small object in place of what is there."""
        self._written(lambda: self._fs.pipe_file(self._at(key), raw))

    def create(self, key: str, raw: bytes) -> None:
        """Put a small object where none is; FileExistsError where one is, as far as the store can tell."""
        self._written(lambda: self._fs.pipe_file(self._at(key), raw, mode="create"))

    def put_file(self, key: str, path: str, *, replace: bool = False) -> None:
        """Put a local file where no object is; FileExistsError where one is, as far as the store can tell.

        With `replace` it is put in place of what is there.
        """
        self._written(lambda: self._fs.put_file(path, self._at(key), mode="overwrite" if replace else "create"))

    def require_free(self, key: str, written: FileFacts | None = None) -> bool:
        """Return whether this very shard is there already; ArchiveBusyError where another writer has its offsets."""
        if self._lock is not None:
            self._lock.require()
        home, _, own = key.rpartition("/")
        wanted = shard_name(own)
        for name in self.files(home):
            found = shard_name(name)
            if wanted is None or found is None or not wanted.overlaps(found):
                continue
            # An answer may be lost on the way: then the shard that is there is the one that was put.
            if name == own and written is not None and self.complaint(key, written, deep=True) is None:
                return True
            raise ArchiveBusyError(
                f"another archiver has published {self.path(home)}/{name}, with offsets of {own}: stop one of the two; "
                "this one has put nothing there"
            )
        return False

    def _entries(self, key: str) -> list[dict[str, Any]]:
        try:
            return self._asked(lambda: self._fs.ls(self._at(key), detail=True))
        except FileNotFoundError as error:
            if error.__cause__ is None:
                return []  # nothing has a name that begins so
            raise ConfigError(
                f"{self._setting}: {self._url} is not there: {_words(error)}; create the bucket"
            ) from error

    def _size(self, key: str) -> int:
        return int(self._asked(lambda: self._fs.info(self._at(key)))["size"])

    def _hash(self, key: str, size: int) -> str:
        digest = hashlib.sha256()
        for start in range(0, size, _HASHED_BYTES):
            digest.update(self.read_range(key, start, min(size, start + _HASHED_BYTES)))
        return digest.hexdigest()

    def _at(self, key: str) -> str:
        return f"{self._root}/{key}" if key else self._root

    def _written(self, work: Callable[[], object]) -> None:
        try:
            self._asked(work)
        except FileNotFoundError as error:
            raise ConfigError(f"{self._setting}: cannot write to {self._url}: {_words(error)}") from error

    def _asked(self, work: Callable[[], _T]) -> _T:
        """Do what asks the store. Raises FileNotFoundError, FileExistsError, or ArchiveAwayError for all the rest."""
        # A listing that is kept would hide what other processes have put since.
        self._fs.invalidate_cache()
        try:
            return work()
        except (FileNotFoundError, FileExistsError):
            raise
        except Exception as error:  # each store's library has errors of its own, and of the ones it is built on
            raise self._away(error) from error

    def _away(self, error: Exception) -> ArchiveAwayError:
        return ArchiveAwayError(
            f"{self._setting}: {self._url} cannot be reached: {_words(error)}; look at the store, at the credentials, "
            "and at its endpoint in the environment"
        )


class ObjectDraft:
    """A local file without a name, which is put under one at the end."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        with tempfile.TemporaryFile(buffering=0) as file:
            self._handle = os.dup(file.fileno())

    @property
    def handle(self) -> int:
        return self._handle

    def seal(self) -> None:
        """Do nothing: only what was put is durable."""

    def describe(self, key: str, facts: bytes) -> None:
        """Put the JSON file, if nobody has a shard of these offsets."""
        self._store.require_free(key)
        self._store.put(facts_name(key), facts)

    def publish(self, key: str, written: FileFacts) -> None:
        """Put the data, if nobody has a shard of these offsets."""
        if not self._store.require_free(key, written):
            os.lseek(self.handle, 0, os.SEEK_SET)  # where /dev/fd shares the position, as on macOS
            try:
                self._store.put_file(key, f"/dev/fd/{self.handle}")
            except FileExistsError:
                self._store.require_free(key, written)
        failpoint("archive.after_rename")
        self.discard()

    def discard(self) -> None:
        """Close the file, which ends it."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


class _ObjectFile(io.RawIOBase):
    """An object as a file; each read is one request."""

    def __init__(self, store: ObjectStore, key: str, size: int) -> None:
        self._store, self._key, self._size = store, key, size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        """Return where the next read begins."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Set where the next read begins."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        """Read as many bytes as there are and as fit."""
        end = min(self._size, self._position + len(buffer))
        if end <= self._position:
            return 0
        raw = self._store.read_range(self._key, self._position, end)
        buffer[: len(raw)] = raw
        self._position += len(raw)
        return len(raw)


def _file_system(url: str, setting: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the place in it."""
    protocol = url.partition("://")[0]
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415 - it may be missing, which is an error with a way out

        fs, root = url_to_fs(url)
    except ImportError as error:
        package = _PACKAGES.get(protocol, "fsspec")
        raise ConfigError(f"{setting}: {url} needs the package {package}: pip install {package}") from error
    except ValueError as error:
        raise ConfigError(
            f"{setting}: {url} names no object store ({error}): write a folder, or a URL that begins with s3://, "
            "gs:// or abfs://"
        ) from error
    return fs, str(root).rstrip("/")


def _last(entry: dict[str, Any]) -> str:
    return str(entry["name"]).rstrip("/").rpartition("/")[2]


def _words(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
