"""A listener: one address, and uvicorn on it, with TLS if there is a certificate.

Owns the listening socket. The constructor listens already, so that an address in use is an error at once; connections
that come before `serve` wait. The process handles signals, not uvicorn. `stop` ends it: nothing more is accepted,
requests in progress have 3 s, then the socket is closed. A thread looks once a minute whether the certificate has
changed.
"""

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable, Generator, Iterable
from typing import Literal, cast

import anyio
import uvicorn
from starlette.types import ASGIApp

from millrace.app.api import server_certificate
from millrace.app.api.http_protocol import IDLE_TIMEOUT_S, MAX_CONNECTIONS, LimitedProtocol
from millrace.app.api.offload import run_on_thread
from millrace.app.api.server_certificate import ServerCertificate
from millrace.app.api.tls_handshake import behind_tls
from millrace.app.settings.sections.api import host_and_port
from millrace.consumers.errors import ConfigError

log = logging.getLogger(__name__)
_BACKLOG = 1024
"""Connections that the kernel holds until they are accepted. With fewer, a burst of a thousand would make a probe try
again after a second."""
_ACCEPTED_AT_ONCE = MAX_CONNECTIONS // 8
"""Connections that are accepted in one iteration of the loop: far fewer than the most that are kept, so that a new one
is served before others of the same burst could make it the oldest. With still fewer a probe would wait long behind a
burst, since each iteration also answers the connections that flood."""
_MAX_HEAD_BYTES = 16 * 1024
_SHUTDOWN_TIMEOUT_S = 3


class Listener:
    """A listening address. The constructor raises ConfigError, which names the setting, if it cannot listen."""

    def __init__(self, setting: str, address: str, certificate: ServerCertificate | None = None) -> None:
        self._socket = _listening(setting, address)
        self._certificate = certificate
        self._server: _Server | None = None

    @property
    def host(self) -> str:
        """The address on which it listens."""
        return str(self._socket.getsockname()[0])

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(self._socket.getsockname()[1])

    @property
    def url(self) -> str:
        """The address as a URL."""
        scheme = "http" if self._certificate is None else "https"
        return f"{scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def serve_with(
        self, app: ASGIApp, *, lifespan: Literal["on", "off"], end_long_answers: Iterable[Callable[[], None]] = ()
    ) -> None:
        """Set the application; at the end, `end_long_answers` end those that would go on for ever, or for minutes."""
        certificate = self._certificate
        config = uvicorn.Config(
            app,
            loop="asyncio",
            # Uvicorn calls it to make the protocol of a connection.
            http=LimitedProtocol if certificate is None else behind_tls(certificate),  # type: ignore[arg-type]
            ws="none",
            lifespan=lifespan,
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=_ACCEPTED_AT_ONCE,
            timeout_keep_alive=int(IDLE_TIMEOUT_S),
            timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT_S,
            h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
        )
        self._server = _Server(config, end_long_answers, certificate)

    def serve(self) -> None:
        """Answer until `stop`, on a loop of this thread."""
        assert self._server is not None, "call serve_with first"
        try:
            asyncio.run(self._server.serve(sockets=[self._socket]))
        finally:
            self.close()

    def stop(self) -> None:
        """Ask for the end; returns at once. Any thread, also before `serve`."""
        if self._server is not None:
            self._server.should_exit = True

    def close(self) -> None:
        """Close the socket. A second call does nothing."""
        self._socket.close()


class _Server(uvicorn.Server):
    """Uvicorn without its own signal handlers, that ends long answers before it waits for the others."""

    def __init__(
        self,
        config: uvicorn.Config,
        end_long_answers: Iterable[Callable[[], None]],
        certificate: ServerCertificate | None,
    ) -> None:
        super().__init__(config)
        self._end_long_answers, self._certificate = end_long_answers, certificate
        self._renewing: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin, then lengthen the kernel's queue: asyncio has one number for it and for how many to accept at once."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_BACKLOG)
        if self._certificate is not None:
            self._renewing = asyncio.create_task(_renew(self._certificate), name="certificate")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the long answers, then all others."""
        if self._renewing is not None:
            self._renewing.cancel()
        for end in self._end_long_answers:
            end()
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):  # whose clients have not ended TLS in time
            cast("LimitedProtocol", connection).close_now()
        await asyncio.sleep(0)  # they close in the loop's next iteration

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals to the process."""
        yield


async def _renew(certificate: ServerCertificate) -> None:
    """Have a thread look once a minute whether the certificate has changed."""
    one_at_a_time = anyio.CapacityLimiter(1)
    while True:
        await asyncio.sleep(server_certificate.RENEW_EVERY_S)
        try:
            await run_on_thread(certificate.renew, one_at_a_time)
        except Exception:  # or no later certificate would ever be seen
            log.exception("the certificate was not looked at; the next look is due in a minute")


def _listening(setting: str, address: str) -> socket.socket:
    """Return a socket that listens already: as long as it is only bound, another process could bind the address too."""
    host, port = host_and_port(address)
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError):
        raise ConfigError(f"{setting}: {address}: {host} {_not_ours(port)}") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        whys = {
            errno.EADDRINUSE: "is taken by another process; stop that one, or choose another port (port 0 takes any "
            "that is free)",
            errno.EACCES: "may not be taken by this user; choose a port from 1024 up",
            errno.EADDRNOTAVAIL: _not_ours(port),
        }
        why = whys.get(error.errno or 0, f"cannot be listened on: {error.strerror}")
        raise ConfigError(f"{setting}: {address} {why}") from None
    return listener


def _not_ours(port: int) -> str:
    return f"is no address of this machine; write 127.0.0.1:{port}, or 0.0.0.0:{port} for all addresses"
