"""An MLflow server as an extra: it is told the live scores by time, and each version that is exported.

Owns the thread `mlflow`; it imports MLflow, which nothing else does. The training never waits and
calls nothing here: the thread reads the newest posting of the board and the folder of the exports. Scores that a server
has missed while it was away are missing there; versions are registered when it is back.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from prometheus_client.core import Metric as Family

from millrace.app.service.mlflow.figures import MlflowFigures
from millrace.app.service.sending import Outage, Readiness, in_a_line
from millrace.app.settings import Settings
from millrace.app.settings.environment import set_unless_set
from millrace.app.settings.loading import leaves
from millrace.app.settings.secret_files import masked
from millrace.app.settings.spelling import dotted, flow
from millrace.consumers.errors import ConfigError
from millrace.consumers.suggested_command import install_of
from millrace.training.checkpoints.exports.version_folder import VersionFolder
from millrace.training.errors import CorruptError, MissingExportError, NewerFormatError
from millrace.training.telemetry.meter import Meter
from millrace.training.trainer.board import Board

if TYPE_CHECKING:
    from millrace.app.service.mlflow.experiment import Experiment

log = logging.getLogger(__name__)
_STOP_S = 2.0
_USUAL = {
    # It is tried again in any case, and a request that hangs would hold up the end.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    # MLflow would tell its makers how it is used.
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
"""Of MLflow's own variables, those that are set unless somebody has set them."""


class Mlflow:
    """Tells the server at mlflow.tracking_uri how one model learns: a `Sender`."""

    name: ClassVar = "mlflow"

    def __init__(self, settings: Callable[[], Settings], _meter: Meter, board: Board) -> None:
        self._settings, self._board = settings, board
        self._options = settings().mlflow
        self._uri = self._options.tracking_uri or ""
        self._figures = MlflowFigures(tracking_uri=self._uri)
        begins = f"mlflow.tracking_uri: {self._uri} takes nothing, which stops nothing else"
        self._outage = Outage(log, begins, "the MLflow server is told again")
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._posted: object = None

    @classmethod
    def ready(cls, settings: Settings) -> Readiness | None:
        """Return what would be sent where; None where no server is named."""
        uri = settings.mlflow.tracking_uri
        if uri is None:
            return None
        if find_spec("mlflow") is None:
            raise ConfigError(f"mlflow.tracking_uri needs its extra: {install_of('mlflow')}")
        return Readiness(f"scores and versions go to {uri}")

    def figures(self) -> MlflowFigures:
        """Return what was sent."""
        return self._figures

    def look(self, _collect: Callable[[], Iterable[Family]]) -> None:
        """Begin, once the trainer has posted something; never waits. Of a group, the first worker alone tells."""
        group = self._board.group
        if self._thread is None and self._board.latest is not None and (group is None or group.is_chief):
            # A daemon, because a server that hangs must not keep the process from ending.
            self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
            self._thread.start()

    def stop(self, _collect: Callable[[], Iterable[Family]]) -> None:
        """Have the last scores sent, within two seconds."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_STOP_S)

    def _work(self) -> None:
        """Tell what is new, until the stop: the body of the thread."""
        set_unless_set(_USUAL)  # before the import, which reads some of them
        experiment: Experiment | None = None
        ended = False
        while not ended:
            ended = self._stopped.is_set()
            try:
                experiment = experiment or self._experiment()
                self._tell(experiment)
                if ended:
                    experiment.end()
            except Exception as error:  # noqa: BLE001 - nothing that goes wrong here may end the thread
                experiment = None  # asked for anew, in case that somebody has deleted it there
                why = in_a_line(f"{type(error).__name__}: {error}")
                self._figures = replace(self._figures, failed=self._figures.failed + 1, error=why)
                self._outage.failed(why)
            if not ended:
                self._stopped.wait(self._options.interval)

    def _experiment(self) -> "Experiment":
        from millrace.app.service.mlflow.experiment import Experiment  # noqa: PLC0415 - the extra, which takes a moment

        settings = self._settings()
        values = masked(settings.model_dump(mode="json"))
        told = {dotted(key): flow(value) for key, value in leaves(values)}
        return Experiment(self._uri, self._options.experiment, settings.name, told)

    def _tell(self, experiment: "Experiment") -> None:
        self._figures = replace(self._figures, run=experiment.begin())
        posting, told = self._board.latest, False
        if posting is not None and posting is not self._posted:
            experiment.log(posting.live, posting.learning_rate)
            self._posted, told = posting, True
        settings = self._settings()
        if settings.export.path is not None:
            told |= self._register(experiment, VersionFolder(settings.export.path / settings.name))
        if told:
            self._done()

    def _register(self, experiment: "Experiment", folder: VersionFolder) -> bool:
        """Register the versions that are not; return whether there was one.

        One that the server refuses keeps no later one back; its error is raised at the end.
        """
        some, refused = False, list[Exception]()
        for number in folder.numbers():
            try:
                manifest = folder.manifest(number)
            except (MissingExportError, CorruptError, NewerFormatError):
                continue  # pruned meanwhile, or told about by who verifies it
            try:
                registered = experiment.register(folder, manifest)
            except Exception as error:  # noqa: BLE001 - as in _work, to which it goes
                refused.append(error)
                continue
            if registered:
                self._figures = replace(self._figures, versions=self._figures.versions + 1)
                some = True
        if refused:
            raise refused[0]
        return some

    def _done(self) -> None:
        figures = self._figures
        self._figures = replace(figures, sent=figures.sent + 1, sent_at=time.time(), error=None)
        self._outage.succeeded()
