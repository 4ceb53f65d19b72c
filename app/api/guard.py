"""The guard: what a request must be before anybody looks at it. An ASGI layer around the whole application.

Bodies are small and come soon. What changes something is served on loopback alone, to a client that names this machine
by a loopback name and comes from no other site: so neither another host, nor a name that was bent to point here, nor a
page in somebody's browser can order the trainer about. A new route cannot forget it.
"""

import asyncio
import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.errors import ProblemError, StampNow, document

MOST_BODY_BYTES = 64 * 1024
BODY_WITHIN_S = 10.0
_READS = frozenset({"GET", "HEAD", "OPTIONS"})


class Guard:
    """Refuses what no route should see."""

    def __init__(self, app: ASGIApp, stamp: StampNow, *, on_loopback: bool) -> None:
        self._app, self._stamp, self._on_loopback = app, stamp, on_loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it with a problem."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            headers = Headers(scope=scope)
            if scope["method"] not in _READS:
                self._check_origin(headers)
            body = await _body(headers, receive)
        except ProblemError as problem:
            await document(problem, self._stamp())(scope, receive, send)
            return
        if body is not None:
            await self._app(scope, _replayed(body, receive), send)

    def _check_origin(self, headers: Headers) -> None:
        if not self._on_loopback:
            raise ProblemError(
                403,
                "Read Only",
                "This listener can be reached from other machines, so it changes nothing.",
                fix="Set api.listen to 127.0.0.1:8080 and ask from the same machine (kubectl port-forward does).",
            )
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not is_loopback(_host_of(f"//{hosts[0]}")):
            raise ProblemError(
                403,
                "Foreign Host",
                "The Host header does not name a loopback address, so the request may come from elsewhere.",
                fix="Ask for http://127.0.0.1 or http://localhost with the port of api.listen.",
            )
        origins = headers.getlist("origin")
        if any(origin.lower() != f"http://{hosts[0].lower()}" for origin in origins):
            raise ProblemError(
                403,
                "Foreign Origin",
                "The request comes from a page of another origin.",
                fix="Send orders from a command line, or from a page that this service has served.",
            )


def is_loopback(host: str | None) -> bool:
    """Whether a name or an address is this machine's alone."""
    if host is None:
        return False
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_of(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises where it is none
    except ValueError:
        return None
    plain = not (parts.username or parts.password or parts.path or parts.query or parts.fragment)
    return parts.hostname if plain else None


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
