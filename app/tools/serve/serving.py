"""The server of predictions: its parts put together, on two listeners, until a signal.

Owns the main thread's loop, on which HTTP is answered; beside it run `follower` (versions), `model` (calls), `json`
(large bodies), `memory` with `serve.memory` (the topic), `served-log` with `serve.log` (predictions), `probes` if
`serve.probes` is set, and `signals`, which waits for the end. A stop: /readyz fails and answers close their connections
for `serve.drain`; then nothing more is accepted, and requests in progress are answered.
"""

import json
import logging
import ssl
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millrace.app.api.authorization import ReadAuthorizer
from millrace.app.api.listener import Listener
from millrace.app.api.middleware import ApiMiddleware, Manner
from millrace.app.api.problem_documents import ProblemError
from millrace.app.api.server_certificate import ServerCertificate
from millrace.app.api.tokens import Tokens
from millrace.app.monitoring.shapes import Stamp, stamp_now
from millrace.app.settings import Settings
from millrace.app.settings.certificates import PemFile, trusting
from millrace.app.settings.secret_files import read_secret
from millrace.app.tools.export.export_folder import folder_of
from millrace.app.tools.serve.batcher import Batcher
from millrace.app.tools.serve.follower import ExportFollower, Wanted
from millrace.app.tools.serve.json_tensors import ServingError, bad_request
from millrace.app.tools.serve.memory.sequence_inputs import SequenceReaders
from millrace.app.tools.serve.memory.topic_memory import TopicMemory
from millrace.app.tools.serve.prediction_log import PredictionLog
from millrace.app.tools.serve.prediction_routes import PredictionRoutes, error_response
from millrace.app.tools.serve.record_inputs import RecordReaders
from millrace.app.tools.serve.serving_metrics import ServingCollector, ServingMeter
from millrace.app.tools.serve.version_sources import FolderSource, TrainerSource, VersionSource, server_name
from millrace.consumers.errors import ConfigError
from millrace.consumers.log_limit import limit_loggers

log = logging.getLogger(__name__)
_LOG_LINES_PER_MINUTE = 30
_JOIN_S = 5.0
_RETRY_AFTER_S = 1


class PredictionServer:
    """Serves one model's exports. The constructor listens, and raises ConfigError if a setting does not fit."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        """Take the settings, and the folder in which `serve` is made if serve.path is not set."""
        self._settings, self._drained = settings, threading.Event()
        serve, api, name = settings.serve, settings.api, settings.name
        own = (serve.path or folder / "serve") / name
        _refuse_pin(own / "order.json", serve.version)

        # Listen first: an address in use is an error at once.
        certificate = None if api.tls is None else ServerCertificate(api.tls)
        self._listener = Listener("serve.listen", serve.listen, certificate)
        try:
            self._probes = None if serve.probes is None else Listener("serve.probes", serve.probes)
            readers = None
            if api.read_tokens_dir is not None:
                folders = {"api.read_tokens_dir": api.read_tokens_dir, "api.tokens_dir": api.tokens_dir}
                readers = ReadAuthorizer(*(Tokens.open(path, one) for one, path in folders.items() if path is not None))
            source = source_of(settings, own, self._listener.port)
            self._memory = TopicMemory(settings) if serve.memory.follows else None
            records = (
                RecordReaders(settings.records.registry)
                if self._memory is None
                else SequenceReaders(settings, self._memory)
            )
            self.follower = ExportFollower(source, serve.version, serve.loaded, serve.poll, records)
        except BaseException:
            self._listener.close()
            raise

        # What answers.
        self.meter = ServingMeter()
        self._batcher = Batcher(serve.batch, self.meter)
        self._log = None if serve.log.topic is None else PredictionLog(settings)
        self._routes = PredictionRoutes(
            name, self.follower, self._batcher, serve.timeout, memory=self._memory, log=self._log
        )
        self._collector = ServingCollector(
            name,
            lambda: self.follower.board,
            self.meter,
            lambda: not self._reasons_not_ready(),
            None if self._memory is None else self._memory.board,
            None if self._log is None else self._log.board,
        )
        probes = [Route("/livez", self._livez), Route("/readyz", self._readyz)]
        manner = Manner(
            max_body_bytes=serve.max_body,
            instead="Send fewer rows in a request, or set serve.max_body.",
            answer=_refused,
        )
        stamp = partial(stamp_now, name)
        app = Starlette(
            routes=[*self._routes.routes(), *probes, Route("/metrics", self._collector.answer)],
            exception_handlers=dict.fromkeys((ServingError, HTTPException, Exception), _failed),
            middleware=[Middleware(ApiMiddleware, stamp=stamp, readers=readers, manner=manner)],
        )
        app.router.redirect_slashes = False
        self._gate = PredictGate(app, serve.batch.queue, self.meter)
        self._listener.serve_with(self._gate, lifespan="off")
        if self._probes is not None:
            alone = Starlette(routes=probes, exception_handlers={HTTPException: _failed})
            self._probes.serve_with(alone, lifespan="off")
        limit_loggers("uvicorn", _LOG_LINES_PER_MINUTE)

    @property
    def port(self) -> int:
        """The port of the main listener."""
        return self._listener.port

    def serve(self) -> None:
        """Answer until `stop`."""
        self.follower.start()
        if self._log is not None:
            self._log.start()
        log.info("answering on %s/v1/models/%s", self._listener.url, self._settings.name)
        probing = None
        if self._probes is not None:
            log.info("answering probes on %s", self._probes.url)
            probing = threading.Thread(target=self._probes.serve, name="probes", daemon=True)
            probing.start()
        try:
            self._listener.serve()
        finally:
            self.follower.end(_JOIN_S)
            if self._memory is not None:
                self._memory.end(_JOIN_S)
            self._batcher.close()
            self._routes.close()
            if self._log is not None:
                self._log.end()
            if self._probes is not None and probing is not None:
                self._probes.stop()
                probing.join(_JOIN_S)

    def stop(self) -> None:
        """Drain, then end; returns when nothing more is accepted. Any thread but the loop's."""
        drain = self._settings.serve.drain
        log.info("ending: answering for another %g s, so that clients go elsewhere", drain)
        self._gate.draining = True
        self._drained.wait(drain)
        self._listener.stop()

    async def _livez(self, _request: Request) -> Response:
        """Answer whether the process may live: no call of the model has hung."""
        began, longest_s = self._batcher.call_began, self._settings.limits.call
        hung = began is not None and time.monotonic() - began > longest_s
        return self._probed([f"a call of the model takes longer than limits.call ({longest_s:g} s)"] if hung else [])

    async def _readyz(self, _request: Request) -> Response:
        """Answer whether requests may come: a version is loaded, and the server is not ending."""
        return self._probed(self._reasons_not_ready())

    def _reasons_not_ready(self) -> list[str]:
        board, reasons = self.follower.board, []
        if self._gate.draining:
            reasons.append("the server is ending")
        if board.served is None:
            reasons.append(board.problem or "no version is loaded yet")
        elif self._memory is not None and (most := self._settings.serve.memory.max_lag) is not None:
            known = self._memory.board()
            if known.age_s > most:
                why = f": {known.problem}" if known.problem else ""
                reasons.append(
                    f"the memory of keys is {known.age_s:.0f} s behind the topic, and serve.memory.max_lag is {most:g} "
                    f"s{why}"
                )
        return reasons

    def _probed(self, reasons: list[str]) -> Response:
        body: dict[str, Any] = {**stamp_now(self._settings.name), "status": "failing" if reasons else "ok"}
        if reasons:
            body["reasons"] = reasons
        return JSONResponse(body, 503 if reasons else 200, {"cache-control": "no-store"})


class PredictGate:
    """Lets requests in, up to a number; an ASGI layer around everything else, on the HTTP side's loop.

    A request beyond the bound is refused before its body is read, so bodies in memory are bounded too. While the server
    drains, every answer ends its connection: a client that keeps connections open goes to another server, or connects
    again, before the listener closes.
    """

    def __init__(self, app: ASGIApp, most: int, meter: ServingMeter) -> None:
        self._app, self._most, self._meter = app, most, meter
        self.draining = False
        """Whether every answer ends its connection. Any thread may set it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        meter, began, status = self._meter, time.monotonic(), 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self.draining:
                    MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        if scope["method"] != "POST" or not scope["path"].endswith(":predict"):
            await self._app(scope, receive, watched)
            return
        if meter.in_progress >= self._most:
            text = f"{self._most} requests are in progress already; "
            text += "ask again later, or let more be by serve.batch.queue"
            busy = ServingError(503, text, {"retry-after": str(_RETRY_AFTER_S)})
            await error_response(busy)(scope, receive, watched)
            meter.ended(status, time.monotonic() - began)
            return
        meter.in_progress += 1
        try:
            await self._app(scope, receive, watched)
        finally:
            meter.in_progress -= 1
            meter.ended(status, time.monotonic() - began)


def _refuse_pin(path: Path, version: Wanted) -> None:
    """Raise ConfigError if an earlier millrace was ordered over HTTP to hold a version, and the order would count."""
    try:
        order = json.loads(path.read_bytes())
        pinned, setting = order["version"], order["setting"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return
    if setting == version and pinned not in {version, "latest"}:
        raise ConfigError(
            f"serve.path: {path} pins version {pinned}, as ordered over HTTP, which no server obeys any more; set "
            "serve.version to hold a version, and remove the file"
        )


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


def _refused(problem: ProblemError, _stamp: Stamp) -> Response:
    return error_response(ServingError(problem.status, f"{problem.detail} {problem.fix}", problem.headers))


async def _failed(request: Request, error: Exception) -> Response:
    """Return the answer for an error of a route, for a path or method that there is not, and for a defect."""
    if isinstance(error, ServingError):
        return error_response(error)
    if not isinstance(error, HTTPException):
        return error_response(ServingError(500, "This is a defect of millrace; report it with the log."))
    path = request.url.path
    if not path.startswith("/v1/"):
        text = "There is nothing at this path; docs/serving.md lists what there is."
        return error_response(ServingError(error.status_code, text))
    if path.endswith((":pin", ":follow")):
        text = "no version is pinned over HTTP any more; set serve.version, and restart the server"
        return error_response(ServingError(410, text))
    if "/labels/" in path:
        text = "versions have no labels any more; leave the label out, or name a version by /versions/N"
        return error_response(ServingError(410, text))
    return error_response(bad_request(f"Malformed request: {request.method} {path[:200]}"))
