"""The server of predictions: its parts put together, on two listeners, until a signal.

Owns the main thread's loop, on which HTTP is answered; beside it run `follower` (versions), `model` (calls), `json`
(large bodies), `probes` if `serve.probes` is set, and `signals`, which waits for the end. A stop: /readyz fails and
answers close their connections for `serve.drain`; then nothing more is accepted, and requests in progress are answered.
"""

import logging
import ssl
import threading
from functools import partial
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from millrace.app.api.audit import Audit
from millrace.app.api.authorization import ReadAuthorizer, authorizer_for
from millrace.app.api.listener import Listener
from millrace.app.api.middleware import ApiMiddleware, Manner
from millrace.app.api.problem_documents import ProblemError
from millrace.app.api.server_certificate import ServerCertificate
from millrace.app.api.tokens import Tokens
from millrace.app.monitoring.envelope import Stamp, stamp_now
from millrace.app.settings import Settings
from millrace.app.settings.certificates import PemFile, trusting
from millrace.app.settings.secret_files import read_secret
from millrace.app.tools.export.export_folder import folder_of
from millrace.app.tools.serve.batcher import Batcher
from millrace.app.tools.serve.follower import ExportFollower
from millrace.app.tools.serve.predict_gate import PREDICT, PredictGate
from millrace.app.tools.serve.prediction_routes import COMMANDS, PredictionRoutes, error_response, malformed
from millrace.app.tools.serve.record_inputs import RecordReaders
from millrace.app.tools.serve.serving_errors import ServingError
from millrace.app.tools.serve.serving_meter import ServingMeter
from millrace.app.tools.serve.serving_metrics import ServingCollector
from millrace.app.tools.serve.serving_probes import ServingProbes
from millrace.app.tools.serve.version_order import OrderFile
from millrace.app.tools.serve.version_sources import FolderSource, TrainerSource, VersionSource, server_name
from millrace.consumers.log_limit import limit_loggers

log = logging.getLogger(__name__)
_LOG_LINES_PER_MINUTE = 30
_JOIN_S = 5.0
_READ_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class PredictionServer:
    """Serves one model's exports. The constructor listens, and raises ConfigError where a setting does not fit."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        """Take the settings, and the folder in which `serve` is made if serve.path is not set."""
        self._settings, self._drained = settings, threading.Event()
        serve, api = settings.serve, settings.api
        own = (serve.path or folder / "serve") / settings.name
        tokens, readers = _tokens(api.tokens_dir, "api.tokens_dir"), _tokens(api.read_tokens_dir, "api.read_tokens_dir")
        certificate = None if api.tls is None else ServerCertificate(api.tls)
        self._listener = Listener("serve.listen", serve.listen, certificate)
        try:
            self._probes = None if serve.probes is None else Listener("serve.probes", serve.probes)
            self.meter = ServingMeter()
            source = source_of(settings, own, self._listener.port)
            orders = OrderFile(own, serve.version)
            records = RecordReaders(settings.records.registry)
            self.follower = ExportFollower(source, orders, serve.loaded, serve.poll, self.meter, records)
        except BaseException:
            self._listener.close()
            raise
        self._batcher = Batcher(serve.batch, self.meter)
        self._routes = PredictionRoutes(settings.name, self.follower, self._batcher, serve.timeout)
        self._health = ServingProbes(settings, lambda: self.follower.board, lambda: self._batcher.call_began)
        authorizer = authorizer_for(tokens, self._listener.host, api.scheme, readers, "serve.listen")
        read_authorizer = None if readers is None else ReadAuthorizer(*filter(None, (readers, tokens)))
        audit = Audit(COMMANDS)
        collector = ServingCollector(
            settings.name, lambda: self.follower.board, self.meter, self._health.is_ready, audit.counts
        )
        app = Starlette(
            routes=[*self._routes.routes(), *self._health.routes(), Route("/metrics", collector.answer)],
            exception_handlers={ServingError: _failed, HTTPException: _no_route, Exception: _defect},
            middleware=[
                Middleware(
                    ApiMiddleware,
                    stamp=partial(stamp_now, settings.name),
                    authorizer=authorizer,
                    audit=audit,
                    readers=read_authorizer,
                    manner=Manner(
                        max_body_bytes=serve.max_body,
                        instead="Send fewer rows in a request, or set serve.max_body.",
                        is_command=_is_command,
                        answer=_refused,
                    ),
                )
            ],
        )
        app.router.redirect_slashes = False
        self._gate = PredictGate(app, serve.batch.queue, self.meter)
        self._listener.serve_with(self._gate, lifespan="off")
        if self._probes is not None:
            alone = Starlette(routes=self._health.routes(), exception_handlers={HTTPException: _no_route})
            self._probes.serve_with(alone, lifespan="off")
        limit_loggers("uvicorn", _LOG_LINES_PER_MINUTE)

    @property
    def port(self) -> int:
        """The port of the main listener."""
        return self._listener.port

    def serve(self) -> None:
        """Answer until `stop`."""
        self.follower.start()
        name = self._settings.name
        log.info("answering on %s/v1/models/%s", self._listener.url, name)
        probing = None
        if self._probes is not None:
            log.info("answering probes on %s", self._probes.url)
            probing = threading.Thread(target=self._probes.serve, name="probes", daemon=True)
            probing.start()
        try:
            self._listener.serve()
        finally:
            self.follower.end(_JOIN_S)
            self._batcher.close()
            self._routes.close()
            if self._probes is not None and probing is not None:
                self._probes.stop()
                probing.join(_JOIN_S)

    def stop(self) -> None:
        """Drain, then end; returns when nothing more is accepted. Any thread but the loop's."""
        drain = self._settings.serve.drain
        log.info("ending: answering for another %g s, so that clients go elsewhere", drain)
        self._health.ending = self._gate.draining = True
        self._drained.wait(drain)
        self._listener.stop()


def source_of(settings: Settings, own: Path, port: int) -> VersionSource:
    """Return where versions come from, by `serve.exports`."""
    serve = settings.serve
    if serve.over_http:
        assert serve.exports is not None
        secret = read_secret("serve.token_file", serve.token_file)
        context: ssl.SSLContext | None = None
        if serve.exports.startswith("https:"):
            context = trusting(None if serve.ca_file is None else PemFile("serve.ca_file", serve.ca_file))
        token = None if secret is None else secret.get_secret_value().strip()
        return TrainerSource(serve.exports, own / "versions", token, context)
    root = folder_of(settings).root if serve.exports is None else Path(serve.exports)
    return FolderSource(root, server_name(port))


def _tokens(folder: Path | None, setting: str) -> Tokens | None:
    return None if folder is None else Tokens.open(folder, setting)


def _is_command(scope: Scope) -> bool:
    """Return whether a request changes something: to ask a model is to read it."""
    path = scope["path"]
    return scope["method"] not in _READ_METHODS and not path.endswith((PREDICT, ":classify", ":regress"))


def _refused(problem: ProblemError, _stamp: Stamp) -> Response:
    return error_response(ServingError(problem.status, f"{problem.detail} {problem.fix}", problem.headers))


async def _failed(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ServingError)
    return error_response(error)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if request.url.path.startswith("/v1/"):
        return error_response(malformed(request))
    return error_response(
        ServingError(error.status_code, "There is nothing at this path; docs/serving.md lists what there is.")
    )


async def _defect(_request: Request, _error: Exception) -> Response:
    return error_response(ServingError(500, "This is a defect of millrace; report it with the log."))
