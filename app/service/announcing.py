"""Announces exported versions on a topic: one record for each, after the version has its number.

Owns the thread `announcer`. What is to be announced is read from the disk: the versions that are there, without those
that are written down as announced. So a version is announced at least once, also when this process is killed between
the record and the note, and those that `millrace export` has published are announced too. Nothing waits for it: while
the broker is away it tries again every few seconds.
"""

import json
import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol

from millrace.app.settings import Settings
from millrace.app.settings.connection import kafka_options
from millrace.consumers.errors import MillraceError
from millrace.consumers.failpoints import failpoint
from millrace.consumers.kafka.topic_writer import TopicWriter
from millrace.training.checkpoints.exports.announced_versions import announced_versions, write_announced
from millrace.training.checkpoints.exports.version_folder import ExportManifest, VersionFolder
from millrace.training.errors import CorruptError, MissingExportError, NewerFormatError

log = logging.getLogger(__name__)
_LOOK_S = 5.0
"""How often the folder is read, and how soon a record is tried again."""
_WRITE_S = 15.0
_STOP_S = 5.0
SETTING = "export.announce"


class WriteRecord(Protocol):
    """Writes records to the topic."""

    def start(self) -> None:
        """Prepare for writing."""
        ...

    def write(self, key: bytes, value: bytes, within_s: float) -> None:
        """Return when the record is acknowledged; raise a MillraceError otherwise."""
        ...

    def stop(self) -> None:
        """Write no more."""
        ...


def announcement(manifest: ExportManifest, folder: VersionFolder) -> dict[str, Any]:
    """Return what the record of a version says."""
    body = manifest.body()
    said = {name: body[name] for name in ("name", "checkpoint", "positions", "records", "metrics", "made_at")}
    return {"version": manifest.number, "path": str(folder.version(manifest.number).absolute()), **said}


class Announcing:
    """Announces the versions of one model's folder."""

    def __init__(self, settings: Settings, connect: Callable[[Settings], WriteRecord] | None = None) -> None:
        """Announce nothing where `export.announce` is not set."""
        self._settings = settings
        self._topic, self._path = settings.export.announce, settings.export.path
        self._connect = connect or writer_of
        self._stopped, self._look = threading.Event(), threading.Event()
        self._writer: WriteRecord | None = None
        self._thread: threading.Thread | None = None
        self.waiting: int | None = None if self._topic is None else 0
        """How many versions that can be read are not announced yet; None where no topic is set."""
        self._unreadable: set[int] = set()
        """The versions that the log has named as left out."""
        self.failure: str | None = None
        """Why; None where nothing fails."""

    def start(self) -> None:
        """Start the thread, if there is a topic."""
        if self._topic is not None and self._path is not None:
            folder, writer = VersionFolder(self._path / self._settings.name), self._connect(self._settings)
            writer.start()
            self._writer = writer
            work = (writer, self._topic, folder)
            self._thread = threading.Thread(target=self._work, args=work, name="announcer", daemon=True)
            self._thread.start()

    def look(self) -> None:
        """Have the folder read now; never waits."""
        self._look.set()

    def stop(self) -> None:
        """End the thread, after some seconds at most; the next start announces what this one has not."""
        self._stopped.set()
        self._look.set()
        if self._thread is not None and self._writer is not None:
            self._thread.join(_STOP_S / 2)
            self._writer.stop()
            self._thread.join(_STOP_S / 2)

    def _work(self, writer: WriteRecord, topic: str, folder: VersionFolder) -> None:
        while not self._stopped.is_set():
            self._look.clear()
            try:
                self._announce(writer, topic, folder)
                if self.failure is not None:
                    log.info("versions are announced again")
                self.failure = None
            except (MillraceError, OSError) as error:
                why = str(error)
                if self.failure is None:
                    log.warning("versions are not announced, and tried again every %g s: %s", _LOOK_S, why)
                self.failure = why
            except Exception:  # nothing that goes wrong here may end the thread
                if not self._stopped.is_set():
                    log.exception("export.announce: an unforeseen error")
            self._look.wait(_LOOK_S)

    def _announce(self, writer: WriteRecord, topic: str, folder: VersionFolder) -> None:
        there, done = folder.numbers(), announced_versions(folder.root, topic)
        pending = [number for number in there if number not in done]
        readable = dict[int, ExportManifest]()
        for number in pending:
            try:
                readable[number] = folder.manifest(number)
            except (CorruptError, MissingExportError, NewerFormatError) as error:
                # Pruned meanwhile, or damaged: it holds up no other. Each look reads it again, as it may be repaired.
                if number not in self._unreadable:
                    log.warning("export.announce: version %d is left out: %s", number, error)
        self._unreadable = {*pending} - readable.keys()
        self.waiting = len(readable)
        for number, manifest in readable.items():
            if self._stopped.is_set():
                return
            value = json.dumps(announcement(manifest, folder)).encode()
            writer.write(self._settings.name.encode(), value, _WRITE_S)
            failpoint("announce.before_note")
            done.add(number)
            write_announced(folder.root, topic, done & {*there})
            self.waiting -= 1
            log.info("version %d is announced on %s", number, topic)


def writer_of(settings: Settings) -> TopicWriter:
    """Return what writes to `export.announce`."""
    assert settings.export.announce is not None, "there is a topic where something is announced"
    return TopicWriter(kafka_options(settings.kafka), settings.export.announce, setting=SETTING, thread="announcements")
