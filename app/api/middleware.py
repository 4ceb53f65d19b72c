"""The middleware: what every request must pass before a route sees it. An ASGI layer around the whole application.

It bounds the size and the time of bodies, and authorizes commands and writes them to the audit log. It answers HEAD as
GET without the body, and lets no cache keep an answer that does not say otherwise.
Because it stands around all routes, a new route cannot forget any of this.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millrace.app.api.audit import Audit, client_of
from millrace.app.api.authorization import Authorizer, ReadAuthorizer, is_open
from millrace.app.api.problem_documents import ProblemError, StampNow, document
from millrace.app.monitoring.shapes import Stamp

MAX_BODY_BYTES = 64 * 1024
BODY_TIMEOUT_S = 10.0
RECHECK_S = 60.0
"""How often the token of an answer that goes on is checked again."""
ORDERED_BY = "ordered_by"
"""The key in a request's state under which a route finds who sent the command."""
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
Commands = tuple[Authorizer, Audit]
"""What decides who may send commands, and what writes them down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """What differs between the applications that this stands around."""

    max_body_bytes: int = MAX_BODY_BYTES
    instead: str = "No request needs that much: send what docs/api.md describes."
    """What to do if a body is larger."""
    answer: Callable[[ProblemError, Stamp], Response] = document
    """Makes the answer to a request that is refused."""


class ApiMiddleware:
    """Refuses what no route should see."""

    def __init__(
        self,
        app: ASGIApp,
        stamp: StampNow,
        commands: Commands | None = None,
        readers: ReadAuthorizer | None = None,
        manner: Manner = Manner(),
    ) -> None:
        """Take who decides about commands; None for an application that has none."""
        self._app, self._stamp, self._commands = app, stamp, commands
        self._readers, self._manner = readers, manner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it with a problem document."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        send = _not_cached(send)
        if scope["method"] == "HEAD":
            scope, send = {**scope, "method": "GET"}, _without_body(send)
        command = self._commands if scope["method"] not in _READS else None
        try:
            send = await self._authorize_read(scope, send, command)
            if command is None:
                await self._pass_on(scope, receive, send)
                return
            authorizer, audit = command
            try:
                by = await authorizer.authorize(Headers(scope=scope), client_of(scope))
            except ProblemError as problem:
                audit.refused(scope, problem)
                raise
        except ProblemError as problem:
            await self._manner.answer(problem, self._stamp())(scope, receive, send)
            return
        scope.setdefault("state", {})[ORDERED_BY] = by
        with audit.recording(scope, send, by) as recorded:
            await self._pass_on(scope, receive, recorded)

    async def _authorize_read(self, scope: Scope, send: Send, command: Commands | None) -> Send:
        """Return the `send` to go on with; raise ProblemError if reads need a token and the client may not read.

        What a command answers is read too. An answer that goes on is ended when its token has been taken away.
        """
        if self._readers is None or (command is None and is_open(scope["path"])):
            return send
        if command is not None and command[0].asks_for_token:
            return send
        check = partial(self._readers.authorize, Headers(scope=scope))
        await check()
        return _while_authorized(send, check)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the whole body, then call the application with it."""
        try:
            body = await _body(Headers(scope=scope), receive, self._manner)
        except ProblemError as problem:
            await self._manner.answer(problem, self._stamp())(scope, receive, send)
            return
        if body is not None:
            # The application gets the body once, and then what follows it.
            waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

            async def replay() -> Message:
                return waiting.pop() if waiting else await receive()

            await self._app(scope, replay, send)


def _not_cached(send: Send) -> Send:
    """Return a `send` that adds Cache-Control: no-store to an answer without that header: answers are of the moment."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).setdefault("cache-control", "no-store")
        await send(message)

    return sending


def _while_authorized(send: Send, check: Callable[[], Awaitable[None]]) -> Send:
    """Return a `send` that checks again each minute while an answer goes on, and ends it if the check fails."""
    clock = asyncio.get_running_loop().time
    checked_at, ended = clock(), False

    async def sending(message: Message) -> None:
        nonlocal checked_at, ended
        if ended:
            return
        if message["type"] == "http.response.body" and clock() - checked_at >= RECHECK_S:
            checked_at = clock()
            try:
                await check()
            except ProblemError:
                ended, message = True, {"type": "http.response.body", "body": b"", "more_body": False}
        await send(message)

    return sending


def _without_body(send: Send) -> Send:
    """Return a `send` that ends the answer behind its head, so that an endless stream ends too."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    return sending


async def _body(headers: Headers, receive: Receive, manner: Manner) -> bytes | None:
    """Return the whole body, or None if the client has left. Raises ProblemError if it is too large or too slow."""
    announced = headers.get("content-length", "0")
    if announced.isdecimal() and int(announced[:20]) > manner.max_body_bytes:
        raise _too_large(manner)
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await _read(receive, manner)
    except TimeoutError:
        raise ProblemError(
            408,
            "Request Timeout",
            f"The body did not arrive within {BODY_TIMEOUT_S:g} s.",
            fix="Send headers and body together.",
            headers={"connection": "close"},
        ) from None


async def _read(receive: Receive, manner: Manner) -> bytes | None:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > manner.max_body_bytes:
            raise _too_large(manner)
        if not message.get("more_body", False):
            return bytes(body)


def _too_large(manner: Manner) -> ProblemError:
    return ProblemError(
        413,
        "Content Too Large",
        f"The body is larger than {manner.max_body_bytes // 1024} KiB.",
        fix=manner.instead,
        headers={"connection": "close"},
    )
