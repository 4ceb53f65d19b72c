"""HTTP/1.1 for clients of any kind: a connection that says nothing is closed, and too many crowd out the silent ones.

Owns one connection each, on the HTTP side's loop. Uvicorn alone would hold half-open connections for ever, and with a
plain limit on connections they would turn probes away. Here a request's head must come within a time; beyond a number
of connections the one that has been silent longest goes, so that a probe always gets in.
"""

import asyncio
import resource
from typing import Any
from weakref import WeakKeyDictionary

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_WITHIN_S = 10.0
MOST_CONNECTIONS = min(2000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
"""So many that a thousand silent ones crowd nobody out, and so few that files can still be opened."""
_silent_ones: "WeakKeyDictionary[Any, dict[PatientProtocol, None]]" = WeakKeyDictionary()
"""Of each server, whoever is silent: the longest silent first, for all have the same patience."""


class PatientProtocol(H11Protocol):
    """One connection, whose patience ends."""

    _silent: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as its base has it
        """A client has come."""
        super().connection_made(transport)
        self._watch()
        if len(self.connections) > MOST_CONNECTIONS:
            next(iter(self._crowd), self).leave()

    def data_received(self, data: bytes) -> None:
        """A client says something."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """A client has left."""
        self._unwatch()
        super().connection_lost(exc)

    def leave(self) -> None:
        """Be closed at once, and be nobody's choice any more: of many that come in one turn each crowds another out."""
        self._unwatch()
        self.transport.abort()

    @property
    def _crowd(self) -> "dict[PatientProtocol, None]":
        return _silent_ones.setdefault(self.server_state, {})

    def _watch(self) -> None:
        waits_for_head = self.cycle is None or self.cycle.response_complete
        if not waits_for_head:
            self._unwatch()
        elif self._silent is None:
            self._silent = self.loop.call_later(HEAD_WITHIN_S, self.transport.abort)
            self._crowd[self] = None

    def _unwatch(self) -> None:
        if self._silent is not None:
            self._silent.cancel()
            self._silent = None
            self._crowd.pop(self, None)
