"""The kept history: the page's curves and events on disk, beside the checkpoints, so that they outlive a restart.

Owns the thread `history` and the file `history/<term>` in the folder of the name. The thread reads what the newest
earlier writer has kept, adds it to what this process has, and writes all of it once a minute and at the end: a kill
loses at most the last minute. Only the holder of the folder's lock writes, under its own term, and removes what it has
taken in of smaller terms. What cannot be read is left out, with one line in the log, and the newest such file stays as
it is: a later version may have written it, or the disk may answer again. What cannot be written is logged once, until
it can be. Nothing waits for it: a slow or full disk stops neither the training nor a loop.

The file is a line with the form and its version, a line with the SHA-256 of the rest, and NumPy's compressed arrays:
2 MB at most. It holds numbers and events, and no records; an event may name a median, or the value of a slice.
"""

import hashlib
import io
import json
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from millrace.app.service.figures import KeptFigures
from millrace.consumers.durable_files import replace_durably
from millrace.consumers.errors import MillraceError
from millrace.training.checkpoints.lease import FolderLease
from millrace.training.telemetry.events import Event, EventKind, Events, Severity

log = logging.getLogger(__name__)
KeptTables = Mapping[str, npt.NDArray[Any]]
"""The buckets of one tier: `buckets`, `at` and `facts`."""
FORMAT = 1
_FORM = b"millrace history"
_EVERY_S = 60.0
_STOP_S = 5.0
_MOST_BYTES = 16 * 1024 * 1024
"""What is larger was not written here."""
_MOST_EVENT_BYTES = 512 * 1024


class Curves(Protocol):
    """The curves of the page, in memory. Both methods may be called on any thread."""

    def copied(self) -> tuple[dict[str, KeptTables], dict[str, Any]]:
        """Return the tables by name, and the facts beside them as JSON has them."""
        ...

    def merge(self, tables: Mapping[str, KeptTables], facts: Mapping[str, Any], at: float) -> None:
        """Add what was copied, up to the time `at`; ValueError or KeyError where it does not fit."""
        ...


class KeptHistory:
    """Reads, keeps and writes the history of one service."""

    def __init__(self, events: Events, every_s: float = _EVERY_S) -> None:
        self._events, self._every_s = events, every_s
        self._curves: Curves | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._ignored = self._failed = 0
        self._done_with: set[int] = set()
        """The earlier terms whose files are of no more use: taken in, or damaged."""
        self._fails = False

    def attach(self, curves: Curves) -> None:
        """Name the curves to keep; without any nothing is read or written."""
        self._curves = curves

    def start(self, lease: FolderLease) -> None:
        """Start the thread of the holder of this folder; return at once."""
        if self._curves is not None:
            # A daemon, because a disk that hangs must not keep the process from ending.
            self._thread = threading.Thread(target=self._run, args=(lease, self._curves), name="history", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Have everything written once more, and wait for that for a few seconds."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_STOP_S)
            if self._thread.is_alive():
                log.warning(
                    "the page's history was not written within %g s at the end; its last minute is lost", _STOP_S
                )

    def figures(self) -> KeptFigures:
        """Return what became of the files so far."""
        return KeptFigures(ignored=self._ignored, failed=self._failed)

    def _run(self, lease: FolderLease, curves: Curves) -> None:
        self._restore(lease, curves)
        while not self._stopping.wait(self._every_s):
            self._write(lease, curves)
        self._write(lease, curves)

    def _restore(self, lease: FolderLease, curves: Curves) -> None:
        """Take in the newest file of an earlier term that can be used."""
        try:
            terms = [term for term in lease.folder.history_terms() if term < lease.term]
        except Exception as error:  # noqa: BLE001 - nothing that goes wrong here may end the thread
            self._leave_out(lease.folder.history, error)
            return
        for term in reversed(terms):
            path = lease.folder.history_of(term)
            try:
                tables, facts = unpacked(_read(path))
                earlier = [
                    Event(**{**one, "kind": EventKind(one["kind"]), "severity": Severity(one["severity"])})
                    for one in facts["events"]
                ]
                curves.merge(tables, facts["curves"], time.time())
                self._events.restore(earlier)
            except Exception as error:  # noqa: BLE001 - as above, and a file may hold anything
                self._leave_out(path, error)
                if isinstance(error, _DamagedError):
                    self._done_with.add(term)
                continue
            self._done_with.add(term)
            return

    def _leave_out(self, path: Path, error: Exception) -> None:
        self._ignored += 1
        log.warning("the page's history in %s is left out, as it cannot be read: %s", path, _text(error))

    def _write(self, lease: FolderLease, curves: Curves) -> None:
        path = lease.folder.history_of(lease.term)
        try:
            lease.check()
            raw = packed(*curves.copied(), self._events.since())
            path.parent.mkdir(exist_ok=True)
            replace_durably(path, raw)
            # Remove the files of earlier terms, but the newest that was not taken in.
            terms = [term for term in lease.folder.history_terms() if term < lease.term]
            left = [term for term in terms if term not in self._done_with]
            for term in terms:
                if term not in left[-1:]:
                    lease.folder.history_of(term).unlink(missing_ok=True)
        except Exception as error:  # nothing that goes wrong here may end the thread
            self._failed += 1
            if not self._fails:
                unforeseen = not isinstance(error, (OSError, MillraceError))
                log.warning(
                    "the page's history cannot be kept in %s, which stops nothing else: %s",
                    path,
                    _text(error),
                    exc_info=unforeseen,
                )
            self._fails = True
        else:
            if self._fails:
                log.info("the page's history is kept again")
            self._fails = False


class _DamagedError(ValueError):
    """The file is not what was written, and never will be."""


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__


def packed(tables: Mapping[str, KeptTables], curves: Mapping[str, Any], events: list[Event]) -> bytes:
    """Return the file's bytes."""
    texts, room = list[dict[str, Any]](), _MOST_EVENT_BYTES
    for event in reversed(events):
        as_json = asdict(event)
        room -= len(json.dumps(as_json))
        if room < 0:
            break
        texts.append(as_json)
    facts = {"curves": curves, "events": texts[::-1]}
    arrays: dict[str, Any] = {
        f"{name}.{part}": array for name, parts in tables.items() for part, array in parts.items()
    }
    payload = io.BytesIO()
    np.savez_compressed(payload, facts=np.frombuffer(json.dumps(facts).encode(), np.uint8), **arrays)
    body = payload.getvalue()
    return b"%s %d\n%s\n%s" % (_FORM, FORMAT, hashlib.sha256(body).hexdigest().encode(), body)


def _read(path: Path) -> bytes:
    if (size := path.stat().st_size) > _MOST_BYTES:
        raise ValueError(f"it has {size:,} bytes, and {_MOST_BYTES:,} are the most")
    return path.read_bytes()


def unpacked(raw: bytes) -> tuple[dict[str, dict[str, npt.NDArray[Any]]], dict[str, Any]]:
    """Return tables and facts; ValueError where the bytes are damaged, or not of this form and version."""
    form, _, rest = raw.partition(b"\n")
    if not form.startswith(_FORM):
        raise ValueError("it is no history of millrace")
    if form != b"%s %d" % (_FORM, FORMAT):
        raise ValueError(f"it has the format {form[len(_FORM) :].decode(errors='replace').strip()}, this is {FORMAT}")
    digest, _, body = rest.partition(b"\n")
    if digest.decode(errors="replace") != hashlib.sha256(body).hexdigest():
        raise _DamagedError("it is not what was written: its SHA-256 differs")
    tables = dict[str, dict[str, npt.NDArray[Any]]]()
    with np.load(io.BytesIO(body), allow_pickle=False) as arrays:
        facts = json.loads(arrays["facts"].tobytes())
        for name in arrays.files:
            table, _, part = name.rpartition(".")
            if table:
                tables.setdefault(table, {})[part] = arrays[name]
    return tables, facts
