"""The audit: who ordered what, written when it is taken, and again with the answer, what became of it; and how many.

Runs on the HTTP side's loop. Orders that the door let through are all written down, whatever became of them; of those
that it turned away at most so many a minute, for anybody may send them. A line names a route, never what a client has
put into a path, a query or a body. All are counted, and written whatever `logs.level` is: who gave an order must not
depend on how much is said.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.types import Message, Scope, Send

from app.api.problem_documents import ProblemError
from app.api.route_lookup import route_of
from consumers.log_limit import LogLimit

log = logging.getLogger(__name__)
log.setLevel(logging.INFO)
_refusals = logging.getLogger(f"{__name__}.refusals")
"""Of those alone that were turned away, so that a flood of them hides no order of somebody who may give it."""
_REFUSALS_PER_MINUTE = 30
_refusals.addFilter(LogLimit(_REFUSALS_PER_MINUTE))
_OTHER = "other"
ORDERS = ("save", "restore", "rewind", "pause", "resume", "profile", _OTHER)
"""All that there are, as their routes are called; the last stands for a request that would change what nothing can."""
OUTCOMES = ("accepted", "unauthorized", "refused", "failed")


@dataclass(frozen=True, slots=True)
class _PendingCommand:
    """One on its way."""

    scope: Scope
    name: str
    route: str
    """Its path, without what the client has put into it."""
    by: str


class Audit:
    """Of one application."""

    def __init__(self) -> None:
        self._counts = {(order, outcome): 0 for order in ORDERS for outcome in OUTCOMES}

    def counts(self) -> Mapping[tuple[str, str], int]:
        """How many there were, by order and outcome."""
        return dict(self._counts)

    @contextmanager
    def recording(self, scope: Scope, send: Send, by: str) -> Iterator[Send]:
        """Write the order down when its answer begins, or when it has come to none."""
        order, answered = _order(scope, by), False

        async def followed(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                self._write(order, int(message["status"]), _location(message))
            await send(message)

        try:
            yield followed
        except Exception:  # whoever stands around us answers it
            if not answered:
                self._write(order, 500, None)
            raise

    def refused(self, scope: Scope, problem: ProblemError) -> None:
        """Write down that somebody was turned away."""
        client = client_of(scope)
        self._count(_order(scope, client), problem.status)
        _refusals.warning(
            "an order from %s was refused: %d %s",
            client,
            problem.status,
            problem.title,
            extra={"client": client, "status": problem.status},
        )

    def _write(self, order: _PendingCommand, status: int, where: str | None) -> None:
        self._count(order, status)
        facts = {"by": order.by, "client": client_of(order.scope), "status": status}
        facts |= {} if where is None else {"location": where}
        level = logging.INFO if status < 400 else logging.WARNING
        line = "%s %s: %d, ordered by %s"
        log.log(level, line, order.scope["method"], order.route, status, order.by, extra=facts)

    def _count(self, order: _PendingCommand, status: int) -> None:
        self._counts[order.name, _outcome(status)] += 1


def taken(scope: Scope, by: str, operation: str) -> None:
    """Write down that an order is on its way to the trainer: the answer may be minutes away, and may never come."""
    facts = {"by": by, "client": client_of(scope), "operation": operation}
    log.info("%s %s: taken as %s, ordered by %s", scope["method"], _order(scope, by).route, operation, by, extra=facts)


def client_of(scope: Scope) -> str:
    """Where a request comes from."""
    client = scope.get("client")
    return str(client[0]) if client else "somebody"


def _order(scope: Scope, by: str) -> _PendingCommand:
    route = route_of(scope)
    if route is None or route.name not in ORDERS:
        return _PendingCommand(scope, _OTHER, "of no route", by)
    return _PendingCommand(scope, route.name, route.path, by)


def _outcome(status: int) -> str:
    if status < 400:
        return "accepted"
    if status in (401, 403):
        return "unauthorized"
    return "refused" if status < 500 else "failed"


def _location(start: Message) -> str | None:
    return next((value.decode("latin-1") for name, value in start["headers"] if name == b"location"), None)
