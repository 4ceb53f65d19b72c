"""Sends the files of a folder to a topic, each once, also of a folder that grows and over restarts.

What was sent stands in an SQLite file, in this order for each batch:

1. Kafka has acknowledged the batch's records, by all replicas.
2. Their files are committed to the SQLite file, which is synced.
3. They count as sent.

A kill between 1 and 2 sends that batch, at most 8 MiB, again at the next start: at least once, never lost. In memory
are one batch and the names in one folder at a time.
"""

import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Self

from millrace.consumers.errors import ConfigError, MillraceError
from millrace.consumers.kafka.topic_writer import Record, TopicWriter

LARGEST_RECORD = 1_000_000
"""Below the 1 MiB that Kafka and the producer allow by default, with room for key, headers and the batch's frame."""
_BATCH_BYTES, BATCH_RECORDS = 8 * 1024 * 1024, 1000
_WITHIN_S, _EVERY_S = 60.0, 1.0
_TEMPORARY = (".tmp", ".part", ".partial", ".crdownload")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (name BLOB PRIMARY KEY, size INTEGER, sent INTEGER, outcome TEXT) WITHOUT ROWID
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderOptions:
    """Which files to send, and how."""

    folder: Path
    lines: bool = False
    """Whether each line is a record; else each file is one."""
    header: bool = False
    """Whether the first line of a file names its columns and is not sent; only with `lines`."""
    quiet_s: float = 2.0
    """A file is sent when it has not been written, renamed or changed for this long."""


@dataclass(slots=True)
class Sent:
    """What one process has done."""

    files: int = 0
    records: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    """The number of bad files, by reason."""
    waiting: int = 0
    """Files that are not quiet yet, as the last look found them."""


class BadFileError(Exception):
    """A file that is not sent, with the reason."""


class NotQuietError(Exception):
    """A file that may still be written."""


class SentFiles:
    """The durable record of what was sent. One process at a time holds it."""

    def __init__(self, path: Path) -> None:
        """Open or create the file. ConfigError if another process has it, or if it cannot be written."""
        self._path = path
        with self._usable("another millrace produce may have it, or name a place that can be written"):
            self._base = sqlite3.connect(path, timeout=0, isolation_level=None)
            self._base.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._base.execute("PRAGMA synchronous = EXTRA")
            self._base.execute("BEGIN EXCLUSIVE")
            self._base.execute(_SCHEMA)
            self._base.execute("COMMIT")

    def known(self, name: bytes) -> tuple[int, int, str] | None:
        """Return the size, the bytes sent and the outcome (empty while some are left) of a file; None if it is new."""
        row: tuple[int, int, str] | None = self._base.execute(
            "SELECT size, sent, outcome FROM files WHERE name = ?", (name,)
        ).fetchone()
        return row

    def commit(self, rows: list[tuple[bytes, int, int, str]]) -> None:
        """Make the outcome of these files durable, all or none. ConfigError if there is no room."""
        with self._usable("make room and start again: the last batch is sent once more"):
            self._base.execute("BEGIN")
            self._base.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?)", rows)
            self._base.execute("COMMIT")

    def close(self) -> None:
        """Let another process have it."""
        self._base.close()

    @contextmanager
    def _usable(self, otherwise: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise ConfigError(f"--state: {self._path} cannot be used ({error}); {otherwise}") from error


class FolderProducer:
    """Sends what is new in a folder. For one thread; a context manager."""

    def __init__(
        self, options: FolderOptions, state: SentFiles, writer: TopicWriter, report: Callable[[str], None]
    ) -> None:
        """`report` gets one line for each bad file."""
        self.sent = Sent()
        self._options, self._state, self._writer, self._report = options, state, writer, report
        self._unreadable = set[Path]()
        self._records, self._rows, self._bytes = list[Record](), list[tuple[bytes, int, int, str]](), 0

    def __enter__(self) -> Self:
        self._writer.start()
        self._writer.check(_WITHIN_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.stop()
        self._state.close()

    def follow(self, ended: threading.Event) -> None:
        """Send what comes, until `ended`. A look costs at most a fifth of the time."""
        while not ended.is_set():
            began = time.monotonic()
            self.send_new(ended)
            ended.wait(max(_EVERY_S, 4 * (time.monotonic() - began)))

    def send_all(self) -> None:
        """Send what there is, files included that become quiet meanwhile."""
        self.send_new()
        while self.sent.waiting:
            time.sleep(min(_EVERY_S, self._options.quiet_s))
            self.send_new()

    def send_new(self, ended: threading.Event | None = None) -> None:
        """Look once through the folder, and send each quiet file that was not sent; no further one once `ended`."""
        self.sent.waiting = 0
        for path in self._files(self._options.folder):
            if ended is not None and ended.is_set():
                break
            self._take(path)
        self._flush()

    def _take(self, path: Path) -> None:
        name = os.fsencode(path.relative_to(self._options.folder))
        known = self._state.known(name)
        if known is not None and known[2]:
            return
        try:
            self._read(path, name, known)
        except FileNotFoundError:
            return  # removed or renamed since the folder was listed
        except NotQuietError:
            self.sent.waiting += 1
        except BadFileError as bad:
            self._rows.append((name, 0, 0, str(bad)))
            self._refuse(path, str(bad))
        except MillraceError:
            raise  # of Kafka, or of what remembers: UnreachableError is an OSError too
        except OSError:
            self._refuse_once(path)

    def _read(self, path: Path, name: bytes, known: tuple[int, int, str] | None) -> None:
        with path.open("rb") as file:
            before = os.fstat(file.fileno())
            # The time of the last change of any kind, which a program that keeps a file's time cannot set.
            if time.time() - before.st_ctime < self._options.quiet_s:
                raise NotQuietError
            size, at = before.st_size, 0 if known is None else known[1]
            if size == 0:
                raise BadFileError("empty")
            if known is not None and known[0] != size:
                raise BadFileError("changed")
            if self._options.lines:
                file.seek(at)
                for value, end in self._lines(file, at):
                    self._add((None, value), (name, size, end, ""))
                if not _unchanged(file, before):
                    raise BadFileError("changed")
                self._rows.append((name, size, size, "sent"))
                return
            if size > LARGEST_RECORD:
                raise BadFileError("too_large")
            value = file.read(size + 1)
            if not _unchanged(file, before):
                raise NotQuietError  # it is being written again, and nothing of it was taken
            label = os.fsencode(path.absolute().parent.name)
            self._add((name, value, (("label", label),)), (name, size, size, "sent"))

    def _lines(self, file: BinaryIO, at: int) -> Iterator[tuple[bytes, int]]:
        """Give each line that is not empty, with the place in the file after it."""
        first = at == 0 and self._options.header
        while line := file.readline(LARGEST_RECORD + 2):
            at += len(line)
            value = line.removesuffix(b"\n").removesuffix(b"\r")
            if len(value) > LARGEST_RECORD:
                raise BadFileError("line_too_large")
            if value and not first:
                yield value, at
            first = False

    def _files(self, folder: Path) -> Iterator[Path]:
        """Give the files here and below, by name; not hidden or temporary ones, nor those behind links to folders."""
        try:
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except FileNotFoundError:
            return
        except OSError:
            self._refuse_once(folder)
            return
        for entry in entries:
            if entry.name.startswith((".", "_")) or entry.name.endswith(_TEMPORARY):
                continue
            path = Path(entry.path)
            if entry.is_dir(follow_symlinks=False):
                yield from self._files(path)
                continue
            try:
                is_file = entry.is_file()
            except OSError:  # a link that leads in a circle, or to where nobody may look
                self._refuse_once(path)
                continue
            if is_file:
                yield path

    def _refuse(self, path: Path, reason: str) -> None:
        self.sent.bad[reason] += 1
        self._report(f"{path}: {reason}; it is not sent, or not from there on")

    def _refuse_once(self, path: Path) -> None:
        """Report what may not be read; each look tries it again."""
        if path not in self._unreadable:
            self._unreadable.add(path)
            self._refuse(path, "unreadable")

    def _add(self, record: Record, row: tuple[bytes, int, int, str]) -> None:
        self._records.append(record)
        self._rows.append(row)
        self._bytes += len(record[1])
        if self._bytes >= _BATCH_BYTES or len(self._records) >= BATCH_RECORDS:
            self._flush()

    def _flush(self) -> None:
        if self._records:
            self._writer.write_all(self._records, _WITHIN_S)  # 1
        if self._rows:
            self._state.commit(self._rows)  # 2
        self.sent.records += len(self._records)  # 3
        self.sent.files += sum(row[3] == "sent" for row in self._rows)
        self._records, self._rows, self._bytes = [], [], 0


def _unchanged(file: BinaryIO, before: os.stat_result) -> bool:
    after = os.fstat(file.fileno())
    return (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
