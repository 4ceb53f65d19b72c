"""The gate of predictions: how many may be in progress, how long each took, and the end of connections at a stop.

An ASGI layer around everything else, on the HTTP side's loop. A request beyond the bound is refused before its body is
read, so bodies in memory are bounded too. While the server drains, every answer ends its connection: a client that
keeps connections open goes to another server, or connects again, before the listener closes.
"""

import json
import time

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millrace.app.tools.serve.serving_meter import ServingMeter

PREDICT = ":predict"
RETRY_AFTER_S = 1


class PredictGate:
    """Lets requests in, up to a number."""

    def __init__(self, app: ASGIApp, most: int, meter: ServingMeter) -> None:
        self._app, self._most, self._meter = app, most, meter
        self.draining = False
        """Whether every answer ends its connection. Any thread may set it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        send = self._closing(send)
        if scope["method"] != "POST" or not scope["path"].endswith(PREDICT):
            await self._app(scope, receive, send)
            return
        await self._predict(scope, receive, send)

    async def _predict(self, scope: Scope, receive: Receive, send: Send) -> None:
        meter, began, status = self._meter, time.monotonic(), 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        if meter.in_progress >= self._most:
            await _busy(self._most, watched)
            meter.ended(status, time.monotonic() - began)
            return
        meter.in_progress += 1
        try:
            await self._app(scope, receive, watched)
        finally:
            meter.in_progress -= 1
            meter.ended(status, time.monotonic() - began)

    def _closing(self, send: Send) -> Send:
        async def sending(message: Message) -> None:
            if self.draining and message["type"] == "http.response.start":
                MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        return sending


async def _busy(most: int, send: Send) -> None:
    text = f"{most} requests are in progress already; ask again later, or let more be by serve.batch.queue"
    headers = [(b"content-type", b"application/json"), (b"retry-after", str(RETRY_AFTER_S).encode())]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"error": text}).encode()})
