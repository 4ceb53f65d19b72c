"""HTTP/1.1 with limits for slow and silent clients.

Each instance owns one connection, on the event loop of its listener. Uvicorn alone keeps half-open connections, and
connections whose client does not read, for ever. Here a client has a limited time to send the head of a request, and to
read an answer. A listener keeps a limited number of connections, and closes the oldest to let a new one in. If it
refused the new one instead, silent clients could keep a liveness probe out, and the trainer would be killed for that.
"""

import asyncio
import resource
from operator import attrgetter
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_TIMEOUT_S = 10.0
WRITE_TIMEOUT_S = 20.0
"""How long an answer may wait for a client that does not read it."""
_GOODBYE_S = 0.5
"""How long the end of the service waits for a client's end of TLS."""
MAX_CONNECTIONS = min(2000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
"""Per listener, and there may be two. The rest of the process's open files is for checkpoints and Kafka."""


class LimitedProtocol(H11Protocol):
    """One connection with its timeouts."""

    opened_at = 0.0
    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as its base has it
        """Begin to wait for a head; close the oldest connection if there are too many."""
        super().connection_made(transport)
        self.opened_at = self.loop.time()
        self._watch_head()
        make_room(self.connections)

    def data_received(self, data: bytes) -> None:
        """Stop waiting for a head if this completes one."""
        super().data_received(data)
        self._watch_head()

    def on_response_complete(self) -> None:
        """Begin to wait for the next head."""
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
        """Run the head timer exactly while no request is being answered."""
        waiting = self.cycle is None or self.cycle.response_complete
        if waiting == (self._head_timer is not None):
            return
        _cancel(self._head_timer)
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.close_now) if waiting else None


def make_room(connections: set[Any]) -> None:
    """Close the oldest connection of a listener if there are too many."""
    if len(connections) > MAX_CONNECTIONS:
        min(connections, key=attrgetter("opened_at")).close_now()


def _cancel(*timers: asyncio.TimerHandle | None) -> None:
    for timer in timers:
        if timer is not None:
            timer.cancel()
