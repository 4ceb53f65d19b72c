"""The HTTP server: the application on its listener, on the main thread's loop, and the probes on their own.

Owns both listeners and, if `api.probes` is set, the thread `probes` with its loop: neither a flood on the main listener
nor a slow answer there delays a probe by more than the interpreter's lock does. A start binds the addresses before it
does anything else. `stop` ends it; the probes end last.
"""

import logging
import threading
from typing import TYPE_CHECKING

from millrace.app.api.authorization import ReadAuthorizer, authorizer_for
from millrace.app.api.http_app import make_application
from millrace.app.api.listener import Listener
from millrace.app.api.routes.probes import make_probes_application
from millrace.app.api.server_certificate import ServerCertificate
from millrace.app.api.tokens import Tokens
from millrace.app.settings.sections.api import ApiSettings
from millrace.consumers.log_limit import limit_loggers

if TYPE_CHECKING:
    from millrace.app.service.service import Service

log = logging.getLogger(__name__)
_LOG_LINES_PER_MINUTE = 30
_PROBES_JOIN_TIMEOUT_S = 5.0


class ApiServer:
    """The HTTP side of one service."""

    def __init__(self, service: "Service", settings: ApiSettings) -> None:
        self._service, self._settings = service, settings
        self._main: Listener | None = None
        self._probes: Listener | None = None

    def bind(self) -> None:
        """Listen on the addresses. Raises ConfigError if that fails, or if tokens or the certificate are not valid."""
        settings = self._settings
        tokens = None if settings.tokens_dir is None else Tokens.open(settings.tokens_dir)
        folder = settings.read_tokens_dir
        readers = None if folder is None else Tokens.open(folder, "api.read_tokens_dir")
        certificate = None if settings.tls is None else ServerCertificate(settings.tls)
        self._main = Listener("api.listen", settings.listen, certificate)
        try:
            self._probes = None if settings.probes is None else Listener("api.probes", settings.probes)
        except BaseException:
            self._main.close()
            raise
        app = make_application(
            self._service,
            authorizer_for(tokens, self._main.host, settings.scheme, readers),
            None if readers is None else ReadAuthorizer(*filter(None, (readers, tokens))),
            certificate,
        )
        self._main.serve_with(app, lifespan="on", end_long_answers=app.state.end_long_answers)
        log.info("answering on %s", self._main.url)
        if self._probes is not None:
            self._probes.serve_with(make_probes_application(self._service), lifespan="off")
            log.info("answering probes on %s", self._probes.url)
        limit_loggers("uvicorn", _LOG_LINES_PER_MINUTE)

    @property
    def port(self) -> int:
        """The port of the main listener."""
        assert self._main is not None, "call bind first"
        return self._main.port

    @property
    def probes_port(self) -> int | None:
        """The port of the probes' own listener; None if there is none."""
        return None if self._probes is None else self._probes.port

    def serve(self) -> None:
        """Answer until `stop`, on a loop of this thread."""
        assert self._main is not None, "call bind first"
        if self._probes is None:
            self._main.serve()
            return
        probing = threading.Thread(target=self._probes.serve, name="probes", daemon=True)
        probing.start()
        try:
            self._main.serve()
        finally:
            self._probes.stop()
            probing.join(_PROBES_JOIN_TIMEOUT_S)

    def stop(self) -> None:
        """Ask for the end; returns at once. Any thread, also before `serve`."""
        if self._main is not None:
            self._main.stop()
