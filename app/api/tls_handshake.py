"""TLS before HTTP: the handshake of each connection, bounded in time and counted as a connection.

Each instance owns one connection until its handshake is done, and one task, on the event loop of its listener.
Asyncio's own TLS server would give a client a minute for the handshake, and count the connection nowhere before it is
done, so that half-open ones could take all open files of the process. Here they count among the connections of the
listener: if there are too many, the oldest is closed, whether its handshake is done or not.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any

from millrace.app.api import http_protocol
from millrace.app.api.http_protocol import LimitedProtocol, make_room
from millrace.app.api.server_certificate import ServerCertificate
from millrace.consumers.log_limit import LogLimit

log = logging.getLogger(__name__)
_FAILURES_PER_MINUTE = 30
log.addFilter(LogLimit(_FAILURES_PER_MINUTE))
HANDSHAKE_TIMEOUT_S = 10.0


class TlsHandshake(asyncio.Protocol):
    """One connection from its first byte to the end of the handshake."""

    def __init__(self, certificate: ServerCertificate, http: LimitedProtocol) -> None:
        self._certificate, self._http = certificate, http
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._early = bytearray()
        """What the client has sent behind its handshake before HTTP takes over: at most one read of the socket."""
        self.opened_at = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # of a stream
        """Begin the handshake; close the oldest connection if there are too many."""
        self._transport = transport
        self.opened_at = self._http.loop.time()
        self._http.connections.add(self)  # type: ignore[arg-type] # only its `shutdown` is called
        make_room(self._http.connections)
        self._task = self._http.loop.create_task(self._shake_hands(transport))

    def data_received(self, data: bytes) -> None:
        """Keep what comes between the end of the handshake and the task's next step."""
        self._early += data

    def close_now(self) -> None:
        """Abort the connection; it leaves the set of connections at once."""
        self._http.connections.discard(self)
        if self._task is not None:
            self._task.cancel()
        if self._transport is not None:
            self._transport.abort()

    shutdown = close_now

    async def _shake_hands(self, transport: asyncio.Transport) -> None:
        """Do the handshake, then hand the connection over to HTTP."""
        try:
            secured: asyncio.Transport | None = await self._http.loop.start_tls(
                transport,
                self,
                self._certificate.context,
                server_side=True,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
                ssl_shutdown_timeout=http_protocol.WRITE_TIMEOUT_S,
            )
        except ssl.SSLError as error:
            client = (transport.get_extra_info("peername") or ["somebody"])[0]
            log.warning("a TLS handshake with %s failed: %s", client, (error.reason or "unknown reason").lower())
            return
        except OSError:  # the client has left, or took too long
            return
        finally:
            self._http.connections.discard(self)
        if secured is None or secured.is_closing():  # the client left in the same turn of the loop
            transport.abort()
            return
        secured.set_protocol(self._http)
        self._http.connection_made(secured)
        if self._early:
            self._http.data_received(bytes(self._early))


def behind_tls(certificate: ServerCertificate) -> Callable[..., asyncio.Protocol]:
    """Return the factory of a listener's connections, as uvicorn calls it."""

    def connect(**options: Any) -> asyncio.Protocol:
        return TlsHandshake(certificate, LimitedProtocol(**options))

    return connect
