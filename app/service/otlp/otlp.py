"""Metrics and traces by OTLP, as an extra: what the service posts anyway, read and sent beside the training.

Owns the thread `otlp`; it imports OpenTelemetry's SDK, which nothing else does. The training
never waits and calls nothing here: once a second the HTTP side's loop looks at the newest call and save, which the
trainer leaves in its meter and on its board, and hands over what is due. A slow receiver gets the newest metrics and at
most `_MOST` calls; what it does not accept is counted.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from prometheus_client.core import Metric as Family

from millrace.app.service.otlp.figures import OtlpFigures
from millrace.app.service.sending import Outage, Readiness, in_a_line
from millrace.app.settings import Settings
from millrace.app.settings.secret_files import exposure, read_secret
from millrace.app.settings.sections.opentelemetry import OpenTelemetrySettings
from millrace.consumers.errors import ConfigError
from millrace.consumers.suggested_command import install_of
from millrace.training.telemetry.meter import CallTimes, Meter
from millrace.training.trainer.board import Board
from millrace.training.trainer.save_figures import LastSave

log = logging.getLogger(__name__)
_MOST = 600
"""Calls and saves that wait for a receiver: ten minutes of one a second."""
_STOP_S = 2.0
_SDK = "opentelemetry.exporter.otlp.proto.http"


@dataclass(slots=True)
class _Due:
    """What waits for the thread."""

    families: list[Family] | None = None
    at: float = 0.0
    calls: list[CallTimes] = field(default_factory=list)
    saves: list[LastSave] = field(default_factory=list)


class Otlp:
    """Sends the metrics and traces of one service to opentelemetry.endpoint: a `Sender`."""

    name: ClassVar = "otlp"

    def __init__(self, settings: Callable[[], Settings], meter: Meter, board: Board) -> None:
        self._settings, self._meter, self._board = settings(), meter, board
        self._options = self._settings.opentelemetry
        self._headers = _headers(self._options)
        self._began_at = time.time()
        self._send_at = self._trace_at = float("-inf")
        self._seen_call: CallTimes | None = None
        self._seen_save: LastSave | None = None
        self._changed = threading.Condition()
        self._due = _Due()
        self._stopping = False
        self._thread: threading.Thread | None = None
        endpoint = self._options.endpoint or ""
        self._figures = OtlpFigures(endpoint=endpoint)
        begins = f"opentelemetry.endpoint: {endpoint} accepts nothing, which stops nothing else"
        self._outage = Outage(log, begins, "metrics and traces are sent again")

    @classmethod
    def ready(cls, settings: Settings) -> Readiness | None:
        """Return what would be sent where; None where no endpoint is named."""
        options = settings.opentelemetry
        if options.endpoint is None:
            return None
        if not _installed():
            raise ConfigError(f"opentelemetry.endpoint needs its extra: {install_of('opentelemetry')}")
        headers, path = _headers(options), options.headers_file
        exposed = None if path is None else exposure(path)
        found = f", with {' and '.join(headers)}" if headers else ""
        what = f"metrics and traces go to {options.endpoint}{found}"
        return Readiness(what, exposed and f"opentelemetry.headers_file: {exposed}")

    def figures(self) -> OtlpFigures:
        """Return what was sent."""
        return self._figures

    def stop(self, collect: Callable[[], Iterable[Family]]) -> None:
        """Have the last metrics and traces sent, within two seconds."""
        if self._thread is None:
            return
        self._send_at = float("-inf")
        self.look(collect)
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(_STOP_S)
        with self._changed:
            self._due = _Due()

    def look(self, collect: Callable[[], Iterable[Family]]) -> None:
        """Take what is due: metrics, by `collect`, and the newest call and save."""
        now = time.monotonic()
        if self._thread is None:
            # A daemon, because a receiver that hangs must not keep the process from ending.
            self._thread = threading.Thread(target=self._work, name="otlp", daemon=True)
            self._thread.start()
        send = now >= self._send_at
        families = list(collect()) if send else None
        call, posting = self._meter.last_call, self._board.latest
        save = None if posting is None else posting.last_save
        with self._changed:
            if self._options.trace_every:
                if call is not self._seen_call and call is not None and now >= self._trace_at:
                    self._trace_at = now + self._options.trace_every
                    self._due.calls = [*self._due.calls, call][-_MOST:]
                # One that it resumed from took no time.
                if save is not self._seen_save and save is not None and save.took_s:
                    self._due.saves = [*self._due.saves, save][-_MOST:]
                self._seen_call, self._seen_save = call, save
            if send:
                self._send_at = now + self._options.interval
                self._due.families, self._due.at = families, time.time()
                self._changed.notify_all()

    def _work(self) -> None:
        """Send what is due, until the stop: the body of the thread."""
        from millrace.app.service.otlp.messages import Messages  # noqa: PLC0415 - the extra, which takes a moment

        settings, endpoint = self._settings, self._options.endpoint or ""
        messages = Messages(settings.name, settings.api.listen, endpoint, self._headers, self._began_at)
        while (due := self._next()) is not None:
            try:
                for call in due.calls:
                    messages.trace_call(call)
                for save in due.saves:
                    messages.trace_save(save)
                self._done(messages.send_metrics(due.families or (), due.at))
                spans, why = messages.send_spans()
                if spans:
                    self._done(why, spans)
            except Exception as error:  # noqa: BLE001 - nothing that goes wrong here may end the thread
                self._done(f"{type(error).__name__}: {error}")

    def _next(self) -> _Due | None:
        """Wait for what is due; None at a stop, once nothing is."""
        with self._changed:
            self._changed.wait_for(lambda: self._due.families is not None or self._stopping)
            due, self._due = self._due, _Due()
            return None if due.families is None else due

    def _done(self, why: str | None, spans: int = 0) -> None:
        figures = self._figures
        if why is None:
            self._figures = replace(
                figures, sent=figures.sent + 1, spans=figures.spans + spans, sent_at=time.time(), error=None
            )
            self._outage.succeeded()
        else:
            why = in_a_line(why)
            self._figures = replace(figures, failed=figures.failed + 1, error=why)
            self._outage.failed(why)


def _headers(options: OpenTelemetrySettings) -> Mapping[str, str]:
    return headers_of("opentelemetry.headers_file", options.headers_file)


def headers_of(setting: str, path: Path | None) -> Mapping[str, str]:
    """Read a file of headers, one a line; errors name the line, never its content."""
    secret = read_secret(setting, path)
    found: dict[str, str] = {}
    for number, line in enumerate((secret.get_secret_value() if secret else "").splitlines(), start=1):
        name, colon, value = (part.strip() for part in line.partition(":"))
        if not line.strip():
            continue
        if not (colon and name and value and line.isascii() and line.isprintable() and " " not in name):
            raise ConfigError(f"{setting}: {path}:{number} is no header; write it as in `name: value`")
        found[name] = value
    return found


def _installed() -> bool:
    try:
        return find_spec(_SDK) is not None and find_spec("opentelemetry.sdk") is not None
    except ModuleNotFoundError:  # a package above it is not there
        return False
