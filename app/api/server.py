"""The server: the application on a listener, on the main thread's loop.

Owns the listening socket and uvicorn. Binding comes before everything else of a start, so that a port that is taken
is said at once; connections that come before `serve` wait. Signals are the process's to handle: uvicorn takes none.
It ends by `stop`: nothing more is accepted, what is being answered has 3 s, then the listener is closed.
"""

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import uvicorn

from app.api.application import make_application
from app.api.doors import door_of
from app.api.protocol import PatientProtocol
from app.api.tokens import Tokens
from app.settings.service import ApiSettings
from consumers.errors import ConfigError
from consumers.log_limit import limit_loggers

if TYPE_CHECKING:
    from app.service import Service

log = logging.getLogger(__name__)
_BACKLOG = 128
_MOST_HEAD_BYTES = 16 * 1024
_ANSWER_WITHIN_S = 3
_LOG_LINES_PER_MINUTE = 30


class ApiServer:
    """HTTP for one service."""

    def __init__(self, service: "Service", settings: ApiSettings) -> None:
        self._service, self._settings = service, settings
        self._socket: socket.socket | None = None
        self._server: _Server | None = None

    def bind(self) -> None:
        """Take the address, and listen. ConfigError where that cannot be, or where the tokens do not do."""
        folder = self._settings.tokens_dir
        tokens = None if folder is None else Tokens.open(folder)
        self._socket = _listening(self._settings)
        host = self._socket.getsockname()[0]
        app = make_application(self._service, door_of(tokens, host))
        self._server = _Server(_config(app))
        limit_loggers("uvicorn", _LOG_LINES_PER_MINUTE)
        log.info("answering on http://%s:%d", f"[{host}]" if ":" in host else host, self.port)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._bound.getsockname()[1])

    def serve(self) -> None:
        """Answer until `stop`, on a loop of this thread."""
        assert self._server is not None, "bind comes first"
        try:
            asyncio.run(self._server.serve(sockets=[self._bound]))
        finally:
            self._bound.close()

    def stop(self) -> None:
        """Ask for the end; returns at once. Any thread, also before `serve`."""
        if self._server is not None:
            self._server.should_exit = True

    @property
    def _bound(self) -> socket.socket:
        assert self._socket is not None, "bind comes first"
        return self._socket


class _Server(uvicorn.Server):
    """Uvicorn without its own signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave them to the process."""
        yield


def _config(app: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="asyncio",
        http=PatientProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=_ANSWER_WITHIN_S,
        h11_max_incomplete_event_size=_MOST_HEAD_BYTES,
    )


def _listening(settings: ApiSettings) -> socket.socket:
    """A socket that listens already: with only its address taken, another process could still take it too."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError):
        raise ConfigError(
            f"api.listen: {settings.listen}: {settings.host} is no address of this machine; write 127.0.0.1:8080, or "
            "0.0.0.0:8080 for all addresses"
        ) from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"api.listen: {settings.listen} {_why(error)}") from None
    return listener


def _why(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "is taken by another process; stop that one, or choose another port (port 0 takes any that is free)"
    if error.errno == errno.EACCES:
        return "may not be taken by this user; choose a port from 1024 up"
    if error.errno == errno.EADDRNOTAVAIL:
        return "is no address of this machine; write 127.0.0.1:8080, or 0.0.0.0:8080 for all addresses"
    return f"cannot be listened on: {error.strerror}"
