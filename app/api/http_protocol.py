"""HTTP/1.1 for clients of any kind: who says nothing, or takes nothing, is let go, and no crowd keeps a probe out.

Owns one connection each, on the HTTP side's loop. Uvicorn alone would hold half-open connections for ever, and those
whose client does not read; with a plain limit on connections it would turn probes away. Here a request's head must come
within a time, and an answer be taken within one. Beyond a number of connections the one goes that has been silent, or
has waited for its answer, for longest. Probes, orders that were let in and listeners are not chosen while they take
what they are sent: they are answered at once, or bounded elsewhere. So another one is there, and a probe gets in.
"""

import asyncio
import resource
from typing import Any
from weakref import WeakKeyDictionary

from uvicorn.protocols.http.h11_impl import H11Protocol

from app.api.middleware import ORDERED_BY
from app.api.rate_limit import UNPACED

HEAD_WITHIN_S = 10.0
TAKEN_WITHIN_S = 20.0
"""How long a client may leave an answer lying that the network has no more room for."""
MOST_CONNECTIONS = min(2000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
"""Of a listener, and there may be two: so many that a thousand silent ones crowd nobody out, and so few that files can
still be opened."""
_crowds: "WeakKeyDictionary[Any, dict[PatientProtocol, None]]" = WeakKeyDictionary()
"""Of each server, its connections; first the one that has been silent, or has waited for its answer, for longest."""


class PatientProtocol(H11Protocol):
    """One connection, whose patience ends."""

    _silent: asyncio.TimerHandle | None = None
    _untaken: asyncio.TimerHandle | None = None

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

    def on_response_complete(self) -> None:
        """A client has been answered."""
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        """A client does not take what it is sent."""
        super().pause_writing()
        self._untaken = self.loop.call_later(TAKEN_WITHIN_S, self.leave)

    def resume_writing(self) -> None:
        """It has taken most of it."""
        super().resume_writing()
        _cancel(self._untaken)

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
        return _crowds.setdefault(self.server_state, {})

    @property
    def stays(self) -> bool:
        """Whether it is a probe, an order that was let in or a listener, has said all and takes what it is sent."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body or self.flow.write_paused:
            return False
        return cycle.response_started or cycle.scope["path"] in UNPACED or ORDERED_BY in cycle.scope["state"]

    def _crowd_out(self) -> None:
        others = (one for one in self._crowd if one is not self and not one.stays)
        next(others, next(iter(self._crowd))).leave()

    def _watch(self) -> None:
        """Where it has turned from silent to waiting for an answer, or back, it is the last of the crowd again."""
        silent = self.cycle is None or self.cycle.response_complete
        if silent == (self._silent is not None):
            return
        _cancel(self._silent)
        self._silent = self.loop.call_later(HEAD_WITHIN_S, self.leave) if silent else None
        self._crowd.pop(self, None)
        self._crowd[self] = None

    def _unwatch(self) -> None:
        _cancel(self._silent, self._untaken)
        self._crowd.pop(self, None)


def _cancel(*timers: asyncio.TimerHandle | None) -> None:
    for timer in timers:
        if timer is not None:
            timer.cancel()
