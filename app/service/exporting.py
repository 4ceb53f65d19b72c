"""Exports beside the training: which durable checkpoint is exported when, and what became of it.

Owns the thread `exporter`, which starts a process for each export and waits for it, for `export.timeout` at most. The
checkpoint writer's thread only leaves the newest checkpoint here; nothing of the training waits, and whatever the
process does, hanging included, is counted and reported and changes nothing else. At a stop the process is ended; what
it has half written is removed by the next export.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Protocol

from millrace.app.service.announcing import Announcing
from millrace.app.service.figures import ExportFigures
from millrace.app.settings import Settings
from millrace.consumers.errors import MillraceError
from millrace.consumers.log_limit import LogLimit
from millrace.consumers.units import format_duration
from millrace.training.checkpoints.exports.export_gate import RECORDS, STALENESS, missing
from millrace.training.checkpoints.exports.version_folder import VersionFolder
from millrace.training.checkpoints.folder import Folder
from millrace.training.checkpoints.manifest import Manifest
from millrace.training.checkpoints.pins import Pins
from millrace.training.checkpoints.store import CheckpointStore
from millrace.training.history.lineage import ledger_of
from millrace.training.telemetry.events import EventKind, ReportEvent, Severity
from millrace.training.telemetry.meter import Meter

log = logging.getLogger(__name__)
_refusals = logging.getLogger(f"{__name__}.refusals")
"""A logger of its own, so that neither limit drops a line of the other."""
_LINES_PER_MINUTE = 10
for _limited in (log, _refusals):
    _limited.addFilter(LogLimit(_LINES_PER_MINUTE))
_STOP_S = 5.0
_SHORTEST_S = 0.05
_STALEST = "p99"
"""The part of the last minute's calls that staleness is taken of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportVerdict:
    """What a process of an export has reported."""

    manifest: Mapping[str, Any] | None
    """Of the version that is published; None where none is."""
    already: bool = False
    """Whether the version was there before."""
    error: str = ""
    """Why none is, in a line."""


class RunExport(Protocol):
    """Exports a checkpoint in a process of its own, and waits for it."""

    def __call__(self, number: int, within_s: float, stopped: threading.Event) -> ExportVerdict:
        """Return what it reports; where it takes too long, or a stop is asked for, it is ended."""
        ...


@dataclass(frozen=True, slots=True)
class _Candidate:
    number: int
    values: Mapping[str, float]


class Exporting:
    """Exports the newest durable checkpoint, as often as the settings say."""

    def __init__(
        self,
        settings: Settings,
        report_event: ReportEvent,
        run: RunExport | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make no exports without `run`, or without `export.every`."""
        self._settings = settings
        self._export, self._report, self._run, self._clock = settings.export, report_event, run, clock
        self._changed, self._stopped = threading.Condition(), threading.Event()
        self._newest: _Candidate | None = None
        self._due = clock()
        self._figures = ExportFigures(made=0, refused=0)
        self._announcing = Announcing(settings)
        self._thread = threading.Thread(target=self._work, name="exporter", daemon=True)

    @property
    def works(self) -> bool:
        """Whether exports are made beside the training."""
        return self._run is not None and self._export.every is not None

    @property
    def _checkpoints(self) -> Folder:
        return Folder(self._settings.checkpoints.path / self._settings.name)

    def figures(self) -> ExportFigures | None:
        """Return how the exports stand; None where no setting names a folder for them."""
        if self._export.path is None:
            return None
        announcing = self._announcing
        return replace(self._figures, unannounced=announcing.waiting, announce_error=announcing.failure)

    def start(self) -> None:
        """Start the thread, if exports are to be made, and the one that announces them."""
        if self._run is not None:
            self._announcing.start()
        if self.works:
            self._thread.start()

    def stop(self) -> None:
        """End the thread and the process of an export, and wait for them for some seconds."""
        self._stopped.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(_STOP_S)
        self._announcing.stop()

    def durable(self, manifest: Manifest, meter: Meter, more: Mapping[str, float] = MappingProxyType({})) -> None:
        """Take the newest durable checkpoint, if it has learnt anything, and what is known now; waits for no export."""
        if not self.works:
            return
        if not manifest.has_learnt:
            log.info("checkpoint %d is not exported: it has learnt nothing yet", manifest.number)
            return
        values = {**manifest.scores, **more}
        if any(one.name == RECORDS for one in self._export.only_if):
            # By what was saved: the chief of a group accounts for a portion, and who rewinds for what was learnt since.
            try:
                learnt = ledger_of(CheckpointStore(self._checkpoints), manifest.number).learnt()
                values[RECORDS] = float(sum(learnt.values()))
            except (MillraceError, OSError) as error:
                log.warning("the records of checkpoint %d cannot be counted: %s", manifest.number, error)
        if (staleness := meter.snapshot().freshness_s.get(_STALEST)) is not None:
            values[STALENESS] = staleness
        with self._changed:
            self._newest = _Candidate(manifest.number, values)
            self._changed.notify_all()

    def _work(self) -> None:
        while (candidate := self._next()) is not None:
            try:
                self._judge(candidate)
            except MillraceError as error:
                self._refused(candidate.number, str(error))
            except Exception:  # nothing that goes wrong here may end the thread
                log.exception("checkpoint %d was not exported", candidate.number)
                self._refused(candidate.number, "an unforeseen error, which the log has")

    def _next(self) -> _Candidate | None:
        """Wait for a checkpoint, and until an export is due; None at a stop."""
        with self._changed:
            while not self._stopped.is_set():
                left = self._due - self._clock()
                if self._newest is not None and left <= 0:
                    candidate, self._newest = self._newest, None
                    return candidate
                self._changed.wait(None if self._newest is None else max(left, _SHORTEST_S))
        return None

    def _judge(self, candidate: _Candidate) -> None:
        lacking = missing(self._export.only_if, candidate.values)
        if lacking:
            self._hold_back(candidate.number, lacking)
            return
        self._figures = replace(
            self._figures, missing=None, missing_since=None, running=candidate.number, running_since=time.time()
        )
        self._due = self._clock() + (self._export.every or 0.0)
        assert self._run is not None, "a thread runs only where there is something to run"
        self._pin(candidate.number)
        log.info("checkpoint %d is being exported", candidate.number)
        began = self._clock()
        verdict = self._run(candidate.number, self._export.timeout, self._stopped)
        self._figures = replace(self._figures, running=None, running_since=None)
        if verdict.manifest is None:
            if self._stopped.is_set():
                log.info("the export of checkpoint %d is ended, because the service ends", candidate.number)
            else:
                self._refused(candidate.number, verdict.error)
        elif verdict.already:
            self._figures = replace(self._figures, error=None)
            log.info("version %d is there already", candidate.number)
        else:
            self._exported(verdict.manifest, self._clock() - began)

    def _pin(self, number: int) -> None:
        """Keep the checkpoint, which may be pruned sooner than a process starts; the export lifts the pin."""
        if self._export.path is not None:
            Pins(self._checkpoints).pin(number, VersionFolder(self._export.path / self._settings.name).holder)

    def _hold_back(self, number: int, lacking: tuple[str, ...]) -> None:
        """Remember what is missing and since when; report it once, and again when it is something else."""
        before, since = self._figures.missing or (), self._figures.missing_since or time.time()
        self._figures = replace(self._figures, missing=lacking, missing_since=since)
        if {text.partition(" ")[0] for text in lacking} == {text.partition(" ")[0] for text in before}:
            return
        log.warning("checkpoint %d is not exported, nor are later ones before it holds: %s", number, "; ".join(lacking))
        self._report(
            EventKind.EXPORT_HELD_BACK,
            f"Checkpoint {number} is not exported, nor are later ones before it holds: {'; '.join(lacking)}.",
            Severity.WARNING,
            checkpoint=number,
            missing=list(lacking),
        )

    def _exported(self, manifest: Mapping[str, Any], took_s: float) -> None:
        number, figures = int(manifest["number"]), self._figures
        self._figures = replace(figures, made=figures.made + 1, newest=number, newest_at=time.time(), error=None)
        self._announcing.look()
        log.info(
            "version %d is published, proven on %d records, after %.1f s", number, manifest["proof"]["rows"], took_s
        )
        self._report(
            EventKind.EXPORTED,
            f"Version {number} is published, proven on {manifest['proof']['rows']} records.",
            version=number,
            records=manifest["records"],
            metrics=manifest["metrics"],
        )

    def _refused(self, number: int, why: str) -> None:
        refused = self._figures.refused + 1
        self._figures = replace(self._figures, refused=refused, running=None, running_since=None, error=why)
        again = format_duration(self._export.every or 0.0)
        _refusals.warning("checkpoint %d is not exported: %s; a later one is tried in %s", number, why, again)
        self._report(
            EventKind.EXPORT_REFUSED,
            f"Checkpoint {number} is not exported: {why}. It is tried again with a later one, in {again}.",
            Severity.ERROR,
            checkpoint=number,
        )
