"""The audit log: who sent which command, logged when the trainer gets it and again with the answer; and counters.

Runs on the HTTP side's loop. Every authorized command is logged, whatever its outcome. Of the others only some per
minute are, because anybody may send them. A line names a route, and repeats nothing that a client has put into a path,
a query or a body. Lines are written whatever `logs.level` is: who sent a command must be known in any case.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.routing import Match
from starlette.types import Message, Scope, Send

from millrace.app.api.problem_documents import ProblemError, routes_at
from millrace.consumers.log_limit import LogLimit

log = logging.getLogger(__name__)
log.setLevel(logging.INFO)
_refusals = logging.getLogger(f"{__name__}.refusals")
"""A logger of its own, so that the limit on refusals never drops the line of an authorized command."""
_REFUSALS_PER_MINUTE = 30
_refusals.addFilter(LogLimit(_REFUSALS_PER_MINUTE))
_OTHER = "other"
COMMANDS = ("save", "restore", "pin", "unpin", "rewind", "pause", "resume", "profile", _OTHER)
"""The names of the commands' routes; the last stands for a POST to any other path."""
OUTCOMES = ("accepted", "unauthorized", "refused", "failed")


@dataclass(frozen=True, slots=True)
class _PendingCommand:
    """A command that has no answer yet."""

    scope: Scope
    name: str
    route: str
    """Its path as a template: with {number}, not with the number."""
    by: str


class Audit:
    """The audit log of one application."""

    def __init__(self) -> None:
        self._counts = {(command, outcome): 0 for command in COMMANDS for outcome in OUTCOMES}

    def counts(self) -> Mapping[tuple[str, str], int]:
        """Return the number of commands by name and outcome."""
        return dict(self._counts)

    @contextmanager
    def recording(self, scope: Scope, send: Send, by: str) -> Iterator[Send]:
        """Log the command when its answer begins, or when its route raises before that.

        The context is the `send` to pass on.
        """
        command, answered = _command(scope, by), False

        async def recorded(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                self._write(command, int(message["status"]), Headers(raw=message["headers"]).get("location"))
            await send(message)

        try:
            yield recorded
        except Exception:  # an outer layer answers it with 500
            if not answered:
                self._write(command, 500, None)
            raise

    def refused(self, scope: Scope, problem: ProblemError) -> None:
        """Log that a command was not authorized."""
        client = client_of(scope)
        self._count(_command(scope, client), problem.status)
        _refusals.warning(
            "a command from %s was refused: %d %s",
            client,
            problem.status,
            problem.title,
            extra={"client": client, "status": problem.status},
        )

    def _write(self, command: _PendingCommand, status: int, where: str | None) -> None:
        self._count(command, status)
        facts = {"by": command.by, "client": client_of(command.scope), "status": status}
        facts |= {} if where is None else {"location": where}
        level = logging.INFO if status < 400 else logging.WARNING
        line = "%s %s: %d, ordered by %s"
        log.log(level, line, command.scope["method"], command.route, status, command.by, extra=facts)

    def _count(self, command: _PendingCommand, status: int) -> None:
        if status < 400:
            outcome = "accepted"
        elif status in (401, 403):
            outcome = "unauthorized"
        else:
            outcome = "refused" if status < 500 else "failed"
        self._counts[command.name, outcome] += 1


def taken(scope: Scope, by: str, operation: str) -> None:
    """Log that the trainer gets the command. The answer may be minutes away, and may never come."""
    facts = {"by": by, "client": client_of(scope), "operation": operation}
    log.info(
        "%s %s: taken as %s, ordered by %s", scope["method"], _command(scope, by).route, operation, by, extra=facts
    )


def client_of(scope: Scope) -> str:
    """Return the client's address."""
    client = scope.get("client")
    return str(client[0]) if client else "somebody"


def _command(scope: Scope, by: str) -> _PendingCommand:
    route = next((one for match, one in routes_at(scope["app"].routes, scope) if match is Match.FULL), None)
    if route is None or route.name not in COMMANDS:
        return _PendingCommand(scope, _OTHER, "of no route", by)
    return _PendingCommand(scope, route.name, route.path, by)
