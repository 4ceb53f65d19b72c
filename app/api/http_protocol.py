"""HTTP/1.1 with limits for slow and silent clients.

Each instance owns one connection, on the event loop of its listener. Uvicorn alone keeps half-open connections, and
connections whose client does not read, for ever. Here a client has a limited time to send the head of a request, and to
read an answer. Between two requests a connection stays longer than clients and proxies keep it: if the server were the
first to close it, a request that is on its way just then would meet a reset, and nobody may repeat a POST. A listener
keeps a limited number of connections, and closes the oldest to let a new one in. If it refused the new one instead,
silent clients could keep a liveness probe out, and the trainer would be killed for that.
"""

import asyncio
import resource
from operator import attrgetter
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_TIMEOUT_S = 10.0
IDLE_TIMEOUT_S = 75.0
"""How long a connection is kept between two requests. Load balancers keep theirs for 60 s, and httpx for 5 s."""
WRITE_TIMEOUT_S = 20.0
"""How long an answer may wait for a client that does not read it."""
_GOODBYE_S = 0.5
"""How long an end waits for what is still to be sent, or for a client's end of TLS."""
MAX_CONNECTIONS = min(2000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
"""Per listener, and there may be two. The rest of the process's open files is for checkpoints and Kafka."""


class LimitedProtocol(H11Protocol):
    """One connection with its timeouts."""

    opened_at = 0.0
    _awaited: str | None = None
    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as its base has it
        """Begin to wait for a head; close the oldest connection if there are too many."""
        super().connection_made(transport)
        self.opened_at = self.loop.time()
        self._watch_head()
        make_room(self.connections)

    def data_received(self, data: bytes) -> None:
        """Stop waiting for a head if this completes one, and begin to if this is the first part of one."""
        super().data_received(data)
        self._watch_head()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._watch_head()

    def pause_writing(self) -> None:
        """Begin to wait for the client to read."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(WRITE_TIMEOUT_S, self.close_now)

    def resume_writing(self) -> None:
        """Stop waiting: the client has read most of it."""
        super().resume_writing()
        _cancel(self._write_timer)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        _cancel(self._head_timer, self._write_timer)
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """End with the present answer; a client that does not end TLS from its side is not waited for."""
        super().shutdown()
        if self.scheme == "https" and self.transport.is_closing():
            self._write_timer = self.loop.call_later(_GOODBYE_S, self.close_now)

    def close_now(self) -> None:
        """Abort the connection.

        It leaves the set of connections at once: `connection_lost` comes one iteration of the loop later, and until
        then each further new connection would choose the same one as the oldest.
        """
        _cancel(self._head_timer, self._write_timer)
        self.connections.discard(self)
        self.transport.abort()

    def _watch_head(self) -> None:
        """Run the timer of what is awaited: a head, or between two requests the first byte of one."""
        answered = self.cycle is not None and self.cycle.response_complete
        begun = self.cycle is None or (answered and bool(self.conn.trailing_data[0]))
        awaited = "head" if begun else "request" if answered else None
        if awaited == self._awaited and awaited != "request":
            return
        self._awaited = awaited
        _cancel(self._head_timer)
        self._head_timer = None
        if awaited == "head":
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.close_now)
        elif awaited == "request":
            self._head_timer = self.loop.call_later(IDLE_TIMEOUT_S, self._end_idle)

    def _end_idle(self) -> None:
        """Close a connection that nobody has used for long, in order: what was sent last may still be on its way."""
        self.timeout_keep_alive_handler()
        self._write_timer = self.loop.call_later(_GOODBYE_S, self.close_now)


def make_room(connections: set[Any]) -> None:
    """Close the oldest connection of a listener if there are too many."""
    if len(connections) > MAX_CONNECTIONS:
        min(connections, key=attrgetter("opened_at")).close_now()


def _cancel(*timers: asyncio.TimerHandle | None) -> None:
    for timer in timers:
        if timer is not None:
            timer.cancel()
