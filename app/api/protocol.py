"""HTTP/1.1 for clients of any kind: a connection that says nothing is closed, and too many crowd out the silent ones.

Owns one connection each, on the HTTP side's loop. Uvicorn alone would hold half-open connections for ever, and with a
plain limit on connections they would turn probes away. Here a request's head must come within a time; beyond a number
of connections the one that has been silent longest goes, so that a probe always gets in.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_WITHIN_S = 10.0
MOST_CONNECTIONS = 200


class PatientProtocol(H11Protocol):
    """One connection, whose patience ends."""

    _silent: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as its base has it
        """A client has come."""
        super().connection_made(transport)
        self._watch()
        if len(self.connections) > MOST_CONNECTIONS:
            self._crowd_out()

    def data_received(self, data: bytes) -> None:
        """A client says something."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """A client has left."""
        self._unwatch()
        super().connection_lost(exc)

    @property
    def silent_until(self) -> float | None:
        """When its patience ends; None while it is being served."""
        return None if self._silent is None else self._silent.when()

    def _watch(self) -> None:
        waits_for_head = self.cycle is None or self.cycle.response_complete
        if not waits_for_head:
            self._unwatch()
        elif self._silent is None:
            self._silent = self.loop.call_later(HEAD_WITHIN_S, self.transport.abort)

    def _unwatch(self) -> None:
        if self._silent is not None:
            self._silent.cancel()
            self._silent = None

    def _crowd_out(self) -> None:
        connections: list[Any] = list(self.connections)
        silent = [one for one in connections if isinstance(one, PatientProtocol) and one.silent_until is not None]
        oldest = min(silent, key=lambda one: one.silent_until or 0.0, default=self)
        oldest.transport.abort()
