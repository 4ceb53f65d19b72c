"""The audit log: one line for each order, with who gave it and what became of it.

Runs on the HTTP side's loop. Orders that were taken are all written down; of those that were refused at most so many a
minute, for anybody may send them. A line names a route, never what a client has put into a path, a query or a body.
"""

import logging

from starlette.types import Message, Scope, Send

from app.api.errors import ProblemError
from consumers.log_limit import LogLimit

log = logging.getLogger(__name__)
_refusals = logging.getLogger(f"{__name__}.refusals")
_REFUSALS_PER_MINUTE = 30
_refusals.addFilter(LogLimit(_REFUSALS_PER_MINUTE))


class Audited:
    """One order on its way; sends the answer on, and writes the line when it begins."""

    def __init__(self, scope: Scope, send: Send, by: str) -> None:
        self._scope, self._send, self._by = scope, send, by

    async def send(self, message: Message) -> None:
        """As the send of ASGI."""
        if message["type"] == "http.response.start":
            self._write(message)
        await self._send(message)

    def _write(self, start: Message) -> None:
        status = int(start["status"])
        route = getattr(self._scope.get("route"), "path", "of no route")
        where = next((value.decode("latin-1") for name, value in start["headers"] if name == b"location"), None)
        facts = {"by": self._by, "client": client_of(self._scope), "status": status}
        line = "%s %s: %d, ordered by %s", self._scope["method"], route, status, self._by
        if status < 400:
            log.info(*line, extra=facts | ({} if where is None else {"location": where}))
        else:
            _refusals.warning(*line, extra=facts)


def refused(scope: Scope, problem: ProblemError) -> None:
    """Write down that somebody was not let through."""
    client = client_of(scope)
    _refusals.warning(
        "an order from %s was refused: %d %s",
        client,
        problem.status,
        problem.title,
        extra={"client": client, "status": problem.status},
    )


def client_of(scope: Scope) -> str:
    """Where a request comes from."""
    client = scope.get("client")
    return str(client[0]) if client else "somebody"
