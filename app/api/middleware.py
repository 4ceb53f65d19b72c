"""The guard: what a request must be before anybody looks at it. An ASGI layer around the whole application.

Bodies are small and come soon, and many questions at once wait their turn. What changes something passes a door, and
stands in the audit log. A new route cannot forget it.
"""

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.audit import Audit, client_of
from app.api.authorization import Door
from app.api.offload import uncharged
from app.api.problem_documents import ProblemError, StampNow, document
from app.api.rate_limit import CpuBudget

MOST_BODY_BYTES = 64 * 1024
BODY_WITHIN_S = 10.0
ORDERED_BY = "ordered_by"
"""Under which name a route finds in its request's state who orders."""
_READS = frozenset({"GET", "HEAD", "OPTIONS"})


class Guard:
    """Refuses what no route should see."""

    def __init__(self, app: ASGIApp, stamp: StampNow, door: Door, audit: Audit, pace: CpuBudget | None = None) -> None:
        self._app, self._stamp, self._door, self._audit, self._pace = app, stamp, door, audit, pace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it with a problem."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            if self._pace is not None:
                await self._pace.turn(scope["path"])
            by = None if scope["method"] in _READS else await self._pass_door(scope)
        except ProblemError as problem:
            await document(problem, self._stamp())(scope, receive, send)
            return
        if by is None:
            await self._pass_on(scope, receive, send)
            return
        scope.setdefault("state", {})[ORDERED_BY] = by
        with self._audit.following(scope, send, by) as followed:
            await self._pass_on(scope, receive, followed)

    async def _pass_door(self, scope: Scope) -> str:
        """Let an order through the door, and say whose it is."""
        try:
            charge = uncharged if self._pace is None else self._pace.charge
            return await self._door.admit(Headers(scope=scope), client_of(scope), charge)
        except ProblemError as problem:
            self._audit.refused(scope, problem)
            raise

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """With its whole body."""
        try:
            body = await _body(Headers(scope=scope), receive)
        except ProblemError as problem:
            await document(problem, self._stamp())(scope, receive, send)
            return
        if body is not None:
            await self._app(scope, _replayed(body, receive), send)


async def _body(headers: Headers, receive: Receive) -> bytes | None:
    """The whole body; None where the client has left."""
    announced = headers.get("content-length", "0")
    if announced.isdecimal() and int(announced[:20]) > MOST_BODY_BYTES:
        raise _too_large()
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            return await _read(receive)
    except TimeoutError:
        raise ProblemError(
            408,
            "Request Timeout",
            f"The body did not come within {BODY_WITHIN_S:g} s.",
            fix="Send headers and body together.",
            headers={"connection": "close"},
        ) from None


async def _read(receive: Receive) -> bytes | None:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > MOST_BODY_BYTES:
            raise _too_large()
        if not message.get("more_body", False):
            return bytes(body)


def _too_large() -> ProblemError:
    return ProblemError(
        413,
        "Content Too Large",
        f"The body is larger than {MOST_BODY_BYTES // 1024} KiB.",
        fix="No request needs so much: send what docs/api.md describes.",
        headers={"connection": "close"},
    )


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Hand the body out once, then whatever comes after it."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay
